"""Overlap on trial: the same stage-3 step with overlap off and on, over a link slow enough to matter.

With C the seconds a step computes and M those its collectives take, one after the other needs C + M and perfect
overlap max(C, M): a speed-up of at most (C + M) / max(C, M), which is 2 where C = M. A step cannot reach that: nothing
can compute before the first gather is there, and after the last gradient nothing is left to hide its reduction behind.
With both exposed, e seconds together, the bound is (C + M) / (e + max(C, M - e)). Here e is what the root and the
first block take once: the root is mostly an embedding, behind whose look-up nothing hides.

Every round measures all four beside each other, because a shared machine is not the same machine a second later:
C by the same step with nobody to talk to, M by the same collectives with nothing to compute, then off, then on.
Rounds in which other programs used the processor are told apart: overlap needs the core that they took.

    result = over_limited_link()          # needs what `link.limited_link` needs
"""

import copy
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist

from ..comm import Comm, Handle, add_in_order
from ..launch.link import limit_here, limited_link
from ..models.gpt2 import GPTConfig, build_model
from ..layout.rankmap import Layout
from ..zero.shard import shard
from ..zero.buffer import FlatBuffer

CONFIG = GPTConfig(8, 4, 128, block_size=128, vocab_size=256)
SEQUENCES = 24  # a rank and step, of block_size tokens: so many that the cores compute, and are not busy sending bytes
QUIET = 0.1  # of the cores' time, used by others, at most


@dataclass(frozen=True)
class Round:
    """Seconds of one round, each the slowest rank's. `exposed` is the part of `communication` nothing can hide.

    others: the share of the machine's processor time that went to other programs meanwhile.
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
        """Of the speed-up, for perfect overlap."""
        return (self.compute + self.communication) / max(self.compute, self.communication)

    @property
    def tight_bound(self) -> float:
        """Of the speed-up, the first gather and the last reduction not hidden."""
        best = self.exposed + max(self.compute, self.communication - self.exposed)
        return (self.compute + self.communication) / best

    @property
    def share(self) -> float:
        """Of the tight bound's gain: (speed-up - 1) / (bound - 1)."""
        return (self.speedup - 1) / (self.tight_bound - 1)


def over_limited_link(rounds: int = 11, ratio: float = 1.0, patience: float = 60, prefetch: int = 2, in_flight: int = 2,
                      config: GPTConfig = CONFIG, sequences: int = SEQUENCES) -> dict:
    """Two nodes of one rank on a link whose rate makes M about `ratio` × C; see `summary` for what is returned.

    rounds: as many quiet ones, and after `patience` seconds as many of any kind. A round's share is anything from 0.5
        to 1.1 (two processes on a shared machine); the median of 11 differs little from run to run.
    prefetch, in_flight: what `shard` is told in the steps with overlap. With a prefetch of 1 the link may have
    nothing to do from the end of a gather to the next block; with 2 it has, which evens out blocks and ranks.
    `events`: what happened in the last step without and with overlap, by rank (see `events.Event`).
    Raises BadInput where there can be no limited link.
    """
    settings = {"prefetch": prefetch, "in_flight": in_flight}
    with limited_link(None) as link:
        nodes = link.launch(trial, rounds, ratio, patience, config, sequences, settings, quiet=True)
    ranks = [result for node in nodes for result in node]
    ranks.sort(key=lambda result: result["rank"])
    events = {mode: [result["events"][mode] for result in ranks] for mode in ("off", "on")}
    return summary(ranks[0]["rounds"]) | {"rate_mbit": ranks[0]["rate_mbit"], "sent_bytes": ranks[0]["sent_bytes"],
                                          "events": events}


def summary(rounds: Sequence[Round]) -> dict:
    """Medians over the quiet rounds: seconds of a step, speed-up, its two bounds, share of the tighter one's gain.

    `noisy`: there were fewer than three quiet rounds, so that these are the medians over all.
    """
    quiet = [each for each in rounds if each.others <= QUIET]
    noisy = len(quiet) < 3
    names = ("compute", "communication", "exposed", "off", "on", "speedup", "bound", "tight_bound", "share", "others")
    medians = {name: statistics.median(getattr(each, name) for each in (rounds if noisy else quiet)) for name in names}
    return medians | {"noisy": noisy, "rounds": [asdict(each) for each in rounds]}


def trial(rounds: int, ratio: float, patience: float, config: GPTConfig, sequences: int, settings: dict) -> dict:
    """What each rank does; collective. Changes the rate of the link it is on."""
    torch.manual_seed(dist.get_rank())
    tokens_BT = torch.randint(config.vocab_size, (sequences, config.block_size))
    model = build_model(config)
    modes = {"compute": OverlapRun(model, tokens_BT, SilentComm()),
             "off": OverlapRun(model, tokens_BT, WaitedComm(), prefetch=0),
             "on": OverlapRun(model, tokens_BT, Comm(), **settings)}
    comm = Comm()  # of its own, so that measuring M leaves no events among those of a step
    for _ in range(3):  # the order of units is known after the first step; the rate is chosen by the last one
        sent_bytes = modes["on"].step()
        seconds = slowest(comm, modes["compute"].seconds())
    rate_mbit = sent_bytes * 8 / (ratio * seconds) / 1e6
    limit_here(rate_mbit)
    stage = modes["on"].model.zero
    ends = len(stage.units[0].flats) + len(stage.units[1].flats)  # of the root and the first block
    measured, until = [], time.monotonic() + patience
    while go_on(comm, measured, rounds, until):
        busy = Busy()
        compute, off, on = (slowest(comm, modes[name].seconds()) for name in ("compute", "off", "on"))
        gathers, reductions = zip(*(talk(flat, comm) for flat in stage.flats), strict=True)
        communication, exposed = 2 * sum(gathers) + sum(reductions), sum(gathers[:ends]) + sum(reductions[:ends])
        communication, exposed = slowest(comm, communication), slowest(comm, exposed)
        measured.append(Round(compute, communication, exposed, off, on, busy.others(comm)))
    events = {name: modes[name].last_events() for name in ("off", "on")}
    return {"rank": comm.rank, "rounds": measured, "rate_mbit": rate_mbit, "sent_bytes": sent_bytes, "events": events}


