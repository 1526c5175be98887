"""torch's FSDP2 in place of our stages: the same job, the same two steps, watched by the same ledger.

It all-gathers each unit's parameters and reduce-scatters its gradients, and it frees what it has gathered.
`simulate_fsdp2(job)` runs one rank of it on fake tensors, in torch's own fake process group; `run_fsdp2(job, mesh)`
runs it in real ranks. Both give the same bytes, to the byte (tests/simulation/test_simulated_fsdp2.py).

Source of the method: torch.distributed.fsdp.fully_shard and its store of fakes.
"""

import gc
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from ..comm.torch_private import FakeTensorMode, disable_current_modes, fake_store, fsdp_collectives, storage_use_count
from ..errors import BadInput
from ..zero.buffers.unit import cut_into_units
from .one_rank import SimulatedJob, adamw, describe, make_model, watch_second_step

AllGather, ReduceScatter = fsdp_collectives()
MOST_SECONDS = 1.0  # that gloo's thread is waited for


class SentByFsdp2:
    """What a rank sends in FSDP2's collectives, with the counters of `Comm`: N - 1 slices in each.

    FSDP2 cuts each parameter into N slices of its rows, and pads them to equal lengths. padding: bytes of that.
    """

    def __init__(self):
        self.sent, self.elements, self.padding, self.metadata = Counter(), Counter(), 0, 0

    def count(self, verb: str, real: int, whole: int, size: int) -> None:
        """real, whole: elements that the rank sends, without and with padding, of `size` bytes each."""
        self.elements[verb] += real
        self.sent[verb] += real * size
        self.padding += (whole - real) * size


class CountedAllGather(AllGather):
    """own: elements of the unit's parameters that this rank has."""

    def __init__(self, counts: SentByFsdp2, own: int):
        self.counts, self.own = counts, own

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        others = group.size() - 1
        self.counts.count("all_gather", others * self.own, others * input_tensor.numel(), input_tensor.element_size())
        with gloo_unseen(output_tensor, input_tensor):
            return super().__call__(output_tensor, input_tensor, group, async_op)


class CountedReduceScatter(ReduceScatter):
    """others: elements of the unit's parameters that the other ranks have."""

    def __init__(self, counts: SentByFsdp2, others: int):
        self.counts, self.others = counts, others

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        self.counts.count("reduce_scatter", self.others, input_tensor.numel() - output_tensor.numel(),
                          input_tensor.element_size())
        with gloo_unseen(output_tensor, input_tensor):
            return super().__call__(output_tensor, input_tensor, group, op, async_op)


@contextmanager
def gloo_unseen(*tensors: Tensor) -> Iterator[None]:
    """Inside, a collective completes on these tensors, and no ledger sees what gloo takes for it.

    gloo reduce-scatters a copy, which only gloo has, and its thread lets go of copy and tensors a moment after the
    collective is complete. A ledger would count these by luck, and a simulation has no gloo.
    """
    def uses() -> list[int]:
        return [count for tensor in tensors
                for count in (tensor._use_count(), storage_use_count(tensor.untyped_storage()._cdata))]

    before, limit = uses(), time.monotonic() + MOST_SECONDS
    with disable_current_modes():
        yield
    while any(now > then for now, then in zip(uses(), before, strict=True)) and time.monotonic() < limit:
        time.sleep(0.0001)


def shard_by_fsdp2(model: nn.Module, blocks: Iterable[nn.Module | list[nn.Module]], mesh: DeviceMesh,
                   keep: bool = False, half: bool = False) -> None:
    """Let FSDP2 shard `model` in place: each entry of `blocks` is a unit, and what is left is the root's.

    keep: parameters stay gathered from forward to backward.   half: it computes and reduces in bf16, and the slices of
    parameters and gradients stay in fp32.
    """
    options = {"mesh": mesh, "reshard_after_forward": not keep}
    if half:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for unit in (*blocks, model):
        fully_shard(unit, **options)


def count_sent(model: nn.Module) -> SentByFsdp2:
    """Count from now on what this rank sends for a model that FSDP2 has sharded. It has a unit for each module."""
    counts, of_units = SentByFsdp2(), set()
    units = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for unit in reversed(units):  # the root, which is around the others, comes last
        params = set(unit.parameters()) - of_units
        of_units |= params
        own, everything = sum(param.to_local().numel() for param in params), sum(map(torch.numel, params))
        unit.set_custom_all_gather(CountedAllGather(counts, own))
        unit.set_custom_reduce_scatter(CountedReduceScatter(counts, everything - own))
    return counts


def simulate_fsdp2(job: SimulatedJob) -> dict:
    """Two steps of `job.rank` under FSDP2 on fake tensors. Returns what `run_fsdp2` returns.

    Raises BadInput where a process group exists already: FSDP2 would use that one.
    """
    with fake_world(job.rank, job.ranks) as mesh, FakeTensorMode():
        return run_fsdp2(job, mesh)


def run_fsdp2(job: SimulatedJob, mesh: DeviceMesh) -> dict:
    """Train two steps under FSDP2 on this rank, and watch the second one. Collective, where the ranks of `mesh` are.

    Stage 3 frees parameters after forward; stage 2 keeps them until the backward (`reshard_after_forward=False`).
    Returns what `one_rank.run_job` does, without events. Raises BadInput for other stages.
    """
    if job.stage < 2:
        raise BadInput(f"stage is {job.stage}: FSDP2 shards parameters, so it must be 3, or 2 to keep them until the "
                       "backward")
    model = make_model(job)
    about = describe(job, model)
    blocks = [unit.module for unit in cut_into_units(model) if unit.module is not model]
    shard_by_fsdp2(model, blocks, mesh, keep=job.stage == 2, half=job.half)
    optimizer = adamw(model)
    result = about | watch_second_step(job, model, optimizer, count_sent(model))
    del model, optimizer
    gc.collect()  # FSDP2's units and their hooks refer to each other
    return result


@contextmanager
def fake_world(rank: int, ranks: int) -> Iterator[DeviceMesh]:
    """A process group of torch's that sends nothing, as rank `rank` of `ranks`."""
    if dist.is_initialized():
        raise BadInput("this process is in a process group, and FSDP2 is simulated in a fake one: call "
                       "torch.distributed.destroy_process_group() first, or simulate in another process")
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=fake_store())
    try:
        yield init_device_mesh("cpu", (ranks,))  # before any fake mode, because it reads its own tensor of ranks
    finally:
        dist.destroy_process_group()
