"""The cost model on trial: how long a simulated step takes, beside how long it really took over a link of limited rate.

Two nodes of one rank each, joined by `limited_link`, train the model of `overlap_trial` at stages 1, 2 and 3, each with
and without overlap. The same six steps are then simulated, on a `Machine` and a `Network` that know nothing of them:

    flops, memory_rate    a product of matrices of the model's shape, and an addition of long vectors, timed alone
    scale                 by how much a step of stage 3 without communication took longer than these two rates say: it
                          stands for all that an operation costs besides its arithmetic and its traffic
    inside, latency       one collective of the longest buffer, and one of a single number, timed alone

So the model is told how fast the processor and the link are, each by itself, and has to say what becomes of the two
together: what waits, what is hidden, and what stands still. `error` is how far its answer is from the measured step.

Rounds are interleaved and sorted by noise as in `overlap_trial`, and every number is the median over the quiet rounds.

    result = against_limited_link()       # needs what `link.limited_link` needs
    result = recorded_cost()              # one that was kept

`python -m zerocourse.course.cost_trial` records another one in its place.
"""

import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from ..comm import Comm
from ..comm.simulated import SimulatedComm
from ..launch.link import limit_here, limited_link
from ..launch.worker import progress
from ..layout.rankmap import Layout
from ..models.gpt2 import GPTConfig, build_model
from ..simulation.clusters import Machine, Network
from ..simulation.virtual_time import Computing, SimulatedLink, VirtualClock
from .overlap_trial import CONFIG, QUIET, SEQUENCES, Busy, OverlapRun, SilentComm, Waited, WaitedComm, slowest

RECORDED = Path(__file__).with_name("recorded_cost.json")
MODES = [(stage, overlap) for stage in (1, 2, 3) for overlap in (False, True)]
OPTIONS = {False: {"prefetch": 0, "in_flight": 0}, True: {"prefetch": 2, "in_flight": 2}}


class WaitedSimulation(Waited, SimulatedComm):
    """Simulated ranks without overlap."""


def mode_name(stage: int, overlap: bool) -> str:
    return f"stage {stage}, {'overlap' if overlap else 'no overlap'}"


def against_limited_link(rounds: int = 7, patience: float = 120, config: GPTConfig = CONFIG, sequences: int = SEQUENCES) -> dict:
    """Measure and simulate. rounds, patience (seconds): as for `overlap_trial.over_limited_link`. Raises BadInput as it does.

    Returns machine (flops and memory_rate, after `scale`), network (rate in bytes a second, latency in seconds), scale,
    compute (seconds of a step alone), quiet and noisy (numbers of rounds), and modes: by name {measured, simulated: seconds,
    error: simulated / measured - 1}.
    """
    with limited_link(None) as link:
        nodes = link.launch(trial, rounds, patience, config, sequences, quiet=True)
    measured = next(result for node in nodes for result in node if result["rank"] == 0)
    return compared(measured, config, sequences)


def recorded_cost() -> dict:
    """What `against_limited_link` once returned."""
    return json.loads(RECORDED.read_text())


# -- measured ---------------------------------------------------------------------------------------------------------

def trial(rounds: int, patience: float, config: GPTConfig, sequences: int) -> dict:
    """What each rank does: seconds of everything, the slowest rank's, as medians over the quiet rounds. Collective."""
    torch.manual_seed(dist.get_rank())
    tokens_BT = torch.randint(config.vocab_size, (sequences, config.block_size))
    model = build_model(config)
    runs = {mode_name(stage, overlap): OverlapRun(copy.deepcopy(model), tokens_BT, Comm() if overlap else WaitedComm(), stage,
                                                  **OPTIONS[overlap])
            for stage, overlap in MODES}
    runs["compute"] = OverlapRun(model, tokens_BT, SilentComm())
    comm = Comm()
    for _ in range(3):  # the first step records the order of units, and the last one decides the rate of the link
        sent_bytes = runs[mode_name(3, True)].step()
        seconds = slowest(comm, runs["compute"].seconds())
    limit_here(sent_bytes * 8 / seconds / 1e6)  # as long as the rank computes, at stage 3
    for name in runs:
        runs[name].step()
    longest = max(flat.layout.padded for flat in runs["compute"].model.zero.flats)
    alone = {"flops": lambda: 1 / product_rate(config, sequences), "memory_rate": lambda: 1 / addition_rate(),
             "gather": lambda: gather_seconds(longest, comm), "latency": lambda: gather_seconds(2, comm)}
    measured, noise, until = [], [], time.monotonic() + patience
    while len(measured) < 3 * rounds and sum(each <= QUIET for each in noise) < rounds:
        if len(measured) >= rounds and slowest(comm, time.monotonic() - until) > 0:
            break
        progress(len(measured), max(rounds, len(measured) + 1), what="rounds")
        busy = Busy()
        measured.append({name: slowest(comm, run.seconds()) for name, run in runs.items()}
                        | {name: slowest(comm, seconds()) for name, seconds in alone.items()})
        noise.append(busy.others(comm))
    quiet = [each for each, others in zip(measured, noise, strict=True) if others <= QUIET]
    used = quiet if len(quiet) >= 3 else measured
    return {"rank": comm.rank, "quiet": len(quiet), "noisy": len(measured) - len(quiet), "longest": longest,
            "seconds": {name: statistics.median(each[name] for each in used) for name in used[0]}}


