"""Figures of runs that are interrupted: how far a resumed run is from the unhurt one, attempts over time, lost time."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...show.alternative_text import described
from ...show.figures import PLATE, panels
from ...show.palette import FAINT, INK
from ...show.plots_curves import STYLES

FLOOR = 1e-7  # a difference of 0 is drawn here


def differences(lines: Mapping[str, Sequence[float]], right: Sequence[float], first: int) -> Figure:
    """A panel for each resumed run: how far its loss is from the unhurt run's in every step from `first` on."""
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    steps, said = range(first, first + len(right)), []
    panels = figure.subplots(2, -(-len(lines) // 2), sharex=True, sharey=True).flat
    for axes, (name, losses) in zip(panels, lines.items(), strict=False):
        gaps = [abs(one - other) for one, other in zip(losses, right, strict=True)]
        same = [step for step, gap in zip(steps, gaps) if not gap]
        axes.plot(same, [FLOOR] * len(same), "o", color=INK, markerfacecolor="white", markersize=5, label="the same bits")
        other = [(step, gap) for step, gap in zip(steps, gaps) if gap]
        axes.plot([step for step, _ in other], [gap for _, gap in other], "s-", color=INK, markersize=3)
        axes.set(yscale="log", title=name, ylim=(FLOOR / 2, 2))
        axes.title.set_fontsize(10)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        said.append(f"{name}: " + (f"differs from step {other[0][0]} on, by at most {max(gaps):.2g}" if other
                                   else "every loss the same to the last bit"))
    figure.axes[0].legend(fontsize=8)
    for axes in figure.axes[-(len(lines) // 2):]:
        axes.set_xlabel("step")
    for axes in figure.axes[::-(-len(lines) // 2)]:
        axes.set_ylabel("difference of the loss")
    figure.set_label("The loss after a resume against that of the run that was never stopped. " + "; ".join(said) + ".")
    return figure


def attempts(data: Sequence[Mapping], unhurt: Sequence[float], title: str) -> Figure:
    """Left: steps over seconds, a line for each attempt. Right: the losses of all attempts on the unhurt run's curve.

    data: as `elastic_trial.as_data` makes it.
    """
    figure, (time, loss) = panels(9, 4.8, 1, 2)
    loss.plot(range(1, len(unhurt) + 1), unhurt, color=FAINT, linewidth=5, alpha=0.35, label="never hurt")
    for number, attempt in enumerate(data, 1):
        colour, mark, dashes = STYLES[(number - 1) % len(STYLES)]
        rows = [row for row in attempt["rows"] if row["rank"] == min(each["rank"] for each in attempt["rows"])]
        name = f"attempt {number}, {rows[0]['ranks']} rank{'s' * (rows[0]['ranks'] > 1)}"
        style = {"color": colour, "marker": mark, "markersize": 4, "linestyle": dashes, "label": name}
        loss.plot([row["step"] for row in rows], [row["loss"] for row in rows], **style)
        ended = attempt["ended"] or "the run is complete"
        style["label"] = f"{name}, until\n{ended}"
        time.plot([row["at"] for row in rows], [row["step"] for row in rows], **style)
    for one, other in pairwise(data):
        stops, goes_on = one["rows"][-1], other["rows"][0]
        high = min(stops["step"], goes_on["step"]) - 1.2
        time.annotate("", (stops["at"], high), (goes_on["at"], high), arrowprops={"arrowstyle": "<->", "color": INK, "shrinkA": 0, "shrinkB": 0})
        time.text((stops["at"] + goes_on["at"]) / 2, high - 0.25, f"{goes_on['at'] - stops['at']:.1f} s without\na step", ha="center",
                  va="top", fontsize=8)
    time.set(title="what was computed when", xlabel="seconds", ylabel="step", ylim=(0, 1.15 * len(unhurt)))
    loss.set(title="the losses", xlabel="step", ylabel="loss")
    for axis in (time.yaxis, loss.xaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    time.set_yticks(range(0, len(unhurt) + 1, 3))
    time.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    loss.legend(fontsize=8)
    figure.suptitle(title)
    return described(figure, "All losses lie on the curve of the run that was never hurt.")


def lost_time(intervals: Sequence[float], shares: Mapping[str, Sequence[float]], best: Mapping[str, float]) -> Figure:
    """The share of the time that is lost, over the interval between two saves, both in minutes and percent.

    best: of each curve, the interval at which it is lowest.
    """
    figure, axes = panels(8, 3.6)
    for (name, heights), (colour, _, dashes) in zip(shares.items(), STYLES, strict=False):
        percent = [100 * height for height in heights]
        axes.plot(intervals, percent, color=colour, linestyle=dashes, label=name)
        at = best[name]
        axes.axvline(at, color=FAINT, linewidth=1, linestyle=":", gid=f"the least, near {at:.1f} minutes")
        axes.plot(at, min(percent), "o", color=colour, markersize=5)
        axes.annotate(f"{min(percent):.1f}% at {at:.1f} minutes", (at, min(percent)), (0, 15), textcoords="offset points", ha="center",
                      fontsize=9, bbox=PLATE)
    axes.set(xscale="log", yscale="log", ylim=(0.4, None), title="What saving and losing work cost", xlabel="minutes between two saves",
             ylabel="percent of the time")
    ticks = [tick for tick in (0.5, 1, 3, 6, 12, 24, 60, 120) if intervals[0] <= tick <= intervals[-1]]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks([0.5, 1, 3, 10, 30, 100], ["0.5", "1", "3", "10", "30", "100"])
    axes.minorticks_off()
    axes.legend(fontsize=9)
    return described(figure)
