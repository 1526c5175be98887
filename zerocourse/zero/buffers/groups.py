"""The ranks that share a flat buffer: those that cut it among them, and those that hold the same slice of it.

With one group for both there is plain ZeRO: the buffer is cut among all ranks. With two there is hybrid sharding
(HSDP): the ranks of a node cut it, and the nodes hold replicas; gathers never leave the node.

    shard        ranks that hold different slices: gathers and reduce-scatters run here
    replicate    ranks that hold the same slice; the reduced slice is summed here once more; None: there are none
    norm         ranks that hold other parameters of the same model, as other stages of a pipeline do, or other parts of
                 matrices under tensor parallelism: a gradient's norm is over these groups, too
    experts      the groups of experts' buffers, where they were cut (see `parallel.experts`): ranks that have the same ones;
                 together with those that have others, they are the ranks of `shard`
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed import ProcessGroup

from ...comm import Comm, Finished, Handle
from ...layout.rankmap import Layout


@dataclass(frozen=True)
class Groups:
    """The two process groups of a buffer, as this rank sees them. To reach all ranks, a collective runs in one group and
    then in the other."""

    shard: Comm
    replicate: Comm | None = None
    norm: tuple[Comm, ...] = ()
    experts: "Groups | None" = None

    @classmethod
    def of(cls, shard: Comm | ProcessGroup | None = None, replicate: Comm | ProcessGroup | None = None) -> "Groups":
        """From process groups, or Comms over them. By default all ranks cut each buffer (without a process group: this one alone)."""
        shard = shard if isinstance(shard, Comm) else Comm(shard)
        if replicate is not None and not isinstance(replicate, Comm):
            replicate = Comm(replicate, recorder=shard.recorder)
        return cls(shard, replicate)

    def of_params(self, params: Iterable[nn.Parameter]) -> "Groups":
        """Those of a buffer with these parameters, which are all of experts, or none is."""
        return self.experts or self if any(hasattr(param, "expert_comm") for param in params) else self

    @property
    def size(self) -> int:
        """Ranks in all: gradients are averaged over so many."""
        return self.shard.world_size * (self.replicate.world_size if self.replicate else 1)

    @property
    def comms(self) -> list[Comm]:
        return [comm for comm in (self.shard, self.replicate) if comm is not None]

    def metadata_device(self, device: torch.device) -> torch.device:
        """Where a small message lies that a stage on this device sends: on the host, because to read one on a GPU waits for all
        that it still computes. A group of NCCL alone takes nothing from the host."""
        on_host = all("gloo" in comm.backends or not comm.peers for comm in self.comms)
        return torch.device("cpu") if on_host else device

    def on_any_rank(self, flags: list[bool], device: torch.device) -> list[bool]:
        """Which of these flags are true on any rank."""
        for comm in self.comms:
            flags = comm.on_any_rank(flags, device)
        return flags

    def start_max(self, values: list[int], device: torch.device, name: str) -> Callable[[], list[int]]:
        """Start to find the largest of each of these integers over all ranks. To be called for them."""
        read = self.shard.start_max(values, device, name)
        return read if self.replicate is None else lambda: self.replicate.start_max(read(), device, name)()

    def broadcast(self, values: torch.Tensor, name: str) -> None:
        """The first rank's values on all ranks, in place."""
        for comm in reversed(self.comms):
            comm.broadcast(values, name)

    def broadcast_together(self, tensors: list[torch.Tensor], name: str) -> None:
        """The first rank's values of all these tensors on all ranks, in place: one message for each dtype."""
        kinds: dict[torch.dtype, list[torch.Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault(tensor.dtype, []).append(tensor.detach())
        for of_kind in kinds.values():
            flat = torch.cat([tensor.reshape(-1) for tensor in of_kind])
            self.broadcast(flat, name)
            for tensor, values in zip(of_kind, flat.split([tensor.numel() for tensor in of_kind]), strict=True):
                tensor.copy_(values.view(tensor.shape))

    def all_gather_object(self, thing: object) -> list:
        """Every rank's object (anything that JSON can hold)."""
        things = self.shard.all_gather_object(thing)
        return things if self.replicate is None else sum(self.replicate.all_gather_object(things), [])

    def sum_replicas(self, slice: torch.Tensor, name: str) -> Handle | None:
        """Start adding up the replicas of a reduced slice (own,), in place; None where there are none.
        2 (own) (R - 1)/R elements, for R replicas."""
        if self.replicate is None or not self.replicate.peers:
            return None
        if not slice.numel():
            return Finished().then(Finished)
        layout = Layout.split(slice.numel(), self.replicate.world_size)
        part = slice[layout.slice(self.replicate.rank)]
        reduced = self.replicate.reduce_scatter(slice, layout, name, into=part)
        return reduced.then(lambda: self.replicate.all_gather(slice, layout, name))
