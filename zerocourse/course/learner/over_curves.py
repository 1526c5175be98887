"""A predicted curve over the measured one: large hollow marks of the same form and colour, joined by a thin dotted line."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from .answer_forms import Curve

WHOSE = {"you": "your guess", "somebody": "somebody's guess"}


def heights(figure: Figure) -> dict[str, dict[float, float]]:
    """Name of a curve → place → height, of the first axes."""
    return {line.get_label(): dict(zip(map(float, line.get_xdata()), map(float, line.get_ydata()), strict=True))
            for line in figure.axes[0].lines if not line.get_label().startswith("_")}


def draw_over(figure: Figure, form: Curve, guesses: Mapping[str, list[float | None]], who: str) -> None:
    """Draw guesses over the curves of the same names, and add them to the figure's alternative text."""
    axes = figure.axes[0]
    measured = {line.get_label(): line for line in axes.lines}
    for number, (name, guess) in enumerate(guesses.items()):
        points = [(place, height) for place, height in zip(form.at, form.recorded(guess), strict=True) if height is not None]
        line = measured[name]
        axes.plot(*zip(*points, strict=True), color=line.get_color(), marker=line.get_marker(), markersize=9, markerfacecolor="none",
                  linestyle=":", linewidth=1, label="_" if number else f"{WHOSE[who]} (hollow)")
        if axes.get_yscale() == "linear":
            axes.set_ylim(top=max(axes.get_ylim()[1], 1.05 * max(height for _, height in points)))
    if guesses:
        axes.legend(fontsize=9)
        said = "; ".join(f"{name} {form.say(guess)}" for name, guess in guesses.items())
        figure.set_label(f"{figure.get_label()} Hollow marks: what {who} predicted at {', '.join(map(str, form.at))}: {said}.")
