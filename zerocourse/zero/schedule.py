"""Overlap: which units to gather while the present one computes. It communicates nothing.

The order of units is recorded on every pass and used on the next one. On the first backward, which has no past, the
forward is read from its end.
"""

from .unit import Unit


class Prefetcher:
    """Remembers the order of units in the last pass of each kind, and looks `depth` units ahead.

    depth: 0 is no overlap. With depth d at most d + 1 units (and the root) are gathered at a time.
    """

    def __init__(self, depth: int):
        self.depth = depth
        self._last: dict[str, list[Unit]] = {"forward": [], "backward": []}
        self._now: dict[str, list[Unit]] = {"forward": [], "backward": []}

    def start(self, kind: str) -> list[Unit]:
        """A new pass begins; what was recorded becomes the prediction. Returns the units to gather first."""
        if self._now[kind]:
            self._last[kind] = self._now[kind]
        elif kind == "backward" and not self._last[kind]:
            self._last[kind] = self._now["forward"][:1] + self._now["forward"][:0:-1]
        self._now[kind] = []
        return self._last[kind][: 1 + self.depth] if self.depth else []

    def next_after(self, unit: Unit, kind: str) -> list[Unit]:
        """Note that `unit` computes now, and return the units expected next, nearest first."""
        here = len(self._now[kind])
        self._now[kind].append(unit)
        if self._last[kind][here : here + 1] != [unit]:
            return []
        return self._last[kind][here + 1 : here + 1 + self.depth]
