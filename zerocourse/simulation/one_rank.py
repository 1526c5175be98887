"""Trains two steps as rank r of N, and says what the rank held and sent in the second. What `zerocourse simulate` runs.

`simulate(job)` does it without the other ranks and without the memory: the stages run unchanged on fake tensors, and their
collectives are `comm.simulated`'s. `run_job(job, Comm())` does the same in real ranks, with real tensors. Both count with
the same ledger, and so their bytes can be compared: they are equal, to the byte (tests/simulation/test_simulation.py).

Which expert a token takes depends on values, which a fake tensor does not have: there all experts are equally busy.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from ..activations.checkpointing import checkpoint_blocks
from ..comm import Comm
from ..comm.simulated import SimulatedComm
from ..comm.torch_private import FakeTensorMode
from ..errors import BadInput
from ..formulas.units import integer
from ..measure.ledger import Ledger
from ..measure.watched_step import watched_step
from ..parallel.experts import expert_parallel
from ..zero.buffers.groups import Groups
from ..zero.extras import shard
from ..zero.options import ZeroOptions
from .clusters import Cluster, Network
from .shapes import find_model
from .virtual_time import Computing, SimulatedLink, VirtualClock


@dataclass(frozen=True)
class SimulatedJob:
    """What is trained, and how. Raises BadInput.

    model: its name (see `shapes`).   micro_batch: samples; seq: tokens of each, None: as many as the model takes.
    half: parameters and gradients in bf16, with fp32 master weights; False: all in fp32.
    recompute: activation checkpointing of every block.
    shard_ranks: how many ranks, such as those of a node, divide each buffer among them; the other groups of as many ranks
        hold replicas (hybrid sharding). Rank r is in group r // shard_ranks. None: all ranks divide it.
    aligned: parameters begin at multiples of 16 bytes, as where a model trains on a GPU (see `ZeroOptions`).
    experts_over: how many ranks have different experts of a layer; rank r is number r % experts_over of them, and the ranks that have the
        same ones divide their states. 1: every rank has all experts.
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
    shard_ranks: int | None = None
    aligned: bool = False
    experts_over: int = 1

    def __post_init__(self):
        integer(self.stage, "stage", 0, 3)
        for name in ("ranks", "micro_batch", "accumulation"):
            integer(getattr(self, name), name, 1)
        integer(self.rank, "rank", 0)
        most = find_model(self.model).tokens
        if self.rank >= self.ranks:
            raise BadInput(f"rank is {self.rank}: with {self.ranks} ranks it can be at most {self.ranks - 1}")
        if self.shard_ranks is not None and self.ranks % integer(self.shard_ranks, "shard_ranks", 1, self.ranks):
            raise BadInput(f"shard_ranks is {self.shard_ranks}: {self.ranks} ranks do not make whole groups of so many")
        if self.seq is not None and not 0 < self.seq <= most:
            raise BadInput(f"seq is {self.seq}: {self.model} takes 1 to {most} tokens")
        self.check_experts()

    def check_experts(self) -> None:
        over, experts = integer(self.experts_over, "experts_over", 1), find_model(self.model).experts
        if over > 1 and not experts:
            raise BadInput(f"experts_over is {over}: {self.model} has no experts")
        if over > 1 and (experts % over or self.ranks % over):
            raise BadInput(f"experts_over is {over}: it must divide the {experts} experts of a layer, and the {self.ranks} ranks")
        if over > 1 and self.shard_ranks is not None:
            raise BadInput(f"experts_over is {over}, and shard_ranks {self.shard_ranks}: experts stand beside buffers that all ranks divide, so "
                           "leave out one of them")


def simulate(job: SimulatedJob, like: str = "gloo") -> dict:
    """Two steps of `job.rank` on fake tensors. Returns what `run_job` returns.

    like: whose memory collectives take, "gloo" or "nccl".
    """
    with FakeTensorMode():
        groups = simulated_groups(job, like)
        return run_job(job, groups, exchange=simulated_exchange(job, like, groups))


def simulate_time(job: SimulatedJob, cluster: Cluster, like: str = "nccl") -> dict:
    """The same on a cluster, in its time. Returns in addition, in seconds of the second step: step_seconds, and of these
    compute_seconds and exposed_seconds, in which the rank stood still; wire_seconds, in which its link was busy; flops of the
    rank, and tokens_per_second of all. The events are in these seconds too. Raises BadInput where there are fewer cards than ranks.
    """
    cluster.check(job.ranks)
    clock = VirtualClock()
    wires = links_of(clock, cluster.network, job.experts_over)
    with FakeTensorMode(), Computing(clock, cluster.machine) as computing:
        begun = {}

        def begin() -> None:
            begun.update(now=clock.now, compute=computing.seconds, flops=computing.flops, wire=busy(wires))

        groups = simulated_groups(job, like, wires)
        result = run_job(job, groups, begin, simulated_exchange(job, like, groups, wires))
    seconds, compute = clock.now - begun["now"], computing.seconds - begun["compute"]
    tokens = job.ranks * job.micro_batch * job.accumulation * (job.seq or find_model(job.model).tokens)
    return result | {"step_seconds": seconds, "compute_seconds": compute, "exposed_seconds": seconds - compute,
                     "wire_seconds": busy(wires) - begun["wire"], "flops": computing.flops - begun["flops"],
                     "tokens_per_second": tokens / seconds}


