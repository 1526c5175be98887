"""Staging buffers: a fixed number of pieces of memory through which all tensors pass on their way to and from the disk.
They communicate nothing.
"""

import threading

import torch

from ...errors import BadInput
from ..host_link import LIMIT_SECONDS
from ..link_transfer import TransferError
from ..tiers import Tier
from .aligned import aligned_empty, whole_blocks

POISON = 0xFF  # a byte of which any floating-point number is NaN


class StagingBuffers:
    """At most `count` buffers of `nbytes` bytes each, in which tensors wait on their way to and from the disk.

    limit: seconds that `take` may wait.   tier: whose memory they are (see `Tier.adopt`).
    locked_for: the GPU that copies out of them (see `aligned`).
    poison: fill a buffer with NaN when it is given back, so that who still uses it is noticed.
    in_flight, peak: how many are taken now, and at most so far.
    """

    def __init__(self, count: int, nbytes: int, limit: float = LIMIT_SECONDS, tier: Tier | None = None,
                 poison: bool = False, locked_for: torch.device | None = None):
        if count < 1:
            raise BadInput(f"the number of staging buffers is {count}: it must be at least 1")
        self.count, self.nbytes, self.limit, self.tier, self.poison = count, whole_blocks(nbytes), limit, tier, poison
        self.locked_for, self.peak = locked_for, 0
        self._free: list[torch.Tensor] = []
        self._holders: dict[int, tuple[torch.Tensor, str]] = {}  # by address
        self._changed = threading.Condition()

    @property
    def in_flight(self) -> int:
        return len(self._holders)

    @property
    def memory(self) -> list[torch.Tensor]:
        """All buffers that there are, free or taken."""
        return [*self._free, *(buffer for buffer, _ in self._holders.values())]

    def take(self, holder: str) -> torch.Tensor:
        """(nbytes,) uint8, its content undefined; waits until one is free. Raises TransferError, with who holds them.

        While the caller waits, somebody else must give one back: the thread that reads or writes (`then=` of
        `Disk.write`), or another one that computes.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._holders) < self.count, self.limit):
                held = ", ".join(name for _, name in self._holders.values())
                raise TransferError(f"{holder} has waited {self.limit:g} s for one of {self.count} staging buffers, held by "
                                    f"{held}: give them back sooner, or have more of them")
            buffer = self._free.pop() if self._free else self._new()
            self._holders[buffer.data_ptr()] = buffer, holder
            self.peak = max(self.peak, len(self._holders))
        return buffer

    def _new(self) -> torch.Tensor:
        buffer = aligned_empty(self.nbytes, torch.uint8, self.locked_for)
        if self.tier is not None:
            self.tier.adopt(buffer)
        return buffer

    def give(self, view: torch.Tensor) -> None:
        """Give back the buffer, any view of it, which nothing may use any more. Raises BadInput if it is not taken."""
        with self._changed:
            buffer, _ = self._holders.get(view.untyped_storage().data_ptr(), (None, ""))
            if buffer is None:
                raise BadInput("a staging buffer is given back that is not taken: give each back once")
            if self.poison:
                buffer.fill_(POISON)
            del self._holders[buffer.data_ptr()]
            self._free.append(buffer)
            self._changed.notify()
