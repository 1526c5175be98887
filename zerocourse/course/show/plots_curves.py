"""Curves on one pair of axes, each with its name at its end and a mark of its own, so that colour is never needed."""

from collections.abc import Callable, Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from .alternative_text import described
from .figures import panels

STYLES = (("#222222", "o", "-"), ("#8172b3", "s", "--"), ("#937860", "^", "-."), ("#7f7f7f", "D", ":"))
"""Colour, mark and line: no colour of `palette.MEANINGS`, since a curve is no kind of memory."""


def curves(lines: Mapping[str, Sequence[float]], at: Sequence[float], title: str, x: str, y: str, log: bool = False,
           limit: Mapping[str, float] | None = None, say: Callable[[float], str] | None = None) -> Figure:
    """One curve for each name over the same places `at`.

    x, y: the names of the axes.   log: both axes are logarithmic.   limit: name → height of a thin line across.
    say: how a height is written in the alternative text.
    """
    figure, axes = panels(8, 3.6)
    for (name, heights), (colour, mark, dashes) in zip(lines.items(), STYLES, strict=False):
        axes.plot(at, heights, color=colour, marker=mark, markersize=5, linestyle=dashes, label=name)
    for name, height in (limit or {}).items():
        axes.axhline(height, color="black", linewidth=1, linestyle=(0, (1, 3)), gid=name)
        axes.annotate(name, (at[0], height), (2, 3), textcoords="offset points", fontsize=8)
    if log:
        axes.set(xscale="log", yscale="log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    else:
        axes.set_ylim(0, None)
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.set_xticks(at, [f"{place:,}" for place in at])
    axes.legend(fontsize=9)
    axes.fmt_ydata = say
    return described(figure)


RUNS = (("#222222", "-"), ("#0072b2", "--"), ("#d55e00", "-."), ("#009e73", ":"), ("#cc79a7", (0, (5, 1, 1, 1, 1, 1))))
"""Colour and dashes of each run: in grey the dashes tell them apart."""


def training_curves(runs: Mapping[str, Sequence[float]], title: str, y: str) -> Figure:
    """One line for each run, over the steps."""
    figure, axes = panels(8, 3.6)
    for (name, heights), (colour, dashes) in zip(runs.items(), RUNS, strict=False):
        axes.plot(range(len(heights)), heights, color=colour, linestyle=dashes, linewidth=1.8, label=name)
    axes.set(title=title, xlabel="step", ylabel=y)
    axes.set_ylim(0, None)
    axes.legend(fontsize=9, ncols=2)
    return described(figure)
