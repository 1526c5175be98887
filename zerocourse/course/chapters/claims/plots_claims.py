"""Pictures of claims: what is said beside what it is, and all verdicts on one page."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from ...show.figures import panels
from ...show.palette import FAINT, INK
from .claim import ANSWERS, MARKS, Examined


def said_and_found(rows: Mapping[str, tuple[float, Sequence[float]]], title: str, x: str) -> Figure:
    """A row for each name: a circle at what is said, a diamond at each value found, and the distance between them as a
    line.

    rows: name → (said, found), all above 0; the axis is logarithmic.   x: its name, with the unit.
    """
    (figure, axes), told = panels(8, 0.9 + 0.42 * len(rows)), []
    for at, (name, (said, found)) in enumerate(rows.items()):
        axes.plot([said, *found], [at] * (1 + len(found)), color=FAINT, linewidth=1.5, zorder=1)
        axes.plot([said], [at], "o", markersize=10, markerfacecolor="white", color=INK,
                  label=None if at else "what is said")
        axes.plot(found, [at] * len(found), "D", markersize=6, color=INK, label=None if at else "what it is")
        told.append(f"{name}: said {said:.3g}, found {', '.join(f'{value:.3g}' for value in found)}")
    axes.set(xscale="log", title=title, xlabel=x, ylim=(len(rows) - 0.4, -0.6))
    axes.set_yticks(range(len(rows)), list(rows))
    axes.grid(axis="x", alpha=0.3)
    ticks = [each for each in (5, 10, 20, 50, 100, 200, 500) if axes.get_xlim()[0] <= each <= axes.get_xlim()[1]]
    axes.set_xticks(ticks, [f"{tick}" for tick in ticks])
    axes.set_xticks([], minor=True)
    figure.legend(*axes.get_legend_handles_labels(), fontsize=9, loc="outside lower center", ncols=2)
    figure.set_label(f"{title}, {x}. " + "; ".join(told) + ".")
    return figure


def verdict_board(examined: Sequence[Examined]) -> Figure:
    """All claims in columns, one for each verdict that occurs, in their order; what a verdict means stands at the
    top."""
    columns = {answer: [each.claim.name for each in examined if each.judgement.answer == answer] for answer in ANSWERS}
    columns = {answer: names for answer, names in columns.items() if names}
    most = max(map(len, columns.values()))
    figure, axes = panels(8, 0.8 + 0.36 * most)
    for at, (answer, names) in enumerate(columns.items()):
        axes.text(at + 0.03, -1, f"{answer} ({len(names)})", fontsize=12, weight="bold", color=INK, va="center")
        for row, name in enumerate(names):
            axes.text(at + 0.03, row, MARKS[answer], fontsize=12, color=INK, va="center", family="DejaVu Sans")
            axes.text(at + 0.11, row, name, fontsize=11, color=INK, va="center")
        axes.vlines(at, -1.4, most - 0.5, color=FAINT, linewidth=1)
    axes.hlines(-0.5, 0, len(columns), color=FAINT, linewidth=1)
    axes.set(xlim=(0, len(columns)), ylim=(most - 0.4, -1.6))
    axes.axis("off")
    told = (f"{answer.capitalize()}: {', '.join(names)}." for answer, names in columns.items())
    figure.set_label("All claims by verdict. " + " ".join(told))
    return figure