class OverlapRun:
    """The model under stage 3 with one way of communicating, ready to make steps."""

    def __init__(self, model: torch.nn.Module, tokens_BT: torch.Tensor, comm: Comm, **options):
        self.comm, self.tokens_BT = comm, tokens_BT
        model = copy.deepcopy(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        self.model, self.optimizer = shard(model, optimizer, stage=3, comm=comm, **options)

    def step(self) -> int:
        """One optimizer step; returns the bytes it sent."""
        before = sum(self.comm.sent.values()) + self.comm.padding
        self.optimizer.zero_grad()
        self.model(self.tokens_BT, self.tokens_BT).backward()
        self.optimizer.step()
        return sum(self.comm.sent.values()) + self.comm.padding - before

    def seconds(self) -> float:
        dist.barrier()
        begun = time.perf_counter()
        self.step()
        return time.perf_counter() - begun

    def last_events(self) -> list[dict]:
        recorder = self.comm.recorder
        return recorder.of_step(recorder.step - 1)


class WaitedComm(Comm):
    """Without overlap: every collective is complete when it returns."""

    def all_gather(self, *args, **kwargs) -> Handle:
        return self._waited(super().all_gather(*args, **kwargs))

    def reduce_scatter(self, *args, **kwargs) -> Handle:
        return self._waited(super().reduce_scatter(*args, **kwargs))

    def _waited(self, handle: Handle) -> Handle:
        handle.wait()
        return handle


class SilentComm(Comm):
    """With nobody to talk to: rows heard once come back from memory, and nothing is added to this rank's gradients."""

    def __init__(self):
        super().__init__()
        self.heard: dict[str, torch.Tensor] = {}

    def all_gather(self, row: torch.Tensor, layout: Layout, unit: str) -> "SilentHandle":
        if unit in self.heard:
            row.copy_(self.heard[unit])
        else:
            super().all_gather(row, layout, unit).wait()
            self.heard[unit] = row.clone()
        return SilentHandle()

    def reduce_scatter(self, row: torch.Tensor, layout: Layout, unit: str, into=None, done=None) -> "SilentHandle":
        mine = row[layout.slice(self.rank)]
        return SilentHandle(lambda: (done or bool)(add_in_order([mine, torch.zeros_like(mine)], into)))


class SilentHandle:
    """A handle of nothing: what follows the collective happens when it is waited for."""

    def __init__(self, finish: Callable[[], object] = lambda: None):
        self.finish = finish

    def wait(self) -> None:
        finish, self.finish = self.finish, lambda: None
        finish()


def talk(flat: FlatBuffer, comm: Comm) -> tuple[float, float]:
    """Seconds that a gather and a reduction of the row take by themselves."""
    row, times = torch.zeros(flat.layout.padded, dtype=flat.dtype), []
    for collective in (comm.all_gather, comm.reduce_scatter):
        dist.barrier()
        begun = time.perf_counter()
        collective(row, flat.layout, flat.name).wait()
        times.append(time.perf_counter() - begun)
    return tuple(times)


def go_on(comm: Comm, measured: Sequence[Round], rounds: int, until: float) -> bool:
    """Are more rounds needed? The same answer on every rank, though their clocks differ."""
    quiet = sum(each.others <= QUIET for each in measured)
    return quiet < rounds and (len(measured) < rounds or slowest(comm, time.monotonic() - until) < 0)


class Busy:
    """Processor time of this machine and of this rank, from now on."""

    def __init__(self):
        self.begun = self.now()

    @staticmethod
    def now() -> tuple[float, float, float]:
        """Seconds of the machine's cores in programs (neither idle nor in interrupts), of our process, of the clock."""
        with open("/proc/stat") as file:
            user, nice, system, _, _, _, _, steal = (int(ticks) for ticks in file.readline().split()[1:9])
        return (user + nice + system + steal) / os.sysconf("SC_CLK_TCK"), time.process_time(), time.perf_counter()

    def others(self, comm: Comm) -> float:
        """The share of the cores' time that went to processes other than the ranks. Collective."""
        machine, mine, seconds = (now - then for now, then in zip(self.now(), self.begun, strict=True))
        return max(0.0, slowest(comm, machine) - sum(comm.all_gather_object(mine))) / (seconds * os.cpu_count())


def slowest(comm: Comm, seconds: float) -> float:
    """The largest of the ranks' numbers."""
    return max(comm.all_gather_object(seconds))
