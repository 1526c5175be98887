"""Pictures of offload: the data-flow graph of a step with a cut, all cuts at once, and what fits on a small device."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from ....formulas.placements import COMPUTE, EDGES, HELD, Placement
from ...show.alternative_text import described
from ...show.figures import PLATE, panels
from ...show.palette import FAINT, INK, MEANINGS

PLACES = {COMPUTE: (1.2, 3), "parameters fp16": (1.2, 5), "gradients fp16": (1.2, 1), "cast": (4.2, 5),
          "update": (4.2, 1), "parameters fp32": (7.2, 3.6), "momentum fp32": (7.2, 2.1), "variance fp32": (7.2, 0.6)}
WIDE, HIGH = 2.1, 0.72
KINDS = {"parameters fp16": "parameters", "gradients fp16": "gradients", "parameters fp32": "optimizer",
         "momentum fp32": "optimizer", "variance fp32": "optimizer"}
CUT = "#b2182b"


def data_flow(placement: Placement, title: str = "") -> Figure:
    """The graph of a step. What lies on the host has a thick frame; edges that cross the link are thick and dashed."""
    figure, axes = panels(8, 4.4)
    host = placement.on_host
    merged: dict[tuple[str, str], int] = {}
    for start, end, nbytes in EDGES:
        merged[start, end] = merged.get((start, end), 0) + nbytes
    for (start, end), nbytes in merged.items():
        crosses = (start in host) != (end in host)
        (x, y), (to_x, to_y) = PLACES[start], PLACES[end]
        back = (end, start) in merged
        bend = 0.16 if back else 0.0
        if x == to_x:
            ends = (x, y + (HIGH / 2 if to_y > y else -HIGH / 2)), (to_x, to_y + (-HIGH / 2 if to_y > y else HIGH / 2))
        else:
            side = WIDE / 2 if to_x > x else -WIDE / 2
            ends = (x + side, y), (to_x - side, to_y)
        axes.annotate("", ends[1], ends[0], arrowprops={
            "arrowstyle": "-|>", "color": CUT if crosses else FAINT, "linewidth": 2.6 if crosses else 1.1,
            "linestyle": "--" if crosses else "-", "connectionstyle": f"arc3,rad={bend}"})
        if not back or start == "update":  # two arrows, there and back, share one number: both carry as much
            middle = [(a + b) / 2 for a, b in zip(*ends, strict=True)]
            axes.text(*middle, f"{nbytes}" if not back else f"{nbytes} + {merged[end, start]}", ha="center", va="center", fontsize=9,
                      color=CUT if crosses else FAINT, weight="bold" if crosses else "normal",
                      bbox={"color": "white", "pad": 1})
    for name, (x, y) in PLACES.items():
        kind = MEANINGS[KINDS[name]] if name in KINDS else None
        box = {"boxstyle": "round,pad=0.03", "facecolor": kind.color if kind else "white", "edgecolor": INK,
               "linewidth": 2.6 if name in host else 1}
        axes.add_patch(FancyBboxPatch((x - WIDE / 2, y - HIGH / 2), WIDE, HIGH, **box))
        where = "host" if name in host else "device"
        axes.text(x, y, f"{name}\n{where}", ha="center", va="center", fontsize=8.5, weight="bold" if name in host else "normal",
                  bbox={"color": "white", "alpha": 0.88, "pad": 1.2})
    axes.set(xlim=(0, 8.5), ylim=(0, 5.6), title=title)
    axes.axis("off")
    on_host = ", ".join(name for name in HELD if name in host) or "nothing"
    figure.set_label(f"{title}. On the host: {on_host}. {placement.moved} bytes per parameter cross the link in a step, and "
                     f"{placement.device} bytes per parameter stay on the device.")
    return figure


def all_placements(every: Sequence[Placement], best: Sequence[Placement]) -> Figure:
    """Every placement as a point: bytes over the link, and bytes that stay on the device. The best ones are named."""
    figure, axes = panels(8, 3.6)
    counts: dict[tuple[int, int], int] = {}
    for each in every:
        counts[each.moved, each.device] = counts.get((each.moved, each.device), 0) + 1
    axes.scatter(*zip(*counts, strict=True), s=[16 + 10 * n for n in counts.values()], color="#b5b5b5", edgecolor=FAINT)
    axes.plot([each.moved for each in best], [each.device for each in best], "D", color=INK, markersize=8, linestyle="none")
    for each in best:
        axes.annotate(f"{each.moved} over the link, {each.device} on the device", (each.moved, each.device), (9, 5),
                      textcoords="offset points", fontsize=9, bbox=PLATE)
    axes.set(xlabel="bytes per parameter over the link in a step", ylabel="bytes per parameter on the device",
             title=f"All {len(every)} placements", xlim=(-0.8, None), ylim=(-0.8, 17.5))
    named = "; ".join(f"{each.moved} over the link and {each.device} on the device" for each in best)
    figure.set_label(f"All {len(every)} placements, by bytes per parameter over the link and on the device. No other one beats "
                     f"these: {named}.")
    return figure


def budget_bars(peaks: Mapping[str, int], budget: int, moved: Mapping[str, int]) -> Figure:
    """What each arrangement needs on the device, beside the budget. peaks, moved: name → bytes."""
    figure, axes = panels(8, 0.6 + 0.5 * len(peaks))
    for at, (name, nbytes) in enumerate(peaks.items()):
        fits = nbytes <= budget
        axes.barh(at, nbytes / 1e6, color="#7fb4a2" if fits else "white", edgecolor=INK, hatch="" if fits else "///")
        axes.annotate(f"{nbytes / 1e6:.1f} MB, {'fits' if fits else 'does not fit'}; link {moved[name] / 1e6:.1f} MB",
                      (nbytes / 1e6, at), (5, 0), textcoords="offset points", va="center", fontsize=9, zorder=4,
                      bbox={"color": "white", "pad": 1})
    axes.axvline(budget / 1e6, color=CUT, linestyle="--", linewidth=2)
    axes.set_title(f"dashed: the budget, {budget / 1e6:.0f} MB", fontsize=10)
    axes.set_yticks(range(len(peaks)), list(peaks))
    axes.invert_yaxis()
    axes.set(xlabel="MB on the device", xlim=(0, 1.75 * max(peaks.values()) / 1e6))
    return described(figure)