def product_rate(config: GPTConfig, sequences: int) -> float:
    """Operations a second of the model's largest product of matrices."""
    rows, width = sequences * config.block_size, config.n_embd
    a, b = torch.randn(rows, width), torch.randn(width, 4 * width)
    return 2 * rows * width * 4 * width / best(lambda: a @ b)


def addition_rate(elements: int = 1 << 24) -> float:
    """Bytes a second of an addition of long vectors, which reads two and writes one."""
    a, b = torch.ones(elements), torch.ones(elements)
    return 3 * a.nbytes / best(lambda: torch.add(a, b, out=b))


def best(function: Callable[[], object], times: int = 3) -> float:
    """The least of a few times, in seconds."""
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        function()
        taken.append(time.perf_counter() - begun)
    return min(taken)


def gather_seconds(elements: int, comm: Comm) -> float:
    """An all-gather of so many fp32 elements, alone. Collective."""
    buffer, layout = torch.zeros(elements), Layout.split(elements, comm.world_size)
    dist.barrier()
    begun = time.perf_counter()
    comm.all_gather(buffer, layout, "alone").wait()
    return time.perf_counter() - begun


# -- simulated --------------------------------------------------------------------------------------------------------

def compared(measured: dict, config: GPTConfig, sequences: int) -> dict:
    """The measured steps beside the simulated ones, on the machine and the network that were measured alone."""
    seconds, longest = measured["seconds"], measured["longest"]
    latency = seconds["latency"]
    rate = longest // 2 * 4 / (seconds["gather"] - latency)  # of two ranks each sends its half
    network = Network(1, rate, rate, latency)
    bare = Machine(1 / seconds["flops"], 1 / seconds["memory_rate"], 0, efficiency=1.0)
    scale = seconds["compute"] / simulated(3, True, bare, None, config, sequences)
    machine = Machine(bare.flops / scale, bare.memory_rate / scale, 0, efficiency=1.0)
    modes = {}
    for stage, overlap in MODES:
        name = mode_name(stage, overlap)
        ours = simulated(stage, overlap, machine, network, config, sequences)
        modes[name] = {"measured": seconds[name], "simulated": ours, "error": ours / seconds[name] - 1}
    return {"machine": {"flops": machine.flops, "memory_rate": machine.memory_rate}, "scale": scale,
            "network": {"rate": network.between, "latency": latency}, "compute": seconds["compute"],
            "quiet": measured["quiet"], "noisy": measured["noisy"], "modes": modes}


def simulated(stage: int, overlap: bool, machine: Machine, network: Network | None, config: GPTConfig, sequences: int) -> float:
    """Seconds of the second step of rank 0 of 2. network: None for a link that takes no time."""
    clock = VirtualClock()
    wire = None if network is None else SimulatedLink(clock, network)
    with FakeTensorMode(), Computing(clock, machine):
        tokens_BT = torch.zeros(sequences, config.block_size, dtype=torch.int64)
        comm = (SimulatedComm if overlap else WaitedSimulation)(0, 2, wire=wire)
        run = OverlapRun(build_model(config), tokens_BT, comm, stage, **OPTIONS[overlap])
        run.step()
        begun = clock.now
        run.step()
        return clock.now - begun


def table(result: dict) -> str:
    """The modes as Markdown: measured, simulated, and how far off."""
    rows = [f"| {name} | {each['measured']:.3f} s | {each['simulated']:.3f} s | {each['error']:+.1%} |"
            for name, each in result["modes"].items()]
    return "\n".join(["| step | measured | simulated | error |", "|---|---|---|---|", *rows])


if __name__ == "__main__":
    result = against_limited_link()
    print(table(result))
    print({name: value for name, value in result.items() if name != "modes"})
    RECORDED.write_text(json.dumps(result, indent=1) + "\n")
