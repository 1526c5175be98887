"""How a training run went: its loss, learning rate, gradient norm and speed over the steps."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .alternative_text import described
from .palette import FAINT, INK

PANELS = {"loss": "loss (nats per token)", "learning_rate": "learning rate", "gradient_norm": "gradient norm",
          "tokens_per_second": "tokens per second"}


def training_curves(rows: Sequence[Mapping[str, float]], title: str, resumed_from: int | None = None) -> Figure:
    """One panel for each of `PANELS`. rows: one for each step, with "step".   resumed_from: the step of a dotted line."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    steps = [row["step"] for row in rows]
    for axes, (name, label) in zip(figure.subplots(2, 2, sharex=True).flat, PANELS.items(), strict=True):
        axes.plot(steps, [row[name] for row in rows], color=INK, linewidth=1.2, marker="." if len(rows) < 50 else "")
        axes.set_ylabel(label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if resumed_from is not None:
            axes.axvline(resumed_from + 0.5, color=FAINT, linewidth=1, linestyle=":")
    for axes in figure.axes[2:]:
        axes.set_xlabel("step")
    figure.suptitle(title)
    return described(figure, f"The run was resumed after step {resumed_from}" if resumed_from else "")
