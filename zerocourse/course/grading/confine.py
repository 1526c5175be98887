"""Confines a process to its own folder, where Linux has Landlock (5.13 on): a learner's code writes nothing elsewhere and, from 6.12
on, signals no process that is not its own. It reads what the user may, but for the answers of a checkout (`SOLUTIONS`).
"""

import ctypes
import os
import platform
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

from ...launch.processes.cleanup import FOLDER_VARIABLE

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls, of every 64-bit machine
NO_NEW_PRIVILEGES = 38  # an option of prctl, which Landlock asks for
SOLUTIONS = Path(__file__).parents[3] / "solutions"
READING = 1 << 2  # a file; folders may be listed
WRITING = 1 << 1 | sum(1 << bit for bit in range(4, 13))  # write a file, remove and make whatever there is
MOVING, TRUNCATING = 1 << 13, 1 << 14  # known from version 2 and 3 of Landlock on
SCOPES = 0b11  # abstract sockets and signals, from version 6 on


def landlock_version() -> int:
    """0, or less, where the system has none."""
    if platform.system() != "Linux":
        return 0
    return ctypes.CDLL(None).syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1)


def confine() -> bool:
    """From now on this thread, and what it starts, writes only below the folder of its job and in /dev; False where the
    system cannot do that. There is no way back."""
    version, folder = landlock_version(), os.environ[FOLDER_VARIABLE]
    if version < 1:
        return False
    library = ctypes.CDLL(None)
    access = WRITING | (MOVING if version >= 2 else 0) | (TRUNCATING if version >= 3 else 0)
    readable = beside(SOLUTIONS.resolve()) if SOLUTIONS.is_dir() else []
    handled = access | (READING if readable else 0)
    attributes = struct.pack("QQQ", handled, 0, SCOPES) if version >= 6 else struct.pack("Q", handled)
    rules = library.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)

    def allow(path: str | Path, access: int) -> None:
        opened = os.open(path, os.O_PATH)
        library.syscall(ADD_RULE, rules, 1, struct.pack("=Qi", access, opened), 0)
        os.close(opened)

    for path in (folder, "/dev"):
        allow(path, handled)
    for path in readable:
        with suppress(FileNotFoundError):  # somebody's temporary file
            allow(path, READING)
    library.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    confined = library.syscall(RESTRICT_SELF, rules, 0) == 0
    os.close(rules)
    os.environ["TMPDIR"], tempfile.tempdir = folder, None
    return confined


def beside(hidden: Path) -> list[Path]:
    """What lies beside a folder and beside each folder above it: all files but its own, as they are now. A rule allows what it names
    and has no exceptions. What a link leads to has a place of its own. Empty where a folder above may not be listed."""
    try:
        return [each for below, above in zip((hidden, *hidden.parents), hidden.parents, strict=False)
                for each in above.iterdir() if each != below and not each.is_symlink()]
    except PermissionError:
        return []
