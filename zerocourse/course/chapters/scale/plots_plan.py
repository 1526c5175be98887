"""A plan in a picture: what a card must hold at the peak, what is sent, and where the step's time goes."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from ....formulas.units import gb
from ....formulas.what_fits import DEVICE
from ....planning import Evaluation
from ...show.palette import INK
from ...show.plots import LOOKS
from ...show.timelines import thin_hatches

TIMES = {"computes": {"facecolor": "#9a9a9a"}, "waits": {"facecolor": "white", "hatch": "//", "edgecolor": INK}}
LIMIT = 1.6  # of the card's memory: longer bars end there, with an arrow


@thin_hatches
def plan_figure(evaluations: Mapping[str, Evaluation], card: int) -> Figure:
    """Three panels with a row for each evaluation. Bytes and seconds in, GB and seconds drawn.

    evaluations: by name.   card: bytes of its memory, which a line marks.
    """
    figure = Figure(figsize=(11, 1.5 + 0.55 * len(evaluations)), layout="constrained")
    memory, sent, time = figure.subplots(1, 3, width_ratios=(2.2, 1, 1.2), sharey=True)
    edge = LIMIT * card / 1e9
    for row, each in enumerate(evaluations.values()):
        left, peak = 0.0, each.peak_bytes / 1e9
        for kind, look in LOOKS.items():
            width = each.kinds[kind] / 1e9
            memory.barh(row, width, left=left, height=0.6, **look, label=kind if row == 0 else None)
            left += width
        memory.annotate(f" {gb(each.peak_bytes)}" + " ▸" * (peak > edge), (min(peak, edge), row), fontsize=9,
                        va="center", ha="right" if peak > 0.85 * edge else "left",
                        bbox={"color": "white", "alpha": 0.85, "pad": 1})
        bars = sent.barh(row, sum(each.sent.values()) / 1e9, height=0.6, color="#6a6a6a")
        sent.bar_label(bars, [gb(sum(each.sent.values()))], padding=3, fontsize=9)
        time.barh(row, each.compute_seconds, height=0.6, **TIMES["computes"], label="computes" if row == 0 else None)
        time.barh(row, each.exposed_seconds, left=each.compute_seconds, height=0.6, **TIMES["waits"],
                  label="waits" if row == 0 else None)
        time.annotate(f" {each.step_seconds:.3g} s", (each.step_seconds, row), va="center", fontsize=9)
    memory.axvline(card / 1e9, color=INK, linewidth=1.6, linestyle="--", label=f"the card's {gb(card)}")
    memory.set(xlim=(0, edge), xlabel="GB per rank", title="model states, and what the peak adds",
               yticks=range(len(evaluations)), yticklabels=list(evaluations), ylim=(len(evaluations) - 0.5, -0.5))
    sent.set(xlabel="GB per rank", title="sent in a step")
    time.set(xlabel="seconds", title="time of a step")
    for axes in (sent, time):
        axes.set_xlim(0, 1.4 * max(axes.get_xlim()[1] / 1.05, 1e-12))
    figure.legend(*memory.get_legend_handles_labels(), loc="outside lower left", ncols=5, fontsize=8)
    figure.legend(*time.get_legend_handles_labels(), loc="outside lower right", ncols=2, fontsize=8)
    figure.set_label(described(evaluations, card))
    return figure


def described(evaluations: Mapping[str, Evaluation], card: int) -> str:
    """The picture in words, for readers who do not see it."""
    def each(name: str, evaluation: Evaluation) -> str:
        fits = "and fits" if evaluation.peak_bytes <= card else "and is too large"
        sent = gb(sum(evaluation.sent.values()))
        return (f"{name} needs {gb(evaluation.held[DEVICE])} at the peak {fits}, sends {sent} and "
                f"takes {evaluation.step_seconds:.3g} s")

    return f"Per rank, on a card of {gb(card)}: " + "; ".join(each(*item) for item in evaluations.items()) + "."
