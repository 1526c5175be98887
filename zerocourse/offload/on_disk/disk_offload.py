"""ZeRO-Infinity: optimizer states, master weights and perhaps parameters on the disk, read and written at each step.

    offload = DiskOffload("/fast/scratch")
    model, optimizer = zerocourse.shard(model, optimizer, stage=2, offload=offload)

Forward, backward and link are a `HostOffload`'s. The step goes buffer by buffer: while one is updated on the host, the
next ones are read and the last ones are written. So the host holds, however many flat buffers there are,

    buffers x (the largest flat buffer's master weights and states: with Adam 12 bytes an element of this rank's slice)
    + the gradients of the step, in their own dtype, and step counters
    + for one buffer at a time: its gradient in fp32, the optimizer's temporary tensors, in the first step its new states

With parameters on the disk, each gather of stage 3 begins by reading this rank's slice: as far ahead as stage 3
gathers, in the order that it has recorded.
Source: Rajbhandari et al. 2021, arXiv 2104.07857.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch.optim import Optimizer

from ...comm import Chain, Comm, Handle
from ...errors import BadInput
from ...measure import storages, tier_registry
from ...zero.ddp import StageOps
from ...zero.optimizer import is_seen_stepping
from ..host_link import HostLink
from ..host_offload import HostOffload
from ..tiers import Tier
from .disk import Disk
from .disk_block import PARAMS
from .disk_buffer import DiskBuffer
from .staging import StagingBuffers

LEAST_BUFFERS = 2  # one is stepped while another is read or written


class DiskOffload(HostOffload):
    """What `shard(offload=...)` takes; one for each call of it. Stages 1 to 3.

    folder: on the disk; each rank makes a folder of its own in it, which ends with the offload (see `Disk`).
    parameters: the slices of the parameters too (stage 3).   buffers: how many blocks are in memory at most.
    host_budget, disk_budget: of the tiers, in bytes or as "2GiB".
    rate, disk_rate: bytes per second each way, where link and disk are simulated.
    link, tier, disk: in place of new ones.   delay_after: not with the disk.
    poison: fill each staging buffer with NaN when it is given back, so that who still uses it is noticed.
    """

    def __init__(self, folder: str | Path | None = None, parameters: bool = False, buffers: int = 4,
                 host_budget: int | str | None = None, disk_budget: int | str | None = None, rate: float | None = None,
                 disk_rate: float | None = None, pin_memory: bool = True, link: HostLink | None = None,
                 tier: Tier | None = None, disk: Disk | None = None, poison: bool = False, delay_after: None = None):
        if buffers < LEAST_BUFFERS:
            raise BadInput(f"buffers is {buffers!r}: the disk needs at least {LEAST_BUFFERS} staging buffers, and 4 to read, "
                           "step and write at once")
        if delay_after is not None:
            raise BadInput(f"delay_after is {delay_after!r}: with the states on the disk a step cannot be delayed, so leave "
                           "it out, or offload to the host")
        if not storages.CAN_SWAP:
            raise BadInput(f"an offload to the disk needs a newer torch: {torch.__version__} cannot give a tensor other memory, so install "
                           "a later one, or offload to the host")
        if (folder is None) == (disk is None):
            raise BadInput("an offload to the disk takes either a folder or a Disk")
        super().__init__(host_budget, rate, pin_memory, parameters, link=link, tier=tier)
        self.disk = disk or Disk(folder, disk_budget, disk_rate)
        self.buffers, self.poison = buffers, poison
        self.staging: StagingBuffers | None = None  # from their first use on, when it is known how large they must be
        self.leaving: list[DiskBuffer] = []  # those that are being written, or read by the link, the oldest first
        self.coming: list[DiskBuffer] = []  # those whose parameters are on their way from the disk, the oldest first
        self.kept: DiskBuffer | None = None  # the last one that was used outside of a step: it may be used again
        self.waiting: deque[DiskBuffer] = deque()  # those that the present step has not begun to read
        self.ahead: deque[DiskBuffer] = deque()  # those that it has, ahead of their turns
        self.knows_states = False  # has a buffer been stepped, so that all staging buffers have their size?

    def __repr__(self) -> str:
        return f"DiskOffload(parameters={self.parameters}, buffers={self.buffers})"

    def buffer(self, *args, **kwargs) -> DiskBuffer:
        return DiskBuffer(self, *args, **kwargs)

    def ops(self, ops: StageOps) -> StageOps:
        ours = super().ops(ops)
        return replace(ours, unshard=self.read_and_gather) if self.parameters else ours

    def attach(self, stage) -> None:
        super().attach(stage)
        self.disk.recorder = stage.recorder

    def settle(self) -> None:
        """What was to be written is on the disk."""
        while self.leaving:
            self.finish_leaving(self.leaving[0])

    # -- the step -----------------------------------------------------------------------------------------------------

    def turns(self, flats: list[DiskBuffer], optimizer: Optimizer) -> Iterator[DiskBuffer]:
        """Each buffer in its turn, its states in memory; they are written when the next one's turn comes."""
        if is_seen_stepping(optimizer):
            raise BadInput(f"{type(optimizer).__name__} is not torch's own, or has hooks, and so must step all parameters at "
                           "once: with the states on the disk they are stepped one buffer after the other, so take an "
                           "optimizer of torch.optim without step hooks, offload to the host, or say steps_in_parts = True in "
                           "the optimizer's class if several calls of its step may be one")
        waiting = self.waiting = deque(flats)
        try:
            for flat in flats:
                while waiting and (not self.ahead or self.has_room):
                    self.ahead.append(waiting.popleft())
                    self.fetch(self.ahead[-1], *self.ahead[-1].files_of_a_step)
                self.ahead.popleft()
                flat.block.wait()
                yield flat
                self.knows_states |= bool(flat.shard_params)
                flat.write()
                self.leaving.append(flat)
        finally:
            self.ahead.clear()
            for flat in flats:  # an error has ended the step
                if flat not in self.leaving:
                    flat.block.abandon()

    def adopt_states(self, optimizer: Optimizer, flat: DiskBuffer) -> None:
        flat.take_states(optimizer)
        super().adopt_states(optimizer, flat)  # what has no place on the disk, such as step counters

    # -- staging buffers ----------------------------------------------------------------------------------------------

    def fetch(self, flat: DiskBuffer, *files: str) -> None:
        """Start reading files of a buffer, into a staging buffer."""
        self.finish_leaving(flat)
        if flat is self.kept:
            self.let_go()
        self.lend_to(flat)
        flat.block.read(*files)

    def lend_to(self, flat: DiskBuffer) -> None:
        """Memory for the buffer's block."""
        if flat.block.nbytes:
            flat.block.lend(self.free_buffer(flat), self.staging)

    def make_room(self, flat: DiskBuffer) -> None:
        """The buffer's block has grown, and the others may grow likewise: larger staging buffers in place of the old ones."""
        if self.largest_block(flat) > self.staging.nbytes:
            while self.kept or self.leaving or self.coming or self.ahead:
                self.free_one()
            flat.block.move(self.free_buffer(flat), self.staging)
        flat.block.make_tensors()

    def largest_block(self, flat: DiskBuffer) -> int:
        """Bytes of the largest block, if all have the states of this buffer."""
        return max(each.nbytes_with(flat.states) for each in self.stage.flats)

    def free_buffer(self, flat: DiskBuffer) -> torch.Tensor:
        """A staging buffer. Waits until there is one."""
        nbytes = self.largest_block(flat)
        if self.staging is None or nbytes > self.staging.nbytes:
            self.staging = StagingBuffers(self.buffers, nbytes, tier=self.tier, poison=self.poison,
                                          locked_for=flat.full.device if self.tier.pin and flat.full.is_cuda else None)
        while self.staging.in_flight == self.staging.count:
            self.free_one()
        with tier_registry.taking(self.tier):
            return self.staging.take(flat.name)

    def free_one(self) -> None:
        """Get a staging buffer free, best one that nobody needs any more."""
        if self.kept is not None:
            self.let_go()
        elif self.leaving:
            self.finish_leaving(self.leaving[0])
        elif self.coming:
            self.land(self.coming[0])
        elif self.ahead:
            self.ahead[-1].block.abandon()
            self.waiting.appendleft(self.ahead.pop())  # to be read again
        else:
            raise BadInput(f"all {self.buffers} staging buffers are in use: make DiskOffload(buffers=...) larger")

    @property
    def has_room(self) -> bool:
        """Is a staging buffer free to read ahead?"""
        for flat in [flat for flat in self.leaving if flat.has_left]:
            self.finish_leaving(flat)
        return self.knows_states and self.staging is not None and self.staging.in_flight < self.staging.count

    def finish_leaving(self, flat: DiskBuffer) -> None:
        if flat in self.leaving:
            self.leaving.remove(flat)
            flat.finish_leaving()

    @property
    def staging_memory(self) -> list[torch.Tensor]:
        return [] if self.staging is None else self.staging.memory

    # -- parameters on the disk ---------------------------------------------------------------------------------------

    def read_and_gather(self, flat: DiskBuffer, comm: Comm) -> Handle:
        """Stage 3 with parameters on the disk: a slice is read while the units before compute; `wait` sends it up, and gathers it."""
        flat.storage.allocate()
        self.fetch(flat, PARAMS)
        self.coming.append(flat)
        return Chain(None, partial(self.land, flat)).then(lambda: comm.all_gather(flat.full, flat.layout, flat.name))

    def land(self, flat: DiskBuffer) -> None:
        """If the slice is coming: it is in its place in `full`, and the staging buffer is free again as soon as the link has read it."""
        if flat not in self.coming:
            return
        self.coming.remove(flat)
        try:
            flat.block.wait()
            flat.start_raise().wait()
        except BaseException:
            flat.block.abandon()
            raise
        self.leaving.append(flat)
        if flat.has_left:  # on a GPU the staging buffer is read until the copy is over, for which the next taker waits
            self.finish_leaving(flat)

    # -- outside of a step --------------------------------------------------------------------------------------------

    def bring(self, flat: DiskBuffer) -> None:
        """All of a buffer's block is in memory when this returns."""
        self.land(flat)
        if flat is self.kept:
            self.kept = None
        elif not flat.block.has_memory or flat in self.leaving:
            self.fetch(flat, *flat.block.files)
            try:
                flat.block.wait()
            except BaseException:
                flat.block.abandon()
                raise

    def keep(self, flat: DiskBuffer) -> None:
        """It is not used any more, unless it is the one that is used next, as in a checkpoint, which goes by tensors."""
        if self.kept is not None:
            self.let_go()
        self.kept = flat

    def let_go(self) -> None:
        self.kept, flat = None, self.kept
        flat.block.release()
