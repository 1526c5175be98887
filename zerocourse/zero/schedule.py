"""The order of units: in which a backward visits them, and what to gather while one computes. It communicates nothing.

All ranks must issue the same collectives in the same order, whatever the model does on one of them. So the order never
follows the gradients that happen to arrive. A forward notes the units as they run, which is the same on all ranks; its
backward visits them in reverse. Hooks only say how far the backward of this rank has come, and a unit that this rank
passes over (its output was not used here) is visited all the same, on the way to the next.
"""

from collections import Counter
from collections.abc import Iterator

from .unit import Unit


class Pass:
    """One forward with gradients, and where its backward is. Several may be alive at once, as in a pipeline."""

    def __init__(self):
        self.calls: list[Unit] = []  # in the order in which they ended; a unit that runs twice is there twice
        self.around: set[Unit] = set()  # units inside of which others ran
        self.ahead: list[Unit] = []  # units that the backward has still to visit, the next one first
        self.again: set[Unit] = set()  # units that ran more than once; only the end of the backward shows that they are finished
        self.under_way = False  # is its backward running?
        self.had_backward = False

    def note(self, unit: Unit, within: list[Unit]) -> None:
        """The unit has run, inside of those."""
        self.calls.append(unit)
        self.around.update(within)

    def begin_backward(self) -> None:
        """The backward visits each unit once, where its last call was."""
        self.ahead = list(dict.fromkeys(reversed(self.calls)))
        self.again = {unit for unit, calls in Counter(self.calls).items() if calls > 1}
        self.under_way = True

    def visit(self, unit: Unit) -> Iterator[Unit]:
        """The units to visit now that the backward has come to `unit`: those passed over, then itself. Nothing when it was
        visited before: a unit that ran more than once stays gathered until the end."""
        if unit in self.ahead:
            while (visited := self.ahead.pop(0)) is not unit:
                yield visited
            yield unit


class Prefetcher:
    """Remembers the order of units in the last forward, and looks `depth` units ahead.

    depth: 0 is no overlap. With depth d at most d + 1 units (and the root) are gathered at a time.
    """

    def __init__(self, depth: int):
        self.depth = depth
        self.recorded: list[Unit] = []  # of the last forward
        self.so_far: list[Unit] = []  # of this one

    def start(self) -> None:
        """A new forward begins; what was recorded becomes the prediction."""
        if self.so_far:
            self.recorded = self.so_far
        self.so_far = []

    def next_after(self, unit: Unit) -> list[Unit]:
        """Note that `unit` computes now, and return the units expected next, nearest first."""
        here = len(self.so_far)
        self.so_far.append(unit)
        if self.recorded[here : here + 1] != [unit]:
            return []
        return self.recorded[here + 1 : here + 1 + self.depth]
