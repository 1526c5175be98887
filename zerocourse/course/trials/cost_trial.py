"""The cost model on trial: how long a simulated step takes, beside how long it really took over a link of limited rate.

Two nodes of one rank each, joined by `limited_link`, train a model of four blocks at stages 1, 2 and 3, each with
and without overlap. The same six steps are then simulated, on a `Machine` and a `Network` that know nothing of them:

    flops, memory_rate    a product of matrices of the model's shape, and an addition of long vectors, timed alone
    scale                 by how much a step of stage 3 without communication took longer than these two rates say: it
                          stands for all that an operation costs besides its arithmetic and its traffic
    rate, latency         collectives of the longest buffer, and one of a single number, timed alone
    processor             how much slower products of matrices are while the link is busy, for each byte that is sent

So the model is told how fast the processor and the link are, each by itself, and has to say what becomes of the two
together: what waits, what is hidden, and what stands still. `error` is how far its answer is from the measured step.
That the computing by itself comes out right is no achievement, because `scale` sees to it.

Every round times each of them once, one after the other, because a shared machine may be slower a second later. A time
counts if other programs left the processor alone meanwhile, as in `overlap_trial`, and the median of those is taken.

    result = against_limited_link()       # needs what `link.limited_link` needs
    result = recorded_cost()              # one that was kept

`python -m zerocourse.course.trials.cost_trial` records another one in its place.
"""

import copy
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from ...comm import Comm
from ...comm.simulated import SimulatedComm
from ...comm.torch_private import FakeTensorMode
from ...launch.link import limit_here, limited_link
from ...launch.worker import progress
from ...layout.rankmap import Layout
from ...measure.recorded import Recorded
from ...models.gpt2 import GPTConfig, build_model
from ...simulation.clusters import Machine, Network
from ...simulation.virtual_time import Computing, SimulatedLink, VirtualClock
from .overlap_trial import QUIET, Busy, OverlapRun, SilentComm, Waited, WaitedComm, slowest

MODES = [(stage, overlap) for stage in (1, 2, 3) for overlap in (False, True)]
CONFIG = GPTConfig(4, 4, 128, block_size=128, vocab_size=256)
SEQUENCES = 48  # of a step: more than in `overlap_trial`, so that the link takes a smaller part of the processor
BURST_BYTES = 24 << 10
AT_ONCE = 4  # collectives: a link that has just been idle lets a first burst pass at once
OPTIONS = {False: {"prefetch": 0, "in_flight": 0}, True: {"prefetch": 2, "in_flight": 2}}


class WaitedSimulation(Waited, SimulatedComm):
    """Simulated ranks without overlap."""


def mode_name(stage: int, overlap: bool) -> str:
    return f"stage {stage}, {'overlap' if overlap else 'no overlap'}"


def against_limited_link(rounds: int = 7, patience: float = 120, config: GPTConfig = CONFIG,
                         sequences: int = SEQUENCES) -> dict:
    """Measure and simulate. rounds, patience (seconds): as for `overlap_trial.over_limited_link`. Raises BadInput too.

    Returns calibrated (the six numbers that the simulation was given: flops and memory_rate a second, scale, rate in
    bytes a second, latency in seconds, processor in seconds a byte), compute (seconds of a step alone), rounds, quiet
    (of each time at least so many were), and modes: by name {measured, simulated: seconds, error: simulated /
    measured - 1}.
    """
    with limited_link(None) as link:
        nodes = link.launch(trial, rounds, patience, config, sequences, quiet=True)
    measured = next(result for node in nodes for result in node if result["rank"] == 0)
    return compared(measured, config, sequences)


recorded_cost = Recorded(__file__, "recorded_cost", against_limited_link)


# -- measured ---------------------------------------------------------------------------------------------------------

def trial(rounds: int, patience: float, config: GPTConfig, sequences: int) -> dict:
    """What each rank does: seconds of everything, the slowest rank's, the medians of the quiet ones. Collective."""
    torch.manual_seed(dist.get_rank())
    tokens_BT = torch.randint(config.vocab_size, (sequences, config.block_size))
    model = build_model(config)
    runs = {mode_name(stage, overlap): OverlapRun(copy.deepcopy(model), tokens_BT, Comm() if overlap else WaitedComm(),
                                                  stage, **OPTIONS[overlap])
            for stage, overlap in MODES}
    runs["compute"] = OverlapRun(model, tokens_BT, SilentComm())
    comm = Comm()
    for _ in range(3):  # the first step records the order of units, and the last one decides the rate of the link
        sent_bytes = runs[mode_name(3, True)].step()
        seconds = slowest(comm, runs["compute"].seconds())
    # M = C at stage 3. A large burst would be a large part of a collective, and real links have none.
    limit_here(sent_bytes * 8 / seconds / 1e6, BURST_BYTES)
    for run in runs.values():
        run.step()
    longest = max(flat.layout.padded for flat in runs["compute"].model.zero.flats)
    alone = {"flops": lambda: 1 / product_rate(config, sequences), "memory_rate": lambda: 1 / addition_rate(),
             "gathers": lambda: gather_seconds(longest, comm, AT_ONCE), "latency": lambda: gather_seconds(2, comm),
             "lost share": lambda: lost_share(config, sequences, longest, comm)}
    timed = {name: run.seconds for name, run in runs.items()} | alone
    measured, until = {name: [] for name in timed}, time.monotonic() + patience
    while len(measured["compute"]) < rounds or (slowest(comm, time.monotonic() - until) < 0
                                                and min(map(quiet_ones, measured.values())) < rounds):
        progress(len(measured["compute"]), max(rounds, len(measured["compute"]) + 1), what="rounds")
        for name, seconds in timed.items():
            busy = Busy()
            taken = slowest(comm, seconds())
            measured[name].append((taken, slowest(comm, busy.others(comm))))
    quiet = min(map(quiet_ones, measured.values()))
    return {"rank": comm.rank, "rounds": len(measured["compute"]), "quiet": quiet, "longest": longest,
            "seconds": {name: middle(each) for name, each in measured.items()}}


