"""One picture of how well a reader predicts: the ratio of predicted to measured, by quantity, on a logarithmic axis."""

import math
import statistics
from collections.abc import Iterable, Mapping

from matplotlib.figure import Figure

from ...show.figures import panels
from ...show.palette import FAINT, INK, MEANINGS

Ratios = Mapping[str, Mapping[str, float]]  # quantity → id of the prediction → predicted by measured
NARROWEST, WIDEST = 10.0, 1e6  # the axis goes at least from a tenth to ten, and what is further out stands at its end
STEP = 0.16  # of a row's height, between marks that would else lie on each other


def typical_factor(ratios: Iterable[float]) -> float:
    """By how much a prediction is off, up or down: half of them are closer."""
    return math.exp(statistics.median(abs(math.log(ratio)) for ratio in ratios))


def reach(ratios: Ratios) -> float:
    """Where the axis ends, a power of ten; it begins at one part of it."""
    furthest = max((max(ratio, 1 / ratio) for of_quantity in ratios.values() for ratio in of_quantity.values()), default=1)
    return min(max(NARROWEST, 10.0 ** math.ceil(math.log10(furthest) - 1e-9)), WIDEST)


def calibration_figure(ratios: Ratios) -> Figure:
    """A row for each quantity, a mark for each prediction: right of the line it was too much, left of it too little."""
    figure, axes = panels(7, 1.5 + 0.55 * len(ratios))
    end = reach(ratios)
    axes.axvspan(1 / 2, 2, color="#e4e4e4", linewidth=0, zorder=0)
    axes.axvline(1, color=INK, linewidth=1)
    for row, of_quantity in enumerate(ratios.values()):
        inside = [min(max(ratio, 1 / end), end) for ratio in of_quantity.values()]
        axes.plot(inside, apart(inside, row, 0.05 * math.log(end)), "o", color=MEANINGS["parameters"].color, markersize=7, alpha=0.8,
                  markeredgecolor="white")
        axes.annotate(f"×/÷ {typical_factor(of_quantity.values()):.2g}", (1.02, row), xycoords=("axes fraction", "data"), va="center",
                      color=INK)
    axes.set(xscale="log", xlim=(1 / end / 1.15, end * 1.15), ylim=(len(ratios) - 0.5, -0.5), yticks=range(len(ratios)),
             yticklabels=[f"{quantity} ({len(of_quantity)})" for quantity, of_quantity in ratios.items()],
             xlabel="predicted / measured   (left of 1: too little, right of 1: too much)", title="Your predictions (grey: within a factor of 2)")
    axes.annotate("half are\nwithin", (1.02, 1), xycoords="axes fraction", va="bottom", color=FAINT)
    ticks = axis_ticks(end)
    axes.set_xticks(list(ticks.values()), list(ticks), color=INK)
    axes.set_xticks([], minor=True)
    axes.spines[["top", "right", "left"]].set_color(FAINT)
    figure.set_label(f"Predicted by measured, on a logarithmic axis from 1/{end:g} to {end:g}. " + " ".join(
        f"{quantity}: {', '.join(f'{ratio:.3g}' for ratio in of_quantity.values())}; half of them are within a factor of "
        f"{typical_factor(of_quantity.values()):.2g}." for quantity, of_quantity in ratios.items()))
    return figure


def apart(places: list[float], row: int, near: float) -> list[float]:
    """Heights of the marks of a row: those that are nearer than `near` in the logarithm stand on each other."""
    heights, before = {}, []
    for index in sorted(range(len(places)), key=places.__getitem__):
        taken = [heights[other] for other in before if math.log(places[index] / places[other]) < near]
        heights[index] = next(height for height in (row + STEP * sign * (turn + 1 >> 1) for turn in range(len(places) + 1)
                                                    for sign in [1 if turn % 2 else -1]) if height not in taken)
        before.append(index)
    return [heights[index] for index in range(len(places))]


def axis_ticks(end: float) -> dict[str, float]:
    """The words on the axis, and where they stand."""
    last = round(math.log10(end))
    powers = [10 ** power for power in range(last, 0, -2 if last <= 3 else -last)]  # words need room
    inner = {"1/2": 1 / 2, "1": 1.0, "2": 2.0} if end <= 100 else {"1": 1.0}
    return {f"1/{power:,}": 1 / power for power in powers} | inner | {f"{power:,}": float(power) for power in reversed(powers)}


def calibration_lines(ratios: Ratios, wide: int) -> list[str]:
    """The same in the columns of a terminal: `o` is a prediction, a digit is several, `|` is where predicted is measured."""
    end, name = reach(ratios), max(map(len, ratios), default=0) + 2
    after = "  half are within ×/÷ 1.0e+05"
    columns = max(21, min(61, wide - name - len(after)) // 2 * 2 - 1)
    head, lines = list(" " * columns), []
    for text, place in axis_ticks(end).items():
        if text not in ("1/2", "2"):
            at = min(max(column(place, end, columns) - len(text) // 2, 0), columns - len(text))
            head[at: at + len(text)] = text
    for quantity, of_quantity in ratios.items():
        strip, counts = list("·" * columns), {}
        strip[columns // 2] = "|"
        for ratio in of_quantity.values():
            at = column(ratio, end, columns)
            counts[at] = counts.get(at, 0) + 1
        for at, count in counts.items():
            strip[at] = "o" if count == 1 else str(min(count, 9))
        lines.append(f"{quantity:{name}}{''.join(strip)}  half are within ×/÷ {typical_factor(of_quantity.values()):.2g}")
    return [" " * name + "".join(head).rstrip(), *lines]


def column(ratio: float, end: float, columns: int) -> int:
    """Where a ratio stands among so many columns, the middle one for 1."""
    place = math.log(ratio) / math.log(end)
    return round((min(max(place, -1), 1) + 1) / 2 * (columns - 1))
