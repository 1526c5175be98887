"""Pictures for chapter 04."""

from collections.abc import Mapping, Sequence
from itertools import cycle

from matplotlib.figure import Figure

from ...show.alternative_text import described
from ...show.figures import panels


def staleness_figure(curves: Mapping[int, Sequence[float]]) -> Figure:
    """Loss over updates, one curve per delay, on a logarithmic scale. curves: delay in updates → losses."""
    figure, axes = panels(8, 4)
    for (delay, losses), dashes in zip(curves.items(), cycle(("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1))))):
        axes.plot(losses, label=f"{delay} update{'s' * (delay != 1)} old", linewidth=2, linestyle=dashes)
    axes.set(yscale="log", xlabel="update", ylabel="loss", title="the same step size, gradients of different age")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return described(figure)
