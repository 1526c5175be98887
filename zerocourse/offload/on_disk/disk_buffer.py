"""A flat buffer whose optimizer states and master weights lie on the disk. It reads and writes them around each step.

The tensors of `offloaded_buffer`, and where they are here (own: this rank's slice):

    master        (own,)  on the disk, and so are the optimizer's states: in memory from `DiskOffload.fetch` until they
                          are written again
    grad_shard    (own,)  as in an `OffloadedBuffer`: on the host, until the step has used it
    shard         (own,)  on the device; on the disk where parameters are offloaded too (stage 3), and then in fp32
                          training it is the master weights

An Adam step reads and writes 12 bytes for each element of the slice, rounded up to whole blocks of the disk.
Source: Rajbhandari et al. 2021, arXiv 2104.07857, section 5.2.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch.optim import Optimizer

from ...measure import tier_registry
from ...zero.optimizer import elementwise_states
from ..link_transfer import LinkTransfer
from ..offloaded_buffer import OffloadedBuffer
from .aligned import aligned_empty
from .disk_block import PARAMS, STATES, DiskBlock, Files, lay_out

MASTER, SHARD = "master weights", "parameter"  # what a tensor of the block is called


class DiskBuffer(OffloadedBuffer):
    """An `OffloadedBuffer` of a `DiskOffload`, which has the staging buffers and the disk."""

    def __init__(self, offload, *args, **kwargs):
        super().__init__(offload, *args, **kwargs)
        self.users = 0  # of `at_hand`, one inside the other
        self.placed: dict[tuple[int, str], torch.Tensor] = {}  # the states that lie in the block, by part and name

    # -- what lies where ----------------------------------------------------------------------------------------------

    def build(self, equalise) -> None:
        super().build(equalise)
        self.write()
        self.block.wait()
        self.block.release()

    def make_shard(self, exact: torch.Tensor) -> None:
        own = exact[self.own]
        self.block = DiskBlock(self.name, own.numel(), self.files_with({}, own.dtype), self.offload.disk, self.tier)
        if self.block.nbytes:  # memory of its own: how large staging buffers must be is not known yet
            with tier_registry.taking(self.tier):
                memory = aligned_empty(self.block.nbytes, torch.uint8)
            self.tier.adopt(memory)
            self.block.lend(memory)
        self.master = self.block.tensors[MASTER]
        if not self.shard_is_on_host:
            self.shard = self.full[self.own].clone() if self.shards_parameters else self.full[self.own]
        else:
            self.shard = self.block.tensors.get(SHARD, self.master)
        for tensor in self.block.tensors.values():
            tensor.copy_(own)

    def files_with(self, states: dict[str, torch.dtype], exact: torch.dtype) -> Files:
        """What lies in which file, with the optimizer's states of these names and dtypes."""
        files = {PARAMS: {}, STATES: {MASTER: exact} | states}
        if self.shard_is_on_host:
            files[PARAMS] = {SHARD: self.dtype} if exact is not self.dtype else {MASTER: files[STATES].pop(MASTER)}
        return {file: dtypes for file, dtypes in files.items() if dtypes}

    def nbytes_with(self, states: dict[str, torch.dtype]) -> int:
        """Bytes of the block, if it has these states too."""
        return lay_out(self.master.numel(), self.files_with(self.states | states, self.master.dtype))[-1]

    @property
    def states(self) -> dict[str, torch.dtype]:
        """The optimizer's states that have a place in the block."""
        return {key: dtype for key, dtype in self.block.files.get(STATES, {}).items() if key != MASTER}

    @property
    def files_of_a_step(self) -> list[str]:
        """What a step reads: not the parameters that the step makes out of the master weights."""
        return [file for file, dtypes in self.block.files.items() if SHARD not in dtypes]

    def parts_of(self, file: str) -> list[tuple[str, int]]:
        """(name, bytes) of all that lies in a file, in order."""
        parts, at = [], self.block.ranges[file].start
        for key, dtype in self.block.files[file].items():
            for where in sorted(self.layout.shard_ranges(self.own), key=lambda where: where.at):
                start = self.block.starts[key] + where.at * dtype.itemsize
                nbytes = (where.stop - where.start) * dtype.itemsize
                parts += [("", start - at), (f"{key} of {where.name}", nbytes)]
                at = start + nbytes
        return [(name, nbytes) for name, nbytes in parts if nbytes]

    def write(self) -> None:
        """Start writing all of the block."""
        self.block.write({file: self.parts_of(file) for file in self.block.files})

    @torch.no_grad()
    def take_states(self, optimizer: Optimizer) -> None:
        """The optimizer has made states, or has others than before: move them into the block, which grows if it has no
        place for them. The optimizer goes on with those in the block."""
        parts = [*self.shard_params.items()]
        found = {(index, key): value for index, (_, part) in enumerate(parts)
                 for key, value in elementwise_states(optimizer, part).items()}
        new = {place: value for place, value in found.items() if value is not self.placed.get(place)}
        if not new:
            return
        further = {key: value.dtype for (_, key), value in new.items() if key not in self.block.tensors}
        if further:
            self.block.add_states(further)
            self.offload.make_room(self)
        for (index, key), value in new.items():
            where, part = parts[index]
            place = self.shard_view_of(self.block.tensors[key], where)
            place.copy_(value)
            optimizer.state[part][key] = self.placed[index, key] = place

    # -- outside of a step --------------------------------------------------------------------------------------------

    @contextmanager
    def at_hand(self, writes: bool = False, optimizer: Optimizer | None = None) -> Iterator[None]:
        if not self.users:
            self.offload.bring(self)
        self.users += 1
        try:
            yield
            if writes:
                if optimizer is not None:
                    self.take_states(optimizer)
                self.write()
                self.block.wait()
        except BaseException:
            self.block.abandon()  # what is in memory may be half written
            raise
        finally:
            self.users -= 1
            if not self.users and self.block.has_memory:
                self.offload.keep(self)

    def round_masters(self) -> None:
        with self.at_hand(writes=self.shard_is_on_host):
            super().round_masters()
            self.wait_for_link()

    def take_written(self, was_written: bool) -> None:
        if was_written:
            with self.at_hand(writes=True):
                super().take_written(was_written)

    def keep_written(self) -> None:
        with self.at_hand(writes=True) if self.shard_is_on_host else nullcontext():
            super().keep_written()

    # -- in a step ----------------------------------------------------------------------------------------------------

    def wait_for_link(self) -> None:
        """The link reads nothing of the block any more: its memory may go."""
        for transfer in self.reading:
            transfer.wait_for_source()

    @property
    def reading(self) -> list[LinkTransfer]:
        """What goes up out of the block's memory."""
        return [transfer for transfer in (self.publishing, self.rising) if transfer is not None]

    @property
    def has_left(self) -> bool:
        return self.block.done and all(transfer.done for transfer in self.reading)

    def finish_leaving(self) -> None:
        """What was to be written is written: the block's memory is free. Raises DiskError."""
        try:
            self.block.wait()
        finally:
            self.wait_for_link()
            self.block.abandon()

    # -- what it holds ------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        held = super().tensors()
        on_device = [] if self.shard_is_on_host else [self.shard]
        return held | {"parameters": [self.full, *on_device], "optimizer": [self.master, *self.offload.staging_memory]}
