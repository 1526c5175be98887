"""What the figures of the course have in common: how one begins, the plate behind words, and bars that are cut by kind."""

from collections.abc import Callable, Mapping
from math import inf

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .palette import MEANINGS

thin_hatches = rc_context({"hatch.linewidth": 0.6})

PLATE = {"color": "white", "alpha": 0.85, "pad": 1}  # behind words on bars and lines


def panels(width: float, height: float, *shape: int, **how) -> tuple:
    """A figure of so many inches, and its axes as `Figure.subplots(*shape, **how)` returns them."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(*shape, **how)


def stacked_rows(axes: Axes, rows: Mapping[str, Mapping[str, float]], looks: Mapping[str, Mapping], height: float = 0.62,
                 lettered: float = inf, say: Callable[[float], str] = "{:.3g}".format) -> list[float]:
    """A bar for each name, from the top down, cut by kind. Returns where the bars end.

    rows: name → kind → length.   looks: kind → how its part is drawn.   lettered: a part of at least this length has its letter
    and its length, as `say` writes it.
    """
    ends = [0.0] * len(rows)
    for kind, look in looks.items():
        lengths = [row[kind] for row in rows.values()]
        axes.barh(range(len(rows)), lengths, left=ends, height=height, label=kind, **look)
        for row, (end, length) in enumerate(zip(ends, lengths, strict=True)):
            if length >= lettered:
                axes.text(end + length / 2, row, f"{MEANINGS[kind].letter} {say(length)}", ha="center", va="center", fontsize=8,
                          bbox=PLATE)
        ends = [end + length for end, length in zip(ends, lengths, strict=True)]
    axes.set(yticks=range(len(rows)), yticklabels=list(rows), ylim=(len(rows) - 0.5, -0.5))
    return ends
