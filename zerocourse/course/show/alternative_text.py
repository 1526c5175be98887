"""The alternative text of a figure, read from what is drawn in it: titles, axes, bars, lines and marks, with their values."""

from collections import defaultdict

from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation


def described(figure: Figure, *meaning: str) -> Figure:
    """The same figure, with its text as its label, which `show.figure` takes.

    Bars are read row by row, with the words beside them; of a line, where it begins and ends, and how far it goes between.
    A height is written as the axes say (`axes.fmt_ydata`). An artist that stands in no legend is named by its `gid`.
    meaning: sentences on what no artist knows, which come last.
    """
    panels = [figure.get_suptitle(), *map(panel_text, figure.axes), *meaning]
    figure.set_label(" ".join(text.rstrip(".") + "." for text in panels if text))
    return figure


def panel_text(axes: Axes) -> str:
    title, x, y = axes.get_title() or axes.get_title("left"), axes.get_xlabel(), axes.get_ylabel()
    drawn = [line for line in axes.lines if line.get_transform() == axes.transData]  # the others go across all of the axes
    through = [line for line in drawn if line.get_linestyle() != "None"]
    curves = [line for line in through if name_of(line)] or through[:1]
    places = [place for line in curves for place in line.get_xdata()]
    over = f", over {x}".removesuffix(", over ") + f" from {short(min(places))} to {short(max(places))}" if places else ""
    marks = [name_of(line) + (f" at {', '.join(map(short, line.get_xdata()))}" if line in drawn and len(line.get_xdata()) > 1 else "")
             for line in axes.lines if line not in through and name_of(line)]
    parts = ((f"{y}{over}", [course(axes, line) for line in curves]), bars(axes), ("marked", marks))
    return ". ".join(filter(None, [title, *(f"{head}: {'; '.join(said)}".strip(" ,:") for head, said in parts if said)]))


def course(axes: Axes, line: Line2D) -> str:
    """From where to where, and the highest and the lowest place if these lie between."""
    heights, say = list(line.get_ydata()), axes.fmt_ydata or short
    first, last, most, least = map(say, (heights[0], heights[-1], max(heights), min(heights)))
    return (f"{name_of(line)} goes from {first} to {last}".lstrip() + f", at most {most}" * (most not in (first, last))
            + f", at least {least}" * (least not in (first, last)))


def bars(axes: Axes) -> tuple[str, list[str]]:
    """The name of the values, and of each row, or column, the words beside it, and its bars by name."""
    rows, words, across = defaultdict(list), defaultdict(list), False
    for container in (each for each in axes.containers if isinstance(each, BarContainer)):
        across = container.orientation == "horizontal"
        for bar in container:
            (x, y), wide, high = bar.get_xy(), bar.get_width(), bar.get_height()
            rows[round(y + high / 2 if across else x + wide / 2)].append((name_of(container), short(wide if across else high)))
    for text in axes.texts:
        if isinstance(text, Annotation) and not text.get_text().strip().replace(".", "").isdigit():
            words[round(text.xy[across])].append(text.get_text().strip())
    axis, unit = (axes.yaxis, axes.get_xlabel()) if across else (axes.xaxis, axes.get_ylabel())
    places = axis.get_majorticklocs()
    names = dict(zip(map(round, places), axis.get_major_formatter().format_ticks(places), strict=True))
    said = []
    for row, values in rows.items():
        parts = ", ".join(f"{name} {value}".lstrip() for name, value in values if name or row not in words)
        told = ", ".join(words[row]) + f" ({parts})" * bool(parts) if row in words else parts
        said.append(f"{names.get(row, row)}: {told}")
    return unit, said


def name_of(artist) -> str:
    """What a legend, or its `gid`, calls it; "" for matplotlib's own names."""
    label = artist.get_label() or ""
    return (getattr(artist, "get_gid", str)() or "" if label.startswith("_") else label).replace("\n", " ")


def short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
