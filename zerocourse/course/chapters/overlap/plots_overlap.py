"""The bound on what overlap can bring, as a curve: a pure function from numbers to a matplotlib figure."""

from collections.abc import Callable, Mapping

from matplotlib.figure import Figure

from ...show.alternative_text import described
from ...show.figures import panels


def bound_figure(marked: Mapping[str, float], speedup_bound: Callable[[float, float], float]) -> Figure:
    """The largest speed-up over M/C, on a logarithmic axis. marked: words → the M/C at which they stand on the curve.

    speedup_bound: of C and M.
    """
    figure, axes = panels(8, 3.2)
    ratios = [10 ** (index / 100) for index in range(-150, 151)]
    axes.semilogx(ratios, [speedup_bound(1, ratio) for ratio in ratios], color="black")
    for words, ratio in marked.items():
        bound = speedup_bound(1, ratio)
        axes.plot(ratio, bound, "o", color="black", markersize=5, gid=f"{words} ({bound:.2f})")
        aside = (0, 7, "center") if ratio == 1 else (7, 4, "left") if ratio > 1 else (7, -9, "left")  # off the curve
        axes.annotate(f"{words}: {bound:.2f}", (ratio, bound), aside[:2], textcoords="offset points", ha=aside[2], fontsize=9)
    ticks = [0.05, 0.1, 0.25, 0.5, 1, 2, 4, 10, 20]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="M / C: communication for each second of compute", ylabel="largest speed-up", ylim=(0.95, 2.25))
    axes.grid(alpha=0.3)
    return described(figure, "The axis of M / C is logarithmic, and the peak, where M equals C, is sharp.")
