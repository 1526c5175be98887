"""What a forward leaves for its backward, and for the next forward: in which order the units ran. It communicates nothing."""

from weakref import WeakSet

from .program import Call
from ..buffers.unit import Unit


class Pass:
    """One forward with gradients, and later its backward. Several may be alive at once, as in a pipeline: autograd keeps them."""

    def __init__(self, before: "Pass | None" = None):
        self.calls: list[Call] = []  # in the order in which they ended; a unit that runs twice is there twice
        self.had_backward = False
        self.earlier: WeakSet[Pass] = before.earlier | {before} if before else WeakSet()  # those that are alive


class Forward:
    """One forward while it runs.   of_pass: what it leaves.   stack: units whose forward is running, one inside the other."""

    def __init__(self, before: Pass | None = None):
        self.of_pass = Pass(before)
        self.stack: list[Call] = []

    def begin(self, unit: Unit) -> None:
        self.stack.append(Call(unit, began=len(self.of_pass.calls)))

    def end(self, unit: Unit, counts: bool) -> None:
        """counts: is it a call to which the backward will come?"""
        call = next((call for call in reversed(self.stack) if call.unit is unit), None)
        if call is not None:
            self.stack.remove(call)
            self.of_pass.calls += [call] if counts else []


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
        self.recorded, self.so_far = self.so_far, []

    def next_after(self, unit: Unit) -> list[Unit]:
        """Note that `unit` computes now, and return the units expected next, nearest first."""
        here = len(self.so_far)
        self.so_far.append(unit)
        if self.recorded[here : here + 1] != [unit]:
            return []
        return self.recorded[here + 1 : here + 1 + self.depth]