def links_of(clock: VirtualClock, network: Network, experts_over: int = 1) -> tuple[SimulatedLink, ...]:
    """A rank's link to the ranks that divide buffers with it; and that to those in other nodes that hold the same slice.

    Where experts are cut: the same link again, as ranks with the same experts see it; and that to ranks with others, where tokens wait for
    nothing but tokens.
    """
    link = SimulatedLink(clock, network)
    if experts_over == 1:
        return link, SimulatedLink(clock, network.across())
    return link, SimulatedLink(clock, network.every(experts_over), link), SimulatedLink(clock, network)


def busy(wires: tuple[SimulatedLink, ...]) -> float:
    return sum(wire.busy for wire in wires)


def simulated_groups(job: SimulatedJob, like: str, wires=(None, None)) -> Groups:
    """The groups of the job's rank, in a world that is not there."""
    divide, over = job.shard_ranks or job.ranks, job.experts_over
    comm = SimulatedComm(job.rank % divide, divide, like, wires[0])
    if over > 1:
        return Groups(comm, experts=Groups(SimulatedComm(job.rank // over, job.ranks // over, like, wires[1], comm.recorder)))
    if divide == job.ranks:
        return Groups(comm)
    return Groups(comm, SimulatedComm(job.rank // divide, job.ranks // divide, like, wires[1], comm.recorder))


def simulated_exchange(job: SimulatedJob, like: str, groups: Groups, wires=(None, None, None)) -> Comm | None:
    """The ranks with which this one exchanges tokens; None where it has all experts."""
    over = job.experts_over
    return SimulatedComm(job.rank % over, over, like, wires[2], groups.shard.recorder) if over > 1 else None


def run_job(job: SimulatedJob, comm: Comm | Groups, begin: Callable[[], None] = lambda: None, exchange: Comm | None = None) -> dict:
    """Train two steps on this rank, and watch the second one, before which `begin` is called. Collective if `comm` is.

    comm: all ranks, or those that divide a buffer and those that hold replicas, where the job has `shard_ranks`; where it has
        `experts_over`, what `expert_groups` makes.   exchange: the ranks that have the other experts.
    Returns params, stage, ranks; what `watch_second_step` does, and replicas_bytes, how much of what is sent goes to ranks
    that hold the same slice; and the second step's events. One Comm may run several jobs, one after the other.
    """
    groups = comm if isinstance(comm, Groups) else Groups(comm)
    second = groups.shard.recorder.step + 1  # the Comm counts on from job to job
    model = make_model(job)
    about, before = describe(job, model), Counter()
    if exchange is not None:
        expert_parallel(model, exchange)
    optimizer = adamw(model)
    shard(model, optimizer, job.stage, comm=groups, param_dtype=torch.bfloat16 if job.half else None,
          options=ZeroOptions(aligned=job.aligned))
    forget_shapes(model)

    def begin_watched() -> None:
        before.update(sent_to_replicas(groups))
        begin()

    watched_by = model.zero.meter.watched_by
    counts = groups.shard if exchange is None else SentTogether([groups.shard, exchange, *(groups.experts.comms if groups.experts else [])])
    result = about | watch_second_step(job, model, optimizer, counts, begin_watched, watched_by)
    to_replicas = sent_to_replicas(groups) - before
    result |= {"sent_bytes": result["sent_bytes"] + to_replicas.total(), "sent": dict(Counter(result["sent"]) + to_replicas),
               "replicas_bytes": to_replicas.total(), "events": groups.shard.recorder.of_step(second)}
    del model, optimizer
    gc.collect()  # a stage and its hooks refer to each other
    return result


def sent_to_replicas(groups: Groups) -> Counter:
    return groups.replicate.sent if groups.replicate is not None else Counter()


class SentTogether:
    """The counters of several Comms as those of one."""

    def __init__(self, comms: list[Comm]):
        self.comms = comms

    @property
    def sent(self) -> Counter:
        return added(comm.sent for comm in self.comms)

    @property
    def elements(self) -> Counter:
        return added(comm.elements for comm in self.comms)

    @property
    def padding(self) -> int:
        return sum(comm.padding for comm in self.comms)

    @property
    def metadata(self) -> int:
        return sum(comm.metadata for comm in self.comms)


def added(counters: Iterable[Counter]) -> Counter:
    total = Counter()
    for each in counters:
        total.update(each)
    return total


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
