"""The backward of stage 3 as a walk over the units, in the reverse order of the forward. It communicates nothing.

To gather and free units, it is not enough to know which gradients are still to come: the parameters must be there before a
unit's backward computes, and may go when it has. When autograd comes to a unit, it has finished all units that ran later in
the forward. A unit that this rank skips, because its output was not used here, is visited all the same, on the way to the
next one: the other ranks gather it, and a gather takes all ranks.
"""

from collections.abc import Callable

from .schedule import Pass
from .unit import Unit


class Walk:
    """Where one backward is. enter(unit): the walk has come to the unit.   leave(unit): it is past it."""

    def __init__(self, enter: Callable[[Unit], None], leave: Callable[[Unit], None]):
        self.enter, self.leave = enter, leave
        self.passes: list[Pass] = []  # those that the backward goes through, the present one last
        self.entered: list[Unit] = []  # and not left yet
        self.exited: set[Unit] = set()

    def is_repeated(self, unit: Unit) -> bool:
        """Did the unit run more than once? Then only the end of the backward shows that it is finished."""
        return any(unit in each.repeated for each in self.passes)

    @property
    def has_units_ahead(self) -> bool:
        return any(each.ahead or each.repeated for each in self.passes)

    def begin_pass(self, of_pass: Pass) -> None:
        """Autograd goes from the last forward to the first, so the pass before is over."""
        if self.passes:
            self.finish_pass(self.passes[-1])
        of_pass.begin_visits()
        self.passes.append(of_pass)

    def come_to(self, of_pass: Pass, unit: Unit) -> None:
        """Visit the units that this rank has skipped, then this one. Nothing when it was visited before."""
        while unit in of_pass.unvisited:
            self._visit(of_pass.next_visit())

    def finish_pass(self, of_pass: Pass) -> None:
        """Visit the units that are left, up to the last trainable one: autograd never comes to those after it."""
        while any(flat.trainable for unit in of_pass.ahead for flat in unit.flats):
            self._visit(of_pass.next_visit())

    def _visit(self, unit: Unit) -> None:
        self.leave_all(but=unit)
        self.exited.discard(unit)  # it may have been left before, in a later forward's pass
        self.entered.append(unit)
        self.enter(unit)

    def leave_all(self, but: Unit | None = None) -> None:
        """Leave all units that were entered. Where the unit `but` comes next, those that contain others stay."""
        for unit in [unit for unit in self.entered if unit is not but]:
            if but is None or not any(unit in each.containers for each in self.passes):
                self.entered.remove(unit)
                if not self.is_repeated(unit):
                    self.exited.add(unit)
                self.leave(unit)

    def finish(self) -> None:
        """The backward is over: all units are left."""
        for each in self.passes:
            self.finish_pass(each)
        self.leave_all()
