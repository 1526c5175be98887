"""Which experts the letters of a text take."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ...show.alternative_text import described
from ...show.figures import panels
from ...show.palette import INK


def routed_text(text: str, experts: Sequence[Sequence[int]], count: int) -> Figure:
    """experts: of each letter, the experts that it takes, of `count`."""
    figure, axes = panels(8, 0.9 + 0.24 * count)
    for place, chosen in enumerate(experts):
        for expert in chosen:
            axes.add_patch(Rectangle((place, expert), 0.9, 0.9, facecolor="#9cc3e0", edgecolor=INK, linewidth=0.6))
    axes.set(xlim=(-0.3, len(text)), ylim=(count, -0.2), xticks=[place + 0.45 for place in range(len(text))],
             yticks=[each + 0.45 for each in range(count)],
             yticklabels=range(count), ylabel="expert", title="the experts that each letter takes in the first layer")
    axes.set_xticklabels(["·" if letter == " " else letter for letter in text], fontsize=9, family="monospace")
    axes.tick_params(length=0)
    busy = [sum(expert in chosen for chosen in experts) for expert in range(count)]
    return described(figure, f"{text!r}; letters that each expert gets: {', '.join(map(str, busy))}")
