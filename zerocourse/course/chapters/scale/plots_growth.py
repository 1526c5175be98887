"""How costs grow, on log-log paper: a power of the size is a straight line, and its slope is the exponent."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from ...show.alternative_text import described
from ...show.figures import panels
from ...show.palette import FAINT
from ...show.plots_curves import STYLES

GUIDES = {"as the size": (1, "-"), "as its square": (2, (0, (6, 4)))}  # name → exponent and line


def growth_figure(rows: Sequence[Mapping], title: str) -> Figure:
    """A line for each cost, as a multiple of its value at the smallest size; its name says its exponent.

    rows: at most four of `recorded_growth()`, or of `bench.growth.as_dict`, over the same sizes.
    """
    figure, axes = panels(8, 4)
    sizes = rows[0]["sizes"]
    for row, (colour, mark, dashes) in zip(rows, STYLES, strict=False):
        multiples = [value / row["values"][0] for value in row["values"]]
        axes.plot(sizes, multiples, color=colour, marker=mark, markersize=5, linestyle=dashes,
                  label=f"{row['what']}: {row['exponent']:z.2f}")
    highest = axes.get_ylim()[1]
    for name, (power, dashes) in GUIDES.items():
        axes.plot(sizes, [(size / sizes[0]) ** power for size in sizes], color=FAINT, linewidth=0.8, linestyle=dashes,
                  label=name)
    axes.set(xscale="log", yscale="log", title=title, xlabel=rows[0]["by"], ylabel=f"times as much as at {sizes[0]}")
    axes.set_ylim(0.7, 1.5 * max(2.0, highest))
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    figure.legend(fontsize=9, title="cost: its exponent", loc="outside lower center", ncols=2)
    return described(figure, "Behind each cost stands its exponent, fitted from {:,} to {:,}".format(*rows[0]["fitted"]))
