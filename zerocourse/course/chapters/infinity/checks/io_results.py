"""The checks of 15.3 and 15.5: reads that bring less than they were asked for, and results that nobody looks at."""

from ....checks import Trial, Wrong, exercise
from ....checks.plain import Raised

# 15.3 ---------------------------------------------------------------------------------------------------------------

CONTENT = bytes(range(1, 251)) * 2
MOST_CALLS = 600


class ShortFile:
    """A file whose reads bring at most `most` bytes at once, and every third a quarter. calls: (offset, count) of each."""

    def __init__(self, most: int, size: int):
        self.most, self.content, self.calls = most, CONTENT[:size], []

    def read_at(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes from `offset` on; none at the end of the file."""
        self.calls.append((offset, count))
        if len(self.calls) > MOST_CALLS:
            raise Wrong("it goes on reading for ever where a read brings nothing: that is the end, and an error")
        most = self.most if len(self.calls) % 3 != 2 else -(-self.most // 4)
        return self.content[offset:offset + min(count, most)]


def read_and_seen(answer, most, size, offset, count):
    """What comes back, or is raised, and what was asked for."""
    file = ShortFile(most, size)
    try:
        found = answer(file, offset, count)
        returned = bytes(found) if isinstance(found, (bytes, bytearray)) else type(found).__name__
    except OSError as error:
        returned = Raised("OSError", f": {error}" if str(error) else "", type(error).__name__)
    calls = file.calls if isinstance(returned, bytes) else []
    return {"returned": returned, "asked": calls[:4], "asked_later": sum(count for _, count in calls[4:])}


def in_bytes(case, came, wanted):
    """How returned bytes differ: in their number, or in the first that is wrong."""
    if not isinstance(came, bytes):
        return None if isinstance(came, Raised) else ("type", {})
    if isinstance(wanted, Raised):
        return "no error", {"bytes": len(came)}
    if len(came) != len(wanted):
        return "number", {"bytes": len(came), "right": len(wanted)}
    place = next(place for place, pair in enumerate(zip(came, wanted, strict=True)) if len(set(pair)) == 2)
    return "values", {"place": place, "byte": came[place], "right": wanted[place]}


@exercise(
    "15.3", "Read exactly", minutes=15, difficulty=1,
    trials=[Trial([(500, 500, 0, 200), (500, 400, 130, 70), (64, 500, 0, 200), (64, 500, 100, 150), (1, 60, 20, 15),
                   (64, 300, 250, 100), (500, 100, 100, 10), (500, 300, 10, 0)], read_and_seen, words={"returned": in_bytes})],
    mistakes={
        "stops at the first": {"goes_on": lambda found, count: not found},
        "0 is the end": {"ends": "returns"},
        "wrong offset": {"at": lambda offset, done: offset},
        "from the beginning": {"at": lambda offset, done: done},
        "too many": {"still": lambda count, done: count},
        "byte by byte": {"still": lambda count, done: 1},
        "filled up": {"ends": "fills"},
        "short is an error": {"ends": "short"},
        "reads nothing": {"goes_on": lambda found, count: not found or len(found) < count},
    })
def read_exactly(file, offset, count, *, goes_on=lambda found, count: len(found) < count, ends="raises",
                 at=lambda offset, done: offset + done, still=lambda count, done: count - done):
    """A loop."""
    found = b""
    while goes_on(found, count):
        piece = file.read_at(at(offset, len(found)), still(count, len(found)))
        if not piece or (ends == "short" and len(found) + len(piece) < count):
            if not count or ends == "returns":
                break
            if ends == "fills":
                return found + bytes(count - len(found))
            raise OSError("the file ends too early")
        found += piece
    return found


# 15.5 ---------------------------------------------------------------------------------------------------------------

class Queue:
    """Writes that are under way. results: by name, (bytes moved, error) in the order in which they finish."""

    def __init__(self, results: dict):
        self.results, self.submitted, self.done, self.at_first = results, {}, [], None

    def submit(self, name: str, data: bytes) -> None:
        """Begin to write."""
        self.submitted[name] = data

    def wait(self) -> tuple[str, int, int]:
        """(name, bytes moved, error number) of the next one that is over; error 0: none."""
        self.at_first = len(self.submitted) if self.at_first is None else self.at_first
        left = [name for name in self.results if name in self.submitted and name not in self.done]
        if not left:
            raise Wrong("it waits for more writes than it has submitted, and that would be for ever")
        self.done.append(left[0])
        moved, error = self.results[left[0]]
        return left[0], moved, error


def saved(answer, results):
    """Write three blocks of 8, 6 and 4 bytes, with these results."""
    queue, blocks = Queue(results), {"a": b"a" * 8, "b": b"b" * 6, "c": b"c" * 4}
    ended, named = "a return", None
    try:
        answer(queue, blocks)
    except (OSError, AssertionError) as error:
        ended = "an OSError" if isinstance(error, OSError) else "an AssertionError"
        named = [name for name in blocks if f"block {name}" in str(error)]
    return {"ended": ended, "named": named, "under way": len(blocks) - len(queue.done), "submitted": queue.at_first}


FINE = {"c": (4, 0), "a": (8, 0), "b": (6, 0)}


@exercise(
    "15.5", "Find the bug: a result that nobody looks at", minutes=20, difficulty=2,
    trials=[Trial([(FINE | hurt,) for hurt in (
        {}, {"a": (4, 0)}, {"c": (0, 5)}, {"b": (6, 28)}, {"b": (0, 0)}, {"a": (4, 0), "b": (2, 0)}, {"a": (8, 5), "b": (2, 0)},
        {"c": (4, 5)})], saved)],
    mistakes={
        "the bug": {"is_bad": lambda moved, error, size: False},
        "errors alone": {"is_bad": lambda moved, error, size: error},
        "lengths alone": {"is_bad": lambda moved, error, size: moved != size},
        "both at once": {"is_bad": lambda moved, error, size: error and moved != size},
        "nothing moved": {"is_bad": lambda moved, error, size: error or not moved},
        "first alone": ({"among": lambda bad: bad[:1]}, {"among": lambda bad: bad[-1:]}),
        "raises at once": {"at_once": True},
        "in turn": {"all_first": False},
        "one wait too few": {"waits": -1},
        "assert": {"kind": AssertionError},
        "no name": {"said": lambda bad: f"{len(bad)} blocks"},
        "always": {"is_bad": lambda moved, error, size: True},
    })
def save_blocks(queue, blocks, *, is_bad=lambda moved, error, size: error or moved != size, among=lambda bad: bad,
                at_once=False, all_first=True, waits=None, kind=OSError, said=lambda bad: ", ".join(f"block {name}" for name in bad)):
    """Look at each result, and raise when all are over."""
    bad = []
    if all_first:
        for name, data in blocks.items():
            queue.submit(name, data)
    for name, data in list(blocks.items())[:waits]:
        if not all_first:
            queue.submit(name, data)
        name, moved, error = queue.wait()
        if is_bad(moved, error, len(blocks[name])):
            bad.append(name)
            if at_once:
                break
    if bad:
        raise kind(said(among(sorted(bad))) + " not written")
