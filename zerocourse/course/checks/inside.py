"""The rank's side of a check: runs the learner's function so that nothing it does can harm what comes after.

While it runs, the package's own functions that answer the exercise raise, memory is limited, and what it prints is
kept. Whatever it raises, `sys.exit` included, goes back to the check as a sentence.
"""

import io
import json
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ...errors import CollectiveError
from ...launch.processes import payload
from . import delegation as guards
from .plain import can_travel, encode
from .verdict import NOT_DONE, RAISED, STUCK, Wrong
from .words import a, blank_of, call_text, line_text, message_text

try:
    import fcntl
    import resource
    import termios
except ImportError:  # Windows
    resource = None

MEMORY = 3 * 2**30  # bytes that an answer may take beyond what its process had before
PRINTED = 4000  # characters that are kept
SAME_CALLS = "Every rank must call the same collectives, in the same order"
NO_TRAVELLER = ("returned {}, which cannot be sent from one process to another: return numbers, tensors, or lists and "
                "dictionaries of them")


class AnswerFailed(Exception):
    """How a rank in a world of several tells that its answer failed; its text is the report as JSON."""


@dataclass
class Report:
    """What a rank saw. kind: "value", or a verdict's code with a sentence in `value`."""

    kind: str
    value: object
    printed: str
    clean: bool  # no thread of the answer's runs on in this process
    error: str = ""  # the class name of what was raised
    case: str = ""  # words for the case in which it was


class Answer:
    """The learner's function (or class). Calling it runs it guarded; `fn` is the thing itself."""

    def __init__(self, fn: Callable, name: str, guard: guards.Guard):
        self.fn, self.__name__, self.guard = fn, name, guard
        self.error: BaseException | None = None  # the first it raised, whoever swallowed it
        self.misfit = ""

    def __call__(self, *args, **kwargs):
        with self.guard.on():
            try:
                return self.fn(*args, **kwargs)
            except BaseException as error:
                self.error = self.error or error
                if isinstance(error, TypeError) and error.__traceback__.tb_next is None:  # it did not even begin
                    self.misfit = f"it is called as `{call_text(self.__name__, args, kwargs)}`, and {error}"
                raise


def perform(observe: Callable, sent: bytes, names, replaces, own, args, kwargs, several: bool) -> dict:
    """Run `observe(*answers, *args, **kwargs)` with the answers, which `sent` holds, guarded.

    Returns the `Report` as `plain.encode` has it.

    In a world of several ranks a failure is raised, as AnswerFailed: else the others would be waited for.
    """
    guards.sprung.clear()
    guard, guarded = guards.Guard(replaces, own), []
    threads, printed, raised, case = set(threading.enumerate()), Bounded(), "", ""
    try:
        with output_to(printed), _memory_limit():
            first, others, _ = payload.unpack(sent)
            guarded += [Answer(fn, name, guard) for fn, name in zip((first, *others), names, strict=True)]
            kind, value = "value", observe(*guarded, *args, **kwargs)
    except BaseException as error:
        (kind, value), raised = _failure(guarded, error), type(error).__name__
        case = next(iter(getattr(error, "__notes__", ())), "")
    if guards.sprung:
        kind, value = "delegated", f"this calls the package's own `{guards.sprung[0]}`: write it yourself"
    if kind == "value" and not can_travel(value):
        kind, value = RAISED, f"it {NO_TRAVELLER.format(a(value))}"
    report = Report(kind, value, printed.getvalue(), set(threading.enumerate()) <= threads, raised, case)
    if several and kind != "value":
        raise AnswerFailed(json.dumps(vars(report)))
    return encode(vars(report))


def _failure(answers: list[Answer], raised: BaseException) -> tuple[str, str]:
    """Code and sentence for an exception; the answer's own comes before what it led to."""
    error = next((answer.error for answer in answers if answer.error), raised)
    if blank := blank_of(error):
        name = answers[0].__name__ if answers and blank == "__init__" else blank
        return NOT_DONE, f"`{name}` is still a blank"
    if isinstance(raised, Wrong):
        return raised.code, str(raised)
    if isinstance(error, CollectiveError):
        return STUCK, f"{error}." if "the same collectives" in str(error) else f"{error}. {SAME_CALLS}."
    misfit = next((answer.misfit for answer in answers if answer.misfit), "")
    if misfit:
        return RAISED, misfit
    line = line_text(error)
    if not answers:
        return RAISED, f"it cannot be loaded in another process: {type(error).__name__}: {error}"
    if isinstance(error, SystemExit):
        return RAISED, f"it ended the program (exit or sys.exit){line}: return a value instead"
    if isinstance(error, MemoryError):
        return RAISED, f"it ran out of memory{line}: {MEMORY / 2**30:.0f} GiB is what it may take"
    if waits_for_input(error):
        return RAISED, f"it waits for input{line}, and nobody is there to type: use the arguments"
    who = "it raised" if any(answer.error for answer in answers) else "it returned, but then what it left behind led to"
    return RAISED, f"{who} {type(error).__name__}{message_text(error)}{line}"


def waits_for_input(error: BaseException) -> bool:
    """Is it what `input()` raises here? An answer may raise an EOFError of its own, at the end of a file."""
    return isinstance(error, EOFError) and str(error) == "EOF when reading a line"


class Bounded(io.StringIO):
    """Keeps the beginning of what is written."""

    def write(self, text: str) -> int:
        super().write(text[:max(0, PRINTED - self.tell())])
        return len(text)


@contextmanager
def output_to(stream) -> Iterator[None]:
    before = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = stream
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


@contextmanager
def _memory_limit() -> Iterator[None]:
    """Inside, this process may take MEMORY bytes more than it has."""
    if resource is None or not os.path.exists("/proc/self/status"):
        yield
        return
    with open("/proc/self/status") as file:
        has = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = has + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def untaken() -> int:
    """Bytes that came for this process, and that nobody takes: the tensor that was to receive them is gone."""
    unread = 0
    for number in map(int, os.listdir("/dev/fd")):
        with suppress(OSError):  # the descriptor of the listing itself is closed by now
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                unread += int.from_bytes(fcntl.ioctl(number, termios.FIONREAD, bytes(4)), sys.byteorder)
    return unread
