"""The checks in order: first what everything else stands on, then what a user meets first, last what only tells how fast."""

from collections.abc import Callable
from dataclasses import dataclass

from . import experts_and_server, kernels_compiled, memory, one_gpu, two_gpus, whole_programs
from .check_record import Record


@dataclass(frozen=True)
class GpuCheck:
    """`run(record)`, what it needs, and how long it may take.

    seconds: after which its process is ended.   gpus: how many it needs; it sees no more, so two ranks share one. 0: it takes all
    that there are.   rehearsed: whether it can run on a CPU, too.
    """

    run: Callable[[Record], None]
    seconds: int
    gpus: int = 1
    rehearsed: bool = True


CHECKS = {
    "machine": GpuCheck(one_gpu.machine, 90, gpus=0),
    "one_rank_sum": GpuCheck(one_gpu.one_rank_sum, 60),
    "one_rank": GpuCheck(one_gpu.one_rank, 120),
    "shared_gpu": GpuCheck(one_gpu.shared_gpu, 240),
    "values": GpuCheck(one_gpu.values, 60),
    "nccl_stages": GpuCheck(two_gpus.stages, 180, gpus=2),
    "nccl_unequal_slices": GpuCheck(two_gpus.unequal_slices, 120, gpus=2),
    "nccl_ties": GpuCheck(two_gpus.ties, 120, gpus=2),
    "nccl_pipelines": GpuCheck(two_gpus.pipelines, 180, gpus=2),
    "nccl_tensors": GpuCheck(two_gpus.tensors, 90, gpus=2),
    "nccl_sequences": GpuCheck(two_gpus.sequences, 90, gpus=2),
    "nccl_killed_rank": GpuCheck(two_gpus.killed_rank, 120, gpus=2),
    "tour": GpuCheck(whole_programs.tour, 300, gpus=0),
    "ledger": GpuCheck(memory.ledger, 60),
    "engine": GpuCheck(whole_programs.engine, 90),
    "kernels": GpuCheck(kernels_compiled.kernels, 180, rehearsed=False),
    "head_and_attention": GpuCheck(kernels_compiled.head_and_attention, 180, rehearsed=False),
    "experts": GpuCheck(experts_and_server.experts, 90),
    "server": GpuCheck(experts_and_server.server, 90),
    "host_offload": GpuCheck(memory.host_offload, 240),
    "delayed_offload": GpuCheck(memory.delayed_offload, 120),
    "disk": GpuCheck(memory.disk, 120),
    "checkpoints": GpuCheck(one_gpu.checkpoints, 120),
    "activations": GpuCheck(memory.activations, 90),
    "bandwidth": GpuCheck(kernels_compiled.bandwidth, 180, rehearsed=False),
    "speed": GpuCheck(whole_programs.speed, 120),
    "trace": GpuCheck(whole_programs.trace, 120),
}
