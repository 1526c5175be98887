"""Measures overlap: the same stage-3 step with overlap off and on, over a link slow enough to matter.

A step computes for C seconds, and its collectives take M seconds. One after the other they take C + M, and with perfect
overlap max(C, M). So the speed-up is at most (C + M) / max(C, M), which is 2 where C = M. No step can reach that,
because nothing can be computed before the first gather is complete, and nothing is left to compute during the reduction
of the last gradient. If these two together take e seconds, the bound is (C + M) / (e + max(C, M - e)). Here e is what
the collectives of the root and of the first block take once: the root is mostly an embedding, and looking up tokens
takes too little time to hide anything.

Every round measures four times one after the other, because a shared machine may be slower a second later: C (the
same step without communication), M (the same collectives without computing), the step without and the step with
overlap. Rounds in which other programs used the processor are sorted out, because overlap needs the core they took.
What is reported is one round, the middle one by its speed-up, so that its numbers fit together.

    result = over_limited_link()          # needs what `link.limited_link` needs
    result = recorded_trial()             # one that was kept, for machines that cannot have such a link

`python -m zerocourse.course.trials.overlap_trial` records another one in its place.
"""

import copy
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist

from ...comm import Chain, Comm, Handle, add_in_order
from ...comm.device_clock import finished
from ...formulas.time.step_time import speedup_bound
from ...launch.link import limit_here, limited_link
from ...launch.worker import progress
from ...layout.rankmap import Layout
from ...measure.recorded import Recorded
from ...models.gpt2 import GPTConfig, build_model
from ...zero.buffers.buffer import FlatBuffer
from ...zero.extras import shard

CONFIG = GPTConfig(8, 4, 128, block_size=128, vocab_size=256)
SEQUENCES = 24  # per rank and step, of block_size tokens: enough for the cores to be busy computing, not sending
QUIET = 0.1  # the largest share of the cores' time that other programs may use in a round


@dataclass(frozen=True)
class Round:
    """Times of one round in seconds, each of the slowest rank. Nothing can hide the `exposed` part of `communication`.

    others: the share of the machine's processor time that other programs used meanwhile.
    """

    compute: float
    communication: float
    exposed: float
    off: float
    on: float
    others: float = 0.0

    @property
    def speedup(self) -> float:
        return self.off / self.on

    @property
    def bound(self) -> float:
        """The largest speed-up, if everything overlaps."""
        return speedup_bound(self.compute, self.communication)

    @property
    def tight_bound(self) -> float:
        """The largest speed-up, if everything overlaps but the first gather and the last reduction."""
        return speedup_bound(self.compute, self.communication, self.exposed)

    @property
    def share(self) -> float:
        """The share of the possible gain that was reached: (speed-up - 1) / (tight bound - 1)."""
        return (self.speedup - 1) / (self.tight_bound - 1)


def over_limited_link(rounds: int = 11, ratio: float = 1.0, patience: float = 60, prefetch: int = 2, in_flight: int = 2,
                      config: GPTConfig = CONFIG, sequences: int = SEQUENCES) -> dict:
    """Measure on two nodes of one rank, over a link whose rate makes M about `ratio` × C. Returns `summary`'s result.

    rounds: the number of quiet rounds to wait for; after `patience` seconds, rounds of any kind count. The share of a
        single round is anything from 0.5 to 1.1 (two processes on a shared machine), but the middle one of 11 rounds
        differs little from run to run.
    prefetch, in_flight: the options of `shard` in the steps with overlap. With prefetch=1 the link may be idle from the
        end of a gather to the beginning of the next block. With 2 it has work then, which evens out blocks and ranks.
    The result also has `events`: those of the reported round's steps without and with overlap, by rank (see
    `events.Event`). A progress bar counts the rounds. Raises BadInput where there can be no limited link.
    """
    settings = {"prefetch": prefetch, "in_flight": in_flight}
    with limited_link(None) as link:
        nodes = link.launch(trial, rounds, ratio, patience, config, sequences, settings, quiet=True)
    ranks = [result for node in nodes for result in node]
    ranks.sort(key=lambda result: result["rank"])
    reported = summary(ranks[0]["rounds"])
    events = {mode: [result["events"][reported["round"]][mode] for result in ranks] for mode in ("off", "on")}
    return reported | {"rate_mbit": ranks[0]["rate_mbit"], "sent_bytes": ranks[0]["sent_bytes"], "events": events}


