"""Trains two steps as rank r of N, and says what the rank held and sent in the second. What `zerocourse simulate` runs.

`simulate(job)` does it without the other ranks and without the memory: the stages run unchanged on fake tensors, and their
collectives are `comm.simulated`'s. `run_job(job, Comm())` does the same in real ranks, with real tensors. Both count with
the same ledger, and so their bytes can be compared: they are equal, to the byte (tests/test_simulation.py).
"""

import gc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ..activations.checkpointing import checkpoint_blocks
from ..comm import Comm
from ..comm.simulated import SimulatedComm
from ..errors import BadInput
from ..formulas.units import integer
from ..measure.ledger import Ledger
from ..measure.watched_step import watched_step
from ..zero.shard import shard
from .clusters import Cluster
from .shapes import find_model
from .virtual_time import Computing, VirtualClock, SimulatedLink


@dataclass(frozen=True)
class SimulatedJob:
    """What is trained, and how. Raises BadInput.

    model: its name (see `shapes`).   micro_batch: samples; seq: tokens of each, None: as many as the model takes.
    half: parameters and gradients in bf16, with fp32 master weights; False: all in fp32.
    recompute: activation checkpointing of every block.
    """

    model: str
    stage: int = 3
    ranks: int = 8
    rank: int = 0
    micro_batch: int = 1
    seq: int | None = None
    accumulation: int = 1
    half: bool = False
    recompute: bool = False

    def __post_init__(self):
        integer(self.stage, "stage", 0, 3)
        for name in ("ranks", "micro_batch", "accumulation"):
            integer(getattr(self, name), name, 1)
        integer(self.rank, "rank", 0)
        most = find_model(self.model).tokens
        if self.rank >= self.ranks:
            raise BadInput(f"rank is {self.rank}: with {self.ranks} ranks it can be at most {self.ranks - 1}")
        if self.seq is not None and not 0 < self.seq <= most:
            raise BadInput(f"seq is {self.seq}: {self.model} takes 1 to {most} tokens")


def simulate(job: SimulatedJob, like: str = "gloo") -> dict:
    """Two steps of `job.rank` on fake tensors. Returns what `run_job` returns.

    like: whose memory collectives take, "gloo" or "nccl".
    """
    with FakeTensorMode():
        return run_job(job, SimulatedComm(job.rank, job.ranks, like))


def simulate_time(job: SimulatedJob, cluster: Cluster, like: str = "nccl") -> dict:
    """The same on a cluster, in its time. Returns in addition, in seconds of the second step: step_seconds, and of these
    compute_seconds and exposed_seconds, in which the rank stood still; wire_seconds, in which its link was busy; flops of the
    rank, and tokens_per_second of all. The events are in these seconds too.
    """
    clock = VirtualClock()
    wire = SimulatedLink(clock, cluster.network)
    with FakeTensorMode(), Computing(clock, cluster.machine) as computing:
        comm = SimulatedComm(job.rank, job.ranks, like, wire)
        begun = {}

        def begin() -> None:
            begun.update(now=clock.now, compute=computing.seconds, flops=computing.flops, wire=wire.busy)

        result = run_job(job, comm, begin)
    seconds, compute = clock.now - begun["now"], computing.seconds - begun["compute"]
    tokens = job.ranks * job.micro_batch * job.accumulation * (job.seq or find_model(job.model).tokens)
    return result | {"step_seconds": seconds, "compute_seconds": compute, "exposed_seconds": seconds - compute,
                     "wire_seconds": wire.busy - begun["wire"], "flops": computing.flops - begun["flops"],
                     "tokens_per_second": tokens / seconds}


def run_job(job: SimulatedJob, comm: Comm, begin: Callable[[], None] = lambda: None) -> dict:
    """Train two steps on this rank, and watch the second one, before which `begin` is called. Collective if `comm` is.

    Returns params, stage, ranks; what `watch_second_step` does; and the second step's events.
    """
    model = make_model(job)
    about, optimizer = describe(job, model), adamw(model)
    shard(model, optimizer, job.stage, comm=comm, param_dtype=torch.bfloat16 if job.half else None)
    forget_shapes(model)
    result = about | watch_second_step(job, model, optimizer, comm, begin, model.zero.meter.watched_by)
    result["events"] = comm.recorder.of_step(1)
    del model, optimizer
    gc.collect()  # a stage and its hooks refer to each other
    return result


def make_model(job: SimulatedJob) -> nn.Module:
    model = find_model(job.model).make()
    if job.recompute:
        checkpoint_blocks(model)
    return model


def describe(job: SimulatedJob, model: nn.Module) -> dict[str, int]:
    """Of a model that is whole."""
    return {"params": sum(map(torch.numel, model.parameters())), "stage": job.stage, "ranks": job.ranks}


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def watch_second_step(job: SimulatedJob, model: nn.Module, optimizer: torch.optim.Optimizer, counts,
                      begin: Callable[[], None] = lambda: None, watched_by=lambda ledger: nullcontext()) -> dict:
    """Train two steps, and watch the second one, before which `begin` is called.

    counts: what is sent, with the counters of `Comm`.   watched_by(ledger): a context of that step.
    Returns, in bytes, parameters_bytes and optimizer_bytes after the step, gradients_bytes just before its update, their
    sum total_bytes, peak_bytes with all else that was alive, peak_kinds; sent_bytes, sent by verb, and padding_bytes, which
    are sent besides.
    """
    known = find_model(job.model)
    tokens_BT = torch.zeros(job.micro_batch, job.seq or known.tokens, dtype=torch.int64)
    step(model, optimizer, known.loss, tokens_BT, job.accumulation)
    before = counts.sent.copy()
    begin()
    with Ledger(model, optimizer) as ledger, watched_by(ledger):
        measured = watched_step(ledger, optimizer, counts,
                                lambda: step(model, optimizer, known.loss, tokens_BT, job.accumulation))
        kinds = asdict(ledger.at_peak)
    held = {name: measured[name] for name in ("parameters_bytes", "gradients_bytes", "optimizer_bytes")}
    return {**held, "total_bytes": sum(held.values()), "peak_bytes": measured["peak_bytes"], "peak_kinds": kinds,
            "sent_bytes": measured["sent_bytes"], "sent": dict(counts.sent - before),
            "padding_bytes": measured["padding_bytes"]}


def step(model: nn.Module, optimizer: torch.optim.Optimizer, loss_of, tokens_BT: Tensor, accumulation: int) -> None:
    stage = getattr(model, "zero", None)
    for number in range(accumulation):
        is_last = number == accumulation - 1
        with stage.backward_options(reduces=is_last, is_last=is_last) if stage is not None else nullcontext():
            (loss_of(model, tokens_BT) / accumulation).backward()
    optimizer.step()
    optimizer.zero_grad()


def forget_shapes(model: nn.Module) -> None:
    """A view of a fake tensor without memory gives it some: take that back from what stage 3 has freed."""
    for flat in model.zero.flats if model.zero.shards_parameters else ():
        if flat.storage.storage.device.type == "meta":
            flat.storage.storage.resize_(0)
