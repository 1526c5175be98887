"""Pictures for chapter 04."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure


def staleness_figure(curves: Mapping[int, Sequence[float]]) -> Figure:
    """Loss over updates, one curve per delay, on a logarithmic scale. curves: delay in updates → losses."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for delay, losses in curves.items():
        axes.plot(losses, label=f"{delay} updates old", linewidth=2)
    axes.set(yscale="log", xlabel="update", ylabel="loss", title="the same step size, gradients of different age")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure
