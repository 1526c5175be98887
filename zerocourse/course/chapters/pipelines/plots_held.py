"""How many micro-batches each rank keeps, over time: a panel for each schedule, a line for each rank."""

from collections import Counter
from collections.abc import Mapping
from itertools import accumulate

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ....parallel.pipeline import Timing
from ...show.alternative_text import described
from ...show.figures import panels
from ...show.plots_curves import STYLES


def held_over_time(timing: Timing, rank: int) -> tuple[list[float], list[int]]:
    """Moments in units, and how many micro-batches the rank keeps from each of them on: from the begin of F to the end of B or W."""
    changes: Counter[float] = Counter()
    for span in timing.of_rank(rank):
        if span.action.kind in ("F", "B", "W"):
            changes[float(span.start if span.action.kind == "F" else span.end)] += 1 if span.action.kind == "F" else -1
    moments = sorted(changes)
    return [0.0, *moments], [0, *accumulate(changes[moment] for moment in moments)]


def held_by_ranks(timings: Mapping[str, Timing]) -> Figure:
    figure, axes = panels(9, 3.4, 1, len(timings))
    most = max(timing.in_flight(rank) for timing in timings.values() for rank in range(timing.plan.ranks))
    for panel, (name, timing) in zip(axes, timings.items(), strict=True):
        for rank in range(timing.plan.ranks):
            colour, _, dashes = STYLES[rank % len(STYLES)]
            panel.step(*held_over_time(timing, rank), where="post", color=colour, linestyle=dashes, label=f"rank {rank}")
        panel.set(title=name, xlabel="units of time", ylabel="micro-batches kept", ylim=(0, most + 1))
        panel.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].legend(fontsize=8)
    peaks = "; ".join(f"{name}: at most {', '.join(str(timing.in_flight(rank)) for rank in range(timing.plan.ranks))}"
                      for name, timing in timings.items())
    return described(figure, f"Micro-batches that the ranks keep. {peaks}.")
