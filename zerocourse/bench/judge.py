"""The verdict on a bench: do the losses agree, do the bytes follow the formulas, which is faster, is it certain?

Pure functions of what was measured. A ratio of times is the median over rounds of the ratio within a round, so that
what slows down a whole round cancels out.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from ..course.tour.tour_checks import Check, furthest_apart, held
from ..formulas.states import FP32, model_states
from ..formulas.volumes import passes
from .settings import AGAIN, ALONE, BASELINE, BenchMode, BenchSettings

LOSS_TOLERANCE = 2e-5  # relative: ranks add up in different orders
WIRE_TOLERANCE = 0.01  # TCP's and IP's headers, and acknowledgements
FRAME_BYTES = 400  # of headers and acknowledgements around one small message, both ways
NOISE = 0.10  # the most that the baseline may differ from itself: the distance of the quartiles of that ratio
BIAS = 0.05  # ... and of its median from 1
FEWEST_ROUNDS = 5

Race = dict[str, list[tuple[float, float, float, int]]]  # by mode, a round: seconds of the slowest rank, and of all
CLOCK, PROCESSOR, MAIN_THREAD, FAULTS = range(4)  # ranks together: processor seconds, their main threads', page faults


@dataclass(frozen=True)
class Ratio:
    """Time of one mode over that of another. `spread` is the distance of the quartiles. `processor` is the median ratio
    of processor time, which changes little with what others do on the machine."""

    median: float
    spread: float
    rounds: int
    processor: float


def ratio(races: list[Race], mode: str, other: str) -> Ratio | None:
    """The ratio, round by round, from every race in which both took part; None if there is none."""
    pairs = [(here, there) for race in races if mode in race and other in race
             for here, there in zip(race[mode], race[other], strict=True)]
    if not pairs:
        return None
    clock = [here[CLOCK] / there[CLOCK] for here, there in pairs]
    low, middle, high = statistics.quantiles(clock, n=4, method="inclusive") if len(clock) > 1 else clock * 3
    processor = statistics.median(here[PROCESSOR] / there[PROCESSOR] for here, there in pairs)
    return Ratio(middle, high - low, len(pairs), processor)


@dataclass(frozen=True)
class Profile:
    """Where a mode's step goes: medians over rounds, means over ranks.

    step_seconds: on the clock. processor_seconds: user and system, of the whole process. Of these main_thread_seconds
    are of the thread that runs the model, its hooks and the optimizer, and communication_thread_seconds of all others:
    gloo's (with more than one thread a rank, also those that compute along). page_faults: pages taken from the system.
    """

    step_seconds: float
    processor_seconds: float
    main_thread_seconds: float
    communication_thread_seconds: float
    page_faults: float


def profiles(races: list[Race], ranks: int) -> dict[str, Profile]:
    """The profile of every mode, and before them that of the floor, a rank that computes alone."""
    by_mode = {}
    for name in dict.fromkeys([ALONE, *(name for race in races for name in race)]):
        rounds = [spent for race in races for spent in race.get(name, ())]
        if rounds and name != AGAIN:
            clock, processor, main, faults = map(statistics.median, zip(*rounds, strict=True))
            others = max(0, processor - main)  # read one after the other: nothing may come out as less
            by_mode[name] = Profile(clock, processor / ranks, main / ranks, others / ranks, faults / ranks)
    return by_mode


def noise(races: list[Race]) -> list[str]:
    """The reasons why the times cannot be judged, one sentence each. Empty if they can."""
    reasons = []
    for race in races:
        names = ", ".join(name for name in race if name not in (AGAIN, ALONE))
        control = ratio([race], AGAIN, BASELINE)
        if control is None:
            continue
        if control.rounds < FEWEST_ROUNDS:
            reasons.append(f"only {control.rounds} round{'s' * (control.rounds != 1)} ({names}): it takes {FEWEST_ROUNDS} to judge")
        elif not (control.spread <= NOISE and abs(control.median - 1) <= BIAS):  # so that NaN is noise
            reasons.append(f"{BASELINE} against itself took {control.median:.2f} of its own time, with quartiles "
                         f"{control.spread:.2f} apart ({names}): more than {BIAS:.2f} off 1, or {NOISE:.2f} apart, is "
                         "too noisy to judge")
    return reasons


def checks(settings: BenchSettings, modes: list[BenchMode], watched: dict[str, list[dict]]) -> Iterator[Check]:
    """Everything but time: losses of all modes, and of ours the bytes held and sent. Decides the exit status."""
    reference = watched[BASELINE]
    for mode in modes:
        ranks = watched[mode.name]
        furthest = max(furthest_apart(got["losses"], other["losses"])
                       for got, other in zip(ranks, reference, strict=True))
        yield Check(mode.name, "losses", furthest <= LOSS_TOLERANCE,
                    f"losses are up to {furthest:.1e} (relative) from {BASELINE}'s, more than {LOSS_TOLERANCE:.0e}")
        if mode.ours:
            for rank, got in enumerate(ranks):
                padded, own = map(sum, zip(*got["flat_buffers"], strict=True))  # with the padding of every flat buffer
                yield from held(mode.name, rank, got, model_states(padded, mode.stage, settings.ranks, FP32, shard=own))
            yield from wire(settings, mode, ranks)


def wire(settings: BenchSettings, mode: BenchMode, ranks: list[dict]) -> Iterator[Check]:
    """What the interface counted against what the formula says and our own count of everything else."""
    sent = [got["sent_bytes"] for got in ranks]
    times = passes(mode.stage, scheme="keep" if mode.keep else "zero").total
    want = 4 * times * (settings.ranks - 1) * settings.params  # all ranks together send (N - 1)Ψ elements a pass
    yield Check(mode.name, "sent", sum(sent) == want,
                f"the ranks say they sent {sum(sent):,} bytes, the formula says {want:,}")
    if ranks[0]["wire_bytes"] is None:
        return
    counted = ranks[0]["wire_bytes"] * settings.ranks
    extra = sum(got["padding_bytes"] + got["metadata_bytes"] for got in ranks)
    # One message per pass, flat buffer and pair of ranks, and a few to agree and to start.
    slack = FRAME_BYTES * settings.ranks**2 * (times * len(ranks[0]["flat_buffers"]) + 8)
    yield Check(mode.name, "wire", want <= counted <= (want + extra) * (1 + WIRE_TOLERANCE) + slack,
                f"the interface counted {counted:,} bytes, the formula says {want:,}, with {extra:,} of padding "
                "and agreement")