def of_rank_0() -> dict:
    """What `over_limited_link` returns, with the events of rank 0 alone, whose times begin with the step."""
    result = over_limited_link()
    result["events"] = {mode: ranks[:1] for mode, ranks in result["events"].items()}
    for events, in result["events"].values():
        begun = min(event["start"] for event in events)
        for event in events:
            event["start"], event["end"] = (round(event[edge] - begun, 4) for edge in ("start", "end"))
    return result


recorded_trial = Recorded(__file__, "recorded_trial", of_rank_0)


def summary(rounds: Sequence[Round]) -> dict:
    """The quiet round in the middle by speed-up: its seconds, speed-up, two bounds, share of the tighter one's gain.

    round: its number.   noisy: there were fewer than three quiet rounds, so that it is the middle one of all.
    """
    quiet = [index for index, each in enumerate(rounds) if each.others <= QUIET]
    noisy = len(quiet) < 3
    by_speedup = sorted(range(len(rounds)) if noisy else quiet, key=lambda index: rounds[index].speedup)
    middle = by_speedup[len(by_speedup) // 2]
    derived = {name: getattr(rounds[middle], name) for name in ("speedup", "bound", "tight_bound", "share")}
    return asdict(rounds[middle]) | derived | {"round": middle, "noisy": noisy,
                                               "rounds": [asdict(each) for each in rounds]}


def trial(rounds: int, ratio: float, patience: float, config: GPTConfig, sequences: int, settings: dict) -> dict:
    """What each rank does. Collective. Changes the rate of its node's link."""
    torch.manual_seed(dist.get_rank())
    tokens_BT = torch.randint(config.vocab_size, (sequences, config.block_size))
    model = build_model(config)
    modes = {"compute": OverlapRun(copy.deepcopy(model), tokens_BT, SilentComm()),
             "off": OverlapRun(copy.deepcopy(model), tokens_BT, WaitedComm(), prefetch=0),
             "on": OverlapRun(model, tokens_BT, Comm(), **settings)}
    comm = Comm()  # a separate one, so that measuring M leaves no events among those of a step
    for _ in range(3):  # the first step records the order of units, and the last one decides the rate
        sent_bytes = modes["on"].step()
        seconds = slowest(comm, modes["compute"].seconds())
    rate_mbit = sent_bytes * 8 / (ratio * seconds) / 1e6
    limit_here(rate_mbit)
    stage = modes["on"].model.zero
    ends = len(stage.units[0].flats) + len(stage.units[1].flats)  # of the root and the first block
    measured, events, until = [], [], time.monotonic() + patience
    while go_on(comm, measured, rounds, until):
        progress(len(measured), max(rounds, len(measured) + 1), what="rounds")
        busy = Busy()
        compute, off, on = (slowest(comm, modes[name].seconds()) for name in ("compute", "off", "on"))
        gathers, reductions = zip(*(collective_seconds(flat, comm) for flat in stage.flats), strict=True)
        communication, exposed = 2 * sum(gathers) + sum(reductions), sum(gathers[:ends]) + sum(reductions[:ends])
        communication, exposed = slowest(comm, communication), slowest(comm, exposed)
        measured.append(Round(compute, communication, exposed, off, on, busy.others(comm)))
        events.append({name: modes[name].last_events() for name in ("off", "on")})
    progress(len(measured), len(measured), what="rounds")
    return {"rank": comm.rank, "rounds": measured, "rate_mbit": rate_mbit, "sent_bytes": sent_bytes, "events": events}


class OverlapRun:
    """The model, which it takes over, under a stage with one way of communicating, ready to make steps."""

    def __init__(self, model: torch.nn.Module, tokens_BT: torch.Tensor, comm: Comm, stage: int = 3, **options):
        self.comm, self.tokens_BT = comm, tokens_BT
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        self.model, self.optimizer = shard(model, optimizer, stage, comm=comm, **options)

    def step(self) -> int:
        """One optimizer step; returns the bytes it sent."""
        before = sum(self.comm.sent.values()) + self.comm.padding
        self.optimizer.zero_grad()
        self.model(self.tokens_BT, self.tokens_BT).backward()
        self.optimizer.step()
        return sum(self.comm.sent.values()) + self.comm.padding - before

    def seconds(self) -> float:
        dist.barrier()
        begun = finished(self.model.zero.device)
        self.step()
        return finished(self.model.zero.device) - begun

    def last_events(self) -> list[dict]:
        recorder = self.comm.recorder
        return recorder.of_step(recorder.step - 1)


class Waited:
    """Without overlap: every collective is complete when it returns. To be mixed into a Comm."""

    def all_gather(self, *args, **kwargs) -> Handle:
        return self._waited(super().all_gather(*args, **kwargs))

    def reduce_scatter(self, *args, **kwargs) -> Handle:
        return self._waited(super().reduce_scatter(*args, **kwargs))

    def _waited(self, handle: Handle) -> Handle:
        handle.wait()
        return handle


class WaitedComm(Waited, Comm):
    """Real ranks without overlap."""


class SilentComm(Comm):
    """Without communication: gathers return what was gathered the first time, reductions this rank's own gradients."""

    def __init__(self):
        super().__init__()
        self.gathered: dict[str, torch.Tensor] = {}

    def all_gather(self, tensor: torch.Tensor, layout: Layout, unit: str) -> Handle:
        if unit in self.gathered:
            tensor.copy_(self.gathered[unit])
        else:
            super().all_gather(tensor, layout, unit).wait()
            self.gathered[unit] = tensor.clone()
        return Chain(None, lambda: None)

    def reduce_scatter(self, tensor: torch.Tensor, layout: Layout, unit: str, into=None, done=None) -> Handle:
        mine = tensor[layout.slice(self.rank)]

        def add() -> None:
            (done or bool)(add_in_order([mine, torch.zeros_like(mine)], into))

        return Chain(None, add)


def collective_seconds(flat: FlatBuffer, comm: Comm) -> tuple[float, float]:
    """The seconds that a gather and a reduction of a unit's flat buffer take by themselves."""
    buffer, times = torch.zeros(flat.layout.padded, dtype=flat.dtype), []
    for collective in (comm.all_gather, comm.reduce_scatter):
        dist.barrier()
        begun = finished(buffer.device)
        collective(buffer, flat.layout, flat.name).wait()
        times.append(finished(buffer.device) - begun)
    return tuple(times)


def go_on(comm: Comm, measured: Sequence[Round], rounds: int, until: float) -> bool:
    """Whether more rounds are needed: the same answer on every rank, although their clocks differ."""
    quiet = sum(each.others <= QUIET for each in measured)
    return quiet < rounds and (len(measured) < rounds or slowest(comm, time.monotonic() - until) < 0)


class Busy:
    """Measures the processor time that this machine and this rank use from now on."""

    def __init__(self):
        self.begun = self.now()

    @staticmethod
    def now() -> tuple[float, float, float]:
        """Seconds that the machine's cores spent in programs, that our process used, and on the clock."""
        with open("/proc/stat") as file:
            user, nice, system, _, _, _, _, steal = (int(ticks) for ticks in file.readline().split()[1:9])
        return (user + nice + system + steal) / os.sysconf("SC_CLK_TCK"), time.process_time(), time.perf_counter()

    def others(self, comm: Comm) -> float:
        """The share of the cores' time that went to processes other than the ranks. Collective."""
        machine, mine, seconds = (now - then for now, then in zip(self.now(), self.begun, strict=True))
        return max(0.0, slowest(comm, machine) - sum(comm.all_gather_object(mine))) / (seconds * os.cpu_count())


def slowest(comm: Comm, seconds: float) -> float:
    """The largest number of any rank. Collective."""
    return max(comm.all_gather_object(seconds))


if __name__ == "__main__":
    recorded_trial.renew()
