"""The check of 12.4: a save on a disk that crashes after any of its operations."""

import contextlib

from ....checks import Trial, Wrong, exercise
from ....checks.verdict import RAISED
from ....checks.words import blank_of, line_text, message_text


class PowerCut(Exception):
    """The power is gone; whoever saves hears nothing of it."""


class CrashingDisk:
    """A folder as a disk keeps it. What is written, and how a file is called, is certain only after it was synced.

    crash_after: the number of operations after which the power fails; None: never.
    """

    def __init__(self, files: dict[str, bytes], crash_after: int | None = None):
        self.names, self.kept = dict.fromkeys(files), {}
        self.contents = {name: (data, True) for name, data in files.items()}  # name: data, whether it is on the disk
        self.certain = dict(files)  # what is there after the power has failed
        self.left, self.operations = crash_after, []

    def write(self, name: str, data: bytes) -> None:
        """Make the file, or empty it, and write `data`, of which any part may be on the disk."""
        self._does("write", name)
        self.contents[name] = (data, False)
        if name in self.certain:
            self.certain[name] = data[:len(data) // 2]  # an empty file is filled while the power fails

    def fsync(self, name: str) -> None:
        """When this returns, the contents of the file are on the disk."""
        self._does("fsync", name)
        self.contents[name] = (self.contents[name][0], True)
        if name in self.certain:
            self.certain[name] = self.contents[name][0]

    def rename(self, old: str, new: str) -> None:
        """The file `old` is called `new` from now on; a file of that name is replaced, as a whole."""
        self._does("rename", old, new)
        data, synced = self.contents.pop(old)
        self.contents[new] = (data, synced)
        self.certain.pop(old, None)
        self.certain[new] = data if synced else data[:len(data) // 2]  # the worst: the name is there first

    def sync_folder(self) -> None:
        """When this returns, the names are on the disk."""
        self._does("sync_folder")

    def delete(self, name: str) -> None:
        """The file is gone."""
        self._does("delete", name)
        self.contents.pop(name)
        self.certain.pop(name, None)

    def files(self) -> list[str]:
        """The names of the files that are there."""
        return sorted(self.contents)

    def _does(self, what: str, *names: str) -> None:
        if self.left is not None and len(self.operations) == self.left:
            raise PowerCut
        for name in names[:1]:
            if what != "write" and name not in self.contents:
                raise Wrong(f"{what} of {name!r}: there is no such file")
        self.operations.append((what, *names))


OLD, NEW = b"the old state", b"the new state"


def cut(answer, before, moment):
    """The disk after a save that a power cut has ended."""
    disk = CrashingDisk(before, moment)
    with contextlib.suppress(PowerCut):
        answer(disk, "state", NEW)
    answer.error = None
    return disk


def crashes(answer, before):
    """Save once without a crash, then with one after each operation."""
    disk = CrashingDisk(before)
    answer(disk, "state", NEW)
    operations = list(disk.operations)
    seen = {"saved": disk.contents.get("state", (b"nothing", 0))[0], "left": disk.files()}
    torn, saved, left, second = [], True, True, False
    for moment in range(len(operations) + 1):
        hurt = cut(answer, before, moment)
        if "state" in before and hurt.certain.get("state") not in (OLD, NEW):
            torn.append([what for what, *_ in hurt.operations])
        found = dict(hurt.certain) | {name: b"" for name in hurt.contents if name not in hurt.certain}
        after = CrashingDisk(found)
        try:
            answer(after, "state", NEW)
        except Exception as error:
            if isinstance(error, Wrong) or blank_of(error):
                raise
            raise Wrong(f"the save after a power cut, which found the files {sorted(found)}, raised {type(error).__name__}"
                        f"{message_text(error)}{line_text(error)}", RAISED, type(error).__name__) from None
        saved &= after.contents.get("state", (b"", 0))[0] == NEW
        left &= after.files() == disk.files()
        if "state" in before and not torn:
            second |= any(cut(answer, found, other).certain.get("state") not in (OLD, NEW) for other in range(len(after.operations)))
    theirs = {file.replace("state", "another"): b"a draft of others" for file in {each[1] for each in operations if each[0] == "write"} - {"state"}
              if "state" in file}
    others = cut(answer, before | theirs, None)
    done = [what for what, *_ in operations]
    after_rename = done[len(done) - done[::-1].index("rename"):] if "rename" in done else done
    certain = "synced" if "sync_folder" in after_rename else "synced before" if "sync_folder" in done else "not synced"
    return seen | {"torn": torn, "certain": certain, "saved again": saved, "left again": left, "torn again": second and not torn,
                   "theirs gone": not theirs.keys() <= {*others.files()}}


@exercise(
    "12.4", "A save that cannot be torn", minutes=25, difficulty=2,
    trials=[Trial([({},), ({"state": OLD},),
                   ({"state": OLD, "notes": b"other", "state.old": b"an older state", "notes.tmp": b"a draft of others"},)], crashes)],
    mistakes={
        "in place": {"draft": ""},
        "rename first": {"order": ("write", "rename", "fsync", "sync_folder")},
        "no fsync": {"order": ("write", "rename", "sync_folder")},
        "folder for file": {"order": ("write", "sync_folder", "rename", "sync_folder")},
        "folder not synced": {"order": ("write", "fsync", "rename")},
        "folder too early": {"order": ("write", "fsync", "sync_folder", "rename")},
        "deleted first": {"order": ("write", "fsync", "delete", "rename", "sync_folder")},
        "new draft each time": {"draft": "random"},
        "left over": {"order": ("write", "fsync", "rename", "sync_folder", "copy")},
    })
def save_safely(disk, name, data, *, draft=".draft", order=("write", "fsync", "rename", "sync_folder")):
    """Write, fsync, rename, sync the folder."""
    other = f"{name}.{len(disk.files())}" if draft == "random" else name + draft
    for what in order:
        if what in ("write", "copy"):
            disk.write(other, data)
        elif what == "delete" and name in disk.files():
            disk.delete(name)
        elif what == "fsync":
            disk.fsync(other if other in disk.files() else name)
        elif what == "rename" and other != name:
            disk.rename(other, name)
        elif what == "sync_folder":
            disk.sync_folder()
