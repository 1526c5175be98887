"""Pictures of what was measured: pure functions from numbers to matplotlib figures. Nothing here computes or launches."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...formulas.states import ModelStates
from ...formulas.units import gb
from .alternative_text import described
from .figures import PLATE, panels, thin_hatches
from .palette import MEANINGS
from .timelines import compare, live_bytes, step_film, timeline  # noqa: F401 - chapters take all pictures of a step from here

REST = "the rest, at the peak"
LOOKS = {kind: {"facecolor": MEANINGS[kind].color, "hatch": MEANINGS[kind].mpl_hatch, "edgecolor": "white", "linewidth": 0}
         for kind in ("parameters", "gradients", "optimizer")} | {REST: {"facecolor": "#c7c7c7"}}


@thin_hatches
def tour_figure(modes: dict[str, list[dict]], expected: dict[str, dict[str, int]]) -> Figure:
    """What rank 0 holds and sends in each mode, beside the formulas (black lines), and the losses of all modes."""
    figure, (memory, sent, losses) = panels(12, 4.2, 1, 3)
    names = list(modes)
    memory_bars(memory, names, [modes[name][0] for name in names], [expected[name]["total_bytes"] for name in names])
    sent.bar(names, [modes[name][0]["sent_bytes"] / 1e6 for name in names], color="#8172b3", width=0.6)
    mark_formula(sent, [expected[name]["sent_bytes"] / 1e6 for name in names])
    sent.set(title="bytes sent in a step, per rank", ylabel="MB")
    for width, (name, ranks) in zip(range(2 * len(modes), 0, -2), modes.items(), strict=True):
        mean = [sum(step) / len(ranks) for step in zip(*(rank["losses"] for rank in ranks), strict=True)]
        losses.plot(range(1, len(mean) + 1), mean, label=name, linewidth=width, alpha=0.7)
    losses.set(title="loss: the lines lie on each other", xlabel="step")
    losses.legend()
    return described(figure)


def memory_bars(axes: Axes, names: Sequence[str], ranks: Sequence[dict], formula: Sequence[int]) -> None:
    """Stacked: parameters, gradients, optimizer states, and what the peak adds to them. Bytes in, MB drawn."""
    bottom = [0.0] * len(names)
    for kind, look in LOOKS.items():
        if kind in ("parameters", "gradients", "optimizer"):
            height = [rank[f"{kind}_bytes"] / 1e6 for rank in ranks]
        else:
            height = [max(0.0, rank["peak_bytes"] / 1e6 - below) for rank, below in zip(ranks, bottom, strict=True)]
        axes.bar(names, height, bottom=bottom, **look, label=kind, width=0.6)
        bottom = [below + more for below, more in zip(bottom, height, strict=True)]
    mark_formula(axes, [nbytes / 1e6 for nbytes in formula], label="model states by formula")
    axes.set(title="bytes held, per rank", ylabel="MB", ylim=(0, max(bottom) * 1.45))
    axes.legend(fontsize=8, loc="upper right", ncols=2)


def mark_formula(axes: Axes, values: Sequence[float], label: str | None = "by formula") -> None:
    for index, value in enumerate(values):
        axes.hlines(value, index - 0.38, index + 0.38, color="black", linewidth=1.5, label=label if index == 0 else None)
    if label == "by formula":
        axes.legend(fontsize=8, loc="upper left")


CARDS = {"T4": 15 * 2**30, "RTX 4090": 24 * 2**30, "A100": 40 * 2**30, "H100": 80 * 2**30, "H200": 140 * 2**30}


def smallest_card(nbytes: int) -> str | None:
    """The smallest of `CARDS` that has this much memory."""
    return next((card for card, memory in CARDS.items() if memory >= nbytes), None)


@thin_hatches
def memory_on_cards(states: Sequence[ModelStates], stage: int) -> Figure:
    """What a rank holds at stages 0 to 3, stacked, with `stage` in full colour and lines where cards' memory ends.

    `stage` has at least a tenth of the width; a bar that is longer than all of it has an arrow behind its number.
    """
    figure, axes = panels(10, 3.4)
    edge = min(1.2 * states[0].total_bytes, 10 * states[stage].total_bytes)
    names = ["data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3"]
    for row, (held, _name) in enumerate(zip(states, names, strict=True)):
        left = 0
        for kind in ("parameters", "gradients", "optimizer"):
            nbytes = getattr(held, f"{kind}_bytes")
            axes.barh(row, nbytes / 1e9, left=left / 1e9, **LOOKS[kind], height=0.62,
                      alpha=1 if row == stage else 0.35, label=kind if row == stage else None)
            left += nbytes
        beyond = left > 0.86 * edge
        axes.annotate(gb(left) + (" →" if left > edge else ""), (min(left, edge) / 1e9, row), (-5 if beyond else 5, 0),
                      textcoords="offset points", va="center", ha="right" if beyond else "left", fontsize=10,
                      weight="bold" if row == stage else "normal", bbox=PLATE)
    labelled = -edge
    for card, memory in CARDS.items():
        if not 0.03 * edge < memory < edge:
            continue
        axes.axvline(memory / 1e9, color="black", linewidth=1, linestyle=":", zorder=0)
        if memory - labelled > 0.07 * edge:  # so that names do not overlap
            axes.text(memory / 1e9, -0.62, card, ha="center", va="bottom", fontsize=8)
            labelled = memory
    axes.set(yticks=range(4), yticklabels=names, xlabel="GB per rank (GB = 10⁹ bytes)", xlim=(0, edge / 1e9), ylim=(3.5, -0.6))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    return figure
