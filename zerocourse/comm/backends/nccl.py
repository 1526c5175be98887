"""Collectives of tensors on GPUs: NCCL's own where each rank has a GPU, gloo through host memory where ranks share one.

NCCL chooses the order of additions itself, and it has no tags. Ranks that issue different collectives hang or mix up
their data, until NCCL's watchdog ends the process. Waiting for NCCL stops the GPU's stream and never the host.
"""

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise

import torch
import torch.distributed as dist

from ...errors import BadInput
from ...layout.rankmap import Layout
from .gloo import Gloo, Transfer

OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
# Those that it can add up. Others, such as int16 and complex numbers, only travel, as bytes.
DTYPES = {torch.int8, torch.uint8, torch.bool, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64}


class Nccl(Gloo):
    """NCCL's own collectives. It has none for slices of different lengths, which are exchanged as on gloo.

    Raises BadInput where numbers of a dtype that it does not have are to be added up.
    """

    def all_gather(self, tensor: torch.Tensor, layout: Layout, call: str) -> Transfer:
        if not equal_slices(layout):
            return super().all_gather(tensor, layout, call)
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13
        mine = tensor[layout.slice(self.rank)]
        return Transfer([gather(carried(tensor), carried(mine), group=self.group, async_op=True)], nothing)

    def reduce_scatter(self, tensor: torch.Tensor, layout: Layout, into: torch.Tensor | None, call: str) -> Transfer:
        if not equal_slices(layout):
            return super().reduce_scatter(tensor, layout, into, call)
        check_adds_up(tensor.dtype, call)
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        summed = torch.empty_like(tensor[layout.slice(self.rank)])  # `into` may be a part of `tensor`, which NCCL reads
        return Transfer([scatter(summed, tensor, group=self.group, async_op=True)],
                        lambda: summed if into is None else into.copy_(summed))

    def all_to_all(self, rows: torch.Tensor, into: torch.Tensor, call: str) -> Transfer:
        return Transfer([dist.all_to_all_single(carried(into), carried(rows), group=self.group, async_op=True)], nothing)

    def received_bytes(self, tensor: torch.Tensor, layout: Layout) -> int:
        return tensor[layout.slice(self.rank)].nbytes if equal_slices(layout) else super().received_bytes(tensor, layout)

    def all_reduce(self, flat: torch.Tensor, op: str, call: str) -> Transfer:
        check_adds_up(flat.dtype, call)
        return Transfer([dist.all_reduce(flat, OPS[op], self.group, async_op=True)], nothing)

    def broadcast(self, flat: torch.Tensor, call: str) -> Transfer:
        return Transfer([dist.broadcast(carried(flat), group=self.group, group_src=0, async_op=True)], nothing)

    def wait(self, works: list, timeout: timedelta) -> None:
        for work in works:
            work.wait()  # with a time, NCCL would stop the host until the GPU is done

    def post(self, messages: list[tuple[Callable, torch.Tensor, int, int]]) -> list:
        batch = [dist.P2POp(verb, carried(piece), group=self.group, tag=tag, group_peer=peer)
                 for verb, piece, peer, tag in messages]
        return dist.batch_isend_irecv(batch) if batch else []


class StagedGloo(Gloo):
    """gloo through host memory, for ranks that share a GPU, because NCCL refuses two ranks on one GPU."""

    def exchange(self, call: str, sends: dict[int, torch.Tensor], receives: dict[int, torch.Tensor],
                 names: dict[tuple[int, int], str] | None = None) -> Transfer:
        copies = {tensor: tensor.to("cpu", copy=True) for tensor in sends.values()}  # one copy for all peers
        hosts = {peer: torch.empty_like(tensor, device="cpu") for peer, tensor in receives.items()}
        works, arrived = super().exchange(call, {peer: copies[tensor] for peer, tensor in sends.items()}, hosts, names)
        pairs = [(tensor, hosts[peer]) for peer, tensor in receives.items()]

        def bring_back() -> None:
            arrived()
            while pairs:
                tensor, host = pairs.pop()
                tensor.copy_(host)

        return Transfer(works, bring_back)


def carried(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or its bytes where NCCL does not have its dtype."""
    return tensor if tensor.dtype in DTYPES else tensor.view(torch.uint8)


def check_adds_up(dtype: torch.dtype, call: str) -> None:
    if dtype not in DTYPES:
        raise BadInput(f"NCCL cannot add up {dtype} ({call}): convert the tensor to one of "
                       f"{', '.join(sorted(str(each).removeprefix('torch.') for each in DTYPES))} first")


def equal_slices(layout: Layout) -> bool:
    """Whether the ranks' slices are equally long and not empty, as NCCL's collectives require."""
    if isinstance(layout.bounds, range):
        return True
    return layout.padded > 0 and len({end - begin for begin, end in pairwise(layout.bounds)}) == 1


def nothing() -> None:
    """For `finish`: when the work is complete, the result is already in place."""
