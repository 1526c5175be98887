"""Pictures for chapter 04."""

from collections.abc import Mapping, Sequence
from itertools import cycle

from matplotlib.figure import Figure


def staleness_figure(curves: Mapping[int, Sequence[float]]) -> Figure:
    """Loss over updates, one curve per delay, on a logarithmic scale. curves: delay in updates → losses.

    Its label, which `show.figure` takes, says where each curve ends.
    """
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for (delay, losses), dashes in zip(curves.items(), cycle(("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1))))):
        axes.plot(losses, label=f"{delay} update{'s' * (delay != 1)} old", linewidth=2, linestyle=dashes)
    axes.set(yscale="log", xlabel="update", ylabel="loss", title="the same step size, gradients of different age")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    ends = ", ".join(f"{losses[-1]:.0e} with {delay}" for delay, losses in curves.items())
    figure.set_label("Loss over updates on a logarithmic scale, from the same start and with the same step size. "
                     f"Where it ends, by the age of the gradients in updates: {ends}.")
    return figure
