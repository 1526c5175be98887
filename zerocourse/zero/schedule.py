"""The order of units: in which a backward reduces and visits them, and what to gather while one computes. It communicates
nothing.

All ranks must issue the same collectives in the same order, whatever the model does on one of them. So the order never
follows the gradients that happen to arrive. A forward notes the units as they run, which is the same on all ranks, and
its backward goes through them in reverse. If unit A runs, then B, then A again, gradients are finished in the order B, A,
because A's are complete only after its first run; but the backward comes to A first, and then to B. If unit B runs inside
of A it is the same, because A may have used parameters before it called B.
"""

from .unit import Unit


class Pass:
    """One forward with gradients, and where its backward is. Several may be alive at once, as in a pipeline."""

    def __init__(self):
        self.calls: list[Unit] = []  # in the order in which their forwards ended; a unit that runs twice is there twice
        self.begun: dict[Unit, None] = {}  # in the order in which their first forwards began
        self.ran: set[Unit] = set()
        self.repeated: set[Unit] = set()  # units that ran more than once
        self.containers: set[Unit] = set()  # units whose forward contained another unit's
        self.had_backward = False
        self.ahead: list[Unit] = []  # units that the backward has still to visit, the next one first
        self.unvisited: set[Unit] = set()  # the same units, for a quick `in`

    def note(self, unit: Unit, inside: list[Unit]) -> None:
        """The unit has run, inside of those, the outermost first."""
        self.calls.append(unit)
        self.begun |= dict.fromkeys([*inside, unit])
        (self.repeated if unit in self.ran else self.ran).add(unit)
        self.containers.update(inside)

    @property
    def order(self) -> list[Unit]:
        """The units in the order in which their gradients are finished: that in which their first calls began, reversed."""
        return [unit for unit in reversed(self.begun) if unit in self.ran]  # a unit whose forward failed is left out

    def begin_visits(self) -> None:
        """The backward comes to each unit once, where its last call was."""
        self.ahead = list(dict.fromkeys(reversed(self.calls)))
        self.unvisited = set(self.ahead)

    def next_visit(self) -> Unit:
        """The unit that the backward visits now."""
        unit = self.ahead.pop(0)
        self.unvisited.remove(unit)
        return unit


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
