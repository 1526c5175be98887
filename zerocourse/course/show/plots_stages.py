"""All stages in one picture, what each holds and what each sends: a pure function from numbers to a matplotlib figure."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from .alternative_text import described
from .figures import panels, stacked_rows
from .palette import MEANINGS

STATES = {kind: MEANINGS[kind] for kind in ("parameters", "gradients", "optimizer")}
NARROW = 0.04  # of the highest peak: a narrower block has no room for its label
THE_REST, SENT = MEANINGS["padding"].color, (("#6a6a6a", ""), ("#b9b9b9", "//"))


def stages_figure(stages: Mapping[str, Mapping[str, int]], sent: Mapping[str, Mapping[int, int]]) -> Figure:
    """Left what a rank holds, stacked by kind, and what the peak adds. Right what it sends in a step. Bytes in, MB drawn.

    stages: name → parameters_bytes, gradients_bytes, optimizer_bytes (as the formulas count them) and peak_bytes.
    sent: name → {micro-batches in a step: bytes}, with the same numbers of micro-batches for each name.
    """
    figure, (holds, sends) = panels(10.5, 3.6, 1, 2, width_ratios=[1.35, 1], sharey=True)
    names, highest = list(stages), max(counts["peak_bytes"] for counts in stages.values()) / 1e6
    peaks = [counts["peak_bytes"] / 1e6 for counts in stages.values()]
    ends = stacked_rows(holds, {name: {kind: counts[f"{kind}_bytes"] / 1e6 for kind in STATES} for name, counts in stages.items()},
                        {kind: {"color": meaning.color, "hatch": meaning.mpl_hatch, "edgecolor": "white"}
                         for kind, meaning in STATES.items()}, lettered=NARROW * highest, say=lambda width: f"{width:,.{int(width < 100)}f}")
    holds.barh(range(len(names)), [peak - end for peak, end in zip(peaks, ends, strict=True)], left=ends, height=0.62, color=THE_REST,
               hatch="xx", edgecolor="white", label="what the peak adds")
    for row, peak in enumerate(peaks):
        holds.annotate(f"peak {peak:.1f}", (peak, row), (4, 0), textcoords="offset points", va="center", fontsize=9)
    holds.set(title="holds just before the update, and needs at the peak", xlabel="MB per rank", xlim=(0, 1.18 * highest))
    several = list(next(iter(sent.values())))
    height = 0.7 / len(several)
    for index, micro_batches in enumerate(several):
        widths = [sent[name][micro_batches] / 1e6 for name in names]
        rows = [row + (index - (len(several) - 1) / 2) * height for row in range(len(names))]
        bars = sends.barh(rows, widths, height=0.9 * height, edgecolor="white",
                          color=SENT[index % 2][0], hatch=SENT[index % 2][1], label=f"{micro_batches} micro-batch{'es' * (micro_batches > 1)}")
        sends.bar_label(bars, [f"{width:.1f}" for width in widths], padding=3, fontsize=8)
    sends.set(title="sends in a step", xlabel="MB per rank")
    sends.margins(x=0.12)
    sends.legend(fontsize=8, loc="upper right")
    figure.legend(*holds.get_legend_handles_labels(), loc="outside lower left", ncols=4, fontsize=8)
    held = (f"{name} {sum(counts[f'{kind}_bytes'] for kind in STATES) / 1e6:.1f}" for name, counts in stages.items())
    return described(figure, f"Held together, without what the peak adds, in MB: {', '.join(held)}")
