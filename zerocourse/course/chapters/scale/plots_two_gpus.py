"""The published two-GPU table beside what we compute and measure: a pure function from cells to a matplotlib figure."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from ...show.alternative_text import described
from .two_gpu_table import GB, TwoGpuCell

WAYS = {"formula": ("#e4e4e4", ""), "simulated": ("#0072b2", ""), "measured": ("#56b4e9", "//"),
        "published": ("#e69f00", "..")}


def two_gpus_figure(sizes: Mapping[str, Sequence[TwoGpuCell]]) -> Figure:
    """The peak per rank in GB, a group of bars for each mode, a row for each size. What was not measured has no bar."""
    figure = Figure(figsize=(9, 2.4 * len(sizes) + 0.6), layout="constrained")
    rows = figure.subplots(len(sizes), 1, squeeze=False)[:, 0]
    width = 0.8 / len(WAYS)
    for axes, (size, cells) in zip(rows, sizes.items(), strict=True):
        for place, (way, (color, hatch)) in enumerate(WAYS.items()):
            seen = {at: getattr(cell, way) / GB for at, cell in enumerate(cells) if getattr(cell, way) is not None}
            bars = axes.bar([at + (place - 1.5) * width for at in seen], seen.values(), 0.94 * width, color=color, hatch=hatch,
                            edgecolor="#222222", linewidth=0.6, label=way)
            axes.bar_label(bars, fmt="%.1f", fontsize=7, padding=1)
        axes.set(title=f"GPT-2 {size}", ylabel="GB per rank", xticks=range(len(cells)),
                 xticklabels=[cell.mode for cell in cells])
        axes.margins(y=0.15)
    ways = {label: handle for axes in rows for handle, label in zip(*axes.get_legend_handles_labels())}
    figure.legend(ways.values(), ways.keys(), loc="outside lower center", ncols=len(ways), fontsize=8)
    return described(figure)