def quiet_ones(times: list[tuple[float, float]]) -> int:
    """How many of (seconds, share of the processor time that others used) are quiet."""
    return sum(others <= QUIET for _, others in times)


def middle(times: list[tuple[float, float]]) -> float:
    """The median of the quiet times, or of all if fewer than three are."""
    quiet = [seconds for seconds, others in times if others <= QUIET]
    return statistics.median(quiet if len(quiet) >= 3 else [seconds for seconds, _ in times])


def product_rate(config: GPTConfig, sequences: int) -> float:
    """Operations a second of the model's largest product of matrices."""
    return 2 * sequences * config.block_size * config.n_embd * 4 * config.n_embd * products(config, sequences, 0.2)


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


def gather_seconds(elements: int, comm: Comm, times: int = 1) -> float:
    """All-gathers of so many fp32 elements, alone, `times` of them at once. Collective."""
    buffers, layout = [torch.zeros(elements) for _ in range(times)], Layout.split(elements, comm.world_size)
    dist.barrier()
    begun = time.perf_counter()
    for handle in [comm.all_gather(buffer, layout, "alone") for buffer in buffers]:
        handle.wait()
    return time.perf_counter() - begun


def lost_share(config: GPTConfig, sequences: int, elements: int, comm: Comm) -> float:
    """The share of its computing that a rank loses while its link is busy. Collective."""
    duration = 2 * slowest(comm, gather_seconds(elements, comm, AT_ONCE))
    alone = products(config, sequences, duration)
    buffers, layout = [torch.zeros(elements) for _ in range(3 * AT_ONCE)], Layout.split(elements, comm.world_size)
    dist.barrier()
    handles = [comm.all_gather(buffer, layout, "beside products") for buffer in buffers]
    beside = products(config, sequences, duration)
    for handle in handles:
        handle.wait()
    return max(0.0, 1 - beside / alone)


def products(config: GPTConfig, sequences: int, duration: float) -> float:
    """How many of the model's products of matrices are made in a second."""
    rows, width = sequences * config.block_size, config.n_embd
    a, b, made = torch.randn(rows, width), torch.randn(width, 4 * width), 0
    begun = time.perf_counter()
    while (taken := time.perf_counter() - begun) < duration:
        a @ b
        made += 1
    return made / taken


# -- simulated --------------------------------------------------------------------------------------------------------

def compared(measured: dict, config: GPTConfig, sequences: int) -> dict:
    """The measured steps beside the simulated ones, on the machine and the network that were measured alone."""
    seconds, longest = measured["seconds"], measured["longest"]
    latency = seconds["latency"]
    nbytes = longest // 2 * 4  # of two ranks each sends its half
    rate = AT_ONCE * nbytes / (seconds["gathers"] - latency)
    calibrated = {"flops": 1 / seconds["flops"], "memory_rate": 1 / seconds["memory_rate"], "scale": 1.0,
                  "rate": rate, "latency": latency, "processor": seconds["lost share"] / rate}
    calibrated["scale"] = seconds["compute"] / simulated(3, True, calibrated, config, sequences, alone=True)
    modes = {}
    for stage, overlap in MODES:
        name = mode_name(stage, overlap)
        ours = simulated(stage, overlap, calibrated, config, sequences)
        modes[name] = {"measured": seconds[name], "simulated": ours, "error": ours / seconds[name] - 1}
    return {"calibrated": calibrated, "compute": seconds["compute"], "rounds": measured["rounds"],
            "quiet": measured["quiet"], "modes": modes}


def simulated(stage: int, overlap: bool, calibrated: dict, config: GPTConfig, sequences: int,
              alone: bool = False) -> float:
    """Seconds of the second step of rank 0 of 2.   alone: over a link that takes no time."""
    slower, rate, latency, processor = (calibrated[name] for name in ("scale", "rate", "latency", "processor"))
    machine = Machine(calibrated["flops"] / slower, calibrated["memory_rate"] / slower, 0, efficiency=1.0)
    clock = VirtualClock()
    wire = None if alone else SimulatedLink(clock, Network(1, rate, rate, latency, latency, processor))
    with FakeTensorMode(), Computing(clock, machine):
        tokens_BT = torch.zeros(sequences, config.block_size, dtype=torch.int64)
        comm = (SimulatedComm if overlap else WaitedSimulation)(0, 2, wire=wire)
        run = OverlapRun(build_model(config), tokens_BT, comm, stage, **OPTIONS[overlap])
        run.step()
        begun = clock.now
        run.step()
        return clock.now - begun


def largest_error(result: dict) -> float:
    """Of any mode, without its sign."""
    return max(abs(each["error"]) for each in result["modes"].values())


def table(result: dict) -> str:
    """The modes as Markdown: measured, simulated, and how far off."""
    rows = [f"| {name} | {each['measured']:.3f} s | {each['simulated']:.3f} s | {each['error']:+.1%} |"
            for name, each in result["modes"].items()]
    return "\n".join(["| step | measured | simulated | error |", "|---|---|---|---|", *rows])


if __name__ == "__main__":
    recorded_cost.renew()
    print(table(recorded_cost()))
