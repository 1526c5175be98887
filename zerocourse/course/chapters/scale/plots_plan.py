"""A plan in a picture: what a card must hold at the peak, what is sent, and where the step's time goes."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from ....formulas.units import gb
from ....planning import Evaluation
from ...show.alternative_text import described
from ...show.figures import PLATE, panels, stacked_rows, thin_hatches
from ...show.palette import INK
from ...show.plots import LOOKS

TIMES = {"computes": {"facecolor": "#9a9a9a"}, "waits": {"facecolor": "white", "hatch": "//", "edgecolor": INK}}
LIMIT = 1.6  # of the card's memory: longer bars end there, with an arrow


@thin_hatches
def plan_figure(evaluations: Mapping[str, Evaluation], card: int) -> Figure:
    """Three panels with a row for each evaluation. Bytes and seconds in, GB and seconds drawn.

    evaluations: by name.   card: bytes of its memory, which a line marks.
    """
    figure, (memory, sent, time) = panels(11, 1.5 + 0.55 * len(evaluations), 1, 3, width_ratios=(2.2, 1, 1.2), sharey=True)
    edge = LIMIT * card / 1e9
    stacked_rows(memory, {name: {kind: each.kinds[kind] / 1e9 for kind in LOOKS} for name, each in evaluations.items()}, LOOKS, 0.6)
    stacked_rows(time, {name: {"computes": each.compute_seconds, "waits": each.exposed_seconds} for name, each in evaluations.items()},
                 TIMES, 0.6)
    nbytes = [sum(each.sent.values()) for each in evaluations.values()]
    bars = sent.barh(range(len(nbytes)), [each / 1e9 for each in nbytes], height=0.6, color="#6a6a6a")
    sent.bar_label(bars, map(gb, nbytes), padding=3, fontsize=9)
    for row, each in enumerate(evaluations.values()):
        peak = each.peak_bytes / 1e9
        memory.annotate(f" {gb(each.peak_bytes)}" + " ▸" * (peak > edge), (min(peak, edge), row), fontsize=9,
                        va="center", ha="right" if peak > 0.85 * edge else "left",
                        bbox=PLATE)
        time.annotate(f" {each.step_seconds:.3g} s", (each.step_seconds, row), va="center", fontsize=9)
    memory.axvline(card / 1e9, color=INK, linewidth=1.6, linestyle="--", label=f"the card's {gb(card)}")
    memory.set(xlim=(0, edge), xlabel="GB per rank", title="model states, and what the peak adds")
    sent.set(xlabel="GB per rank", title="sent in a step")
    time.set(xlabel="seconds", title="time of a step")
    for axes in (sent, time):
        axes.set_xlim(0, 1.4 * max(axes.get_xlim()[1] / 1.05, 1e-12))
    figure.legend(*memory.get_legend_handles_labels(), loc="outside lower left", ncols=5, fontsize=8)
    figure.legend(*time.get_legend_handles_labels(), loc="outside lower right", ncols=2, fontsize=8)
    fits = [name for name, each in evaluations.items() if each.peak_bytes <= card]
    return described(figure, f"What fits on the card: {', '.join(fits) or 'none of them'}")
