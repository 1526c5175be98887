"""The checks of 15.3 and 15.5: reads that bring less than they were asked for, and results that nobody looks at."""

from ....checks import Trial, Wrong, exercise

# 15.3 ---------------------------------------------------------------------------------------------------------------

CONTENT = bytes(range(1, 251)) * 2
MOST_CALLS = 600


class ShortFile:
    """A file whose reads bring at most `most` bytes at once. calls: (offset, count) of each."""

    def __init__(self, most: int, size: int):
        self.most, self.content, self.calls = most, CONTENT[:size], []

    def read_at(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes from `offset` on; none at the end of the file."""
        self.calls.append((offset, count))
        if len(self.calls) > MOST_CALLS:
            raise Wrong("it goes on reading for ever where a read brings nothing: that is the end, and an error")
        return self.content[offset:offset + min(count, self.most)]


def read_and_seen(answer, most, size, offset, count):
    """What comes back, or is raised, and what was asked for.

    case: {3} bytes from byte {2} of a file of {1}, whose reads bring at most {0} at once
    returned: it returned {got} where {want} is right.
    asked: the bytes are right, but the reads were (offset, count) {got}, and {want} are right.
    """
    file = ShortFile(most, size)
    try:
        found = answer(file, offset, count)
        returned = bytes(found) if isinstance(found, (bytes, bytearray)) else type(found).__name__
    except OSError:
        returned = "an OSError"
    return {"returned": returned, "asked": file.calls if isinstance(returned, bytes) else []}


@exercise(
    "15.3", "Read exactly", minutes=15, difficulty=1,
    trials=[Trial([(500, 500, 0, 200), (500, 400, 130, 70), (64, 500, 0, 200), (64, 500, 100, 150), (1, 60, 20, 9),
                   (64, 300, 250, 100), (500, 100, 100, 10), (500, 300, 10, 0)], read_and_seen)],
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
    """A loop.

    stops at the first: You took what the first read brought: a read may bring fewer bytes than it was asked for.
    0 is the end: Where the file ends too early you returned what there was: whoever asked for `count` bytes would use
        the old contents of memory for the rest. Raise OSError.
    wrong offset: You read from the same place again: go on behind what you have.
    from the beginning: You forgot `offset` after the first read, or in it.
    too many: You asked for all bytes each time: ask for those that are missing, or there will be too many.
    byte by byte: You read one byte at a time: each read is a call of the operating system.
    filled up: You filled up what is missing: wrong bytes are worse than none.
    short is an error: You raised where a read brought less: that is no error, so go on.
    reads nothing: You asked for 0 bytes: where nothing is missing, nothing is read.
    right: this loop is what stands between a short read and a training that goes on with old memory.
    """
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
        self.results, self.submitted, self.done = results, {}, []

    def submit(self, name: str, data: bytes) -> None:
        """Begin to write."""
        self.submitted[name] = data

    def wait(self) -> tuple[str, int, int]:
        """(name, bytes moved, error number) of the next one that is over; error 0: none."""
        left = [name for name in self.results if name in self.submitted and name not in self.done]
        if not left:
            raise Wrong("it waits for more writes than it has submitted, and that would be for ever")
        self.done.append(left[0])
        moved, error = self.results[left[0]]
        return left[0], moved, error


def saved(answer, results):
    """Write three blocks of 8, 6 and 4 bytes, with these results.

    case: results {0}
    ended: it ended with {got}, and {want} is right.
    named: the OSError names {got}, and {want} is right.
    under way: when it ended, {got} writes were still under way, which read their buffers; {want} is right.
    """
    queue, blocks = Queue(results), {"a": b"a" * 8, "b": b"b" * 6, "c": b"c" * 4}
    ended, named = "a return", []
    try:
        answer(queue, blocks)
    except (OSError, AssertionError) as error:
        ended = "an OSError" if isinstance(error, OSError) else "an AssertionError"
        named = [name for name in blocks if f"block {name}" in str(error)]
    return {"ended": ended, "named": named, "under way": len(blocks) - len(queue.done)}


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
        "nothing moved": {"is_bad": lambda moved, error, size: error or not moved},
        "first alone": ({"among": lambda bad: bad[:1]}, {"among": lambda bad: bad[-1:]}),
        "raises at once": {"at_once": True},
        "assert": {"kind": AssertionError},
        "no name": {"said": lambda bad: f"{len(bad)} blocks"},
        "always": {"is_bad": lambda moved, error, size: True},
    })
def save_blocks(queue, blocks, *, is_bad=lambda moved, error, size: error or moved != size, among=lambda bad: bad,
                at_once=False, kind=OSError, said=lambda bad: ", ".join(f"block {name}" for name in bad)):
    """Look at each result, and raise when all are over.

    the bug: The bug is still there. `wait` returns what has become of a write, and nobody looks at it.
    errors alone: You look at the error alone: a write may take fewer bytes than it was given, and report none.
    lengths alone: You look at the bytes alone: a write that failed may still say how many bytes it was to move.
    nothing moved: You let a write pass that took only a part of its bytes.
    first alone: You named only one of the blocks: name all that are not written.
    raises at once: You raised while other writes were under way: whoever catches the error may free their buffers,
        which are still read. Wait for all first.
    assert: You used `assert`, and `python -O` leaves that out: raise OSError.
    no name: Name the blocks in the message, as `block a`, so that somebody can find them.
    always: You raised where every write had gone well.
    right: a short write, a full disk and a failed drive are heard of at once, and not when somebody reads.
    """
    for name, data in blocks.items():
        queue.submit(name, data)
    bad = []
    for _ in blocks:
        name, moved, error = queue.wait()
        if is_bad(moved, error, len(blocks[name])):
            bad.append(name)
            if at_once:
                break
    if bad:
        raise kind(said(among(sorted(bad))) + " not written")
