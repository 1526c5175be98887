"""Timelines of recorded steps: what each rank computed, what was on its way, why it stood still, and its bytes by kind.

    timeline(events)                       one step of all ranks
    compare({"ZeRO-1": events, ...})       one rank's steps, below each other or side by side, on shared axes
    live_bytes({"ZeRO-1": events, ...})    one curve each

Events are dictionaries, as `events.Event` has them. All functions are pure: nothing is computed or launched here.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from ...measure.intervals import LINK, PYTHON, ROOT, Interval, collectives, computing, gaps, in_rows, ranks_of, waiting
from ...measure.stage_meter import KINDS
from .figures import panels
from .palette import FAINT, INK, MEANINGS

WIDTH = 9.6  # inches
SMALL = 7.5  # points, of labels in blocks
# A collective has the colour of what it moves. What is not work has none: waits are hatched, the rest is grey.
SPANS = {"forward": {"facecolor": "#d3e5f2"}, "backward": {"facecolor": "#9cc3e0"}, "step": {"facecolor": "#8fd3bb"},
         "all_gather": {"facecolor": MEANINGS["parameters"].color}, "reduce_scatter": {"facecolor": MEANINGS["gradients"].color},
         "down": {"facecolor": MEANINGS["gradients"].color}, "up": {"facecolor": MEANINGS["parameters"].color},
         "read": {"facecolor": MEANINGS["optimizer"].color}, "write": {"facecolor": MEANINGS["optimizer"].color},
         "reshard": {"facecolor": INK},
         "rank": {"facecolor": "white", "hatch": "////"}, LINK: {"facecolor": "white", "hatch": "...."},
         ROOT: {"facecolor": "#e8eef3"}, PYTHON: {"facecolor": "#ececec"}}
WORDS = {"all_gather": "all-gather", "reduce_scatter": "reduce-scatter", "step": "optimizer's step", "reshard": "free",
         "down": "down to the host", "up": "up from the host", "read": "read from disk", "write": "written to disk",
         "rank": "stands still: waits for another rank", LINK: "stands still: waits for the link",
         ROOT: "the root: embeddings, head, loss", PYTHON: "nothing of the model: Python, copies"}
LANES = ("compute", "all_gather", "reduce_scatter", "down", "up", "read", "write")
FORMULA, DASHES = "by formula, in MB", (0, (5, 3))
LANE, LANES_POINTS, LETTER = 0.86, 96, 0.62 * SMALL  # of a lane's height, what blocks take; points of all lanes; a letter's width

thin_hatches = rc_context({"hatch.linewidth": 0.6})


@thin_hatches
def timeline(events: Sequence[dict], title: str = "", formulas: Mapping[str, int] | None = None) -> Figure:
    """One step: for each rank its lanes over the bytes alive on it, stacked by kind.

    formulas: name → bytes, each drawn as a dashed line across the bytes of every rank.
    """
    ranks = ranks_of(events)
    return stacked([(f"{title.rstrip(' ,')}, rank {rank}".lstrip(", "), events, rank, formulas or {}) for rank in ranks])


@thin_hatches
def compare(steps: Mapping[str, Sequence[dict]], formulas: Mapping[str, Mapping[str, int]] | None = None, rank: int = 0,
            lanes: bool = True) -> Figure:
    """Steps of one rank, by name, on shared axes: a millisecond and a megabyte are as long in each.

    formulas: by the same names, name → bytes, drawn as dashed lines.
    lanes: with what the rank did over its bytes, one step below the other; False: only the bytes, side by side.
    """
    formulas = formulas or {}
    if lanes:
        return stacked([(name, events, rank, formulas.get(name, {})) for name, events in steps.items()])
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    columns = figure.subplots(1, len(steps), sharey=True, squeeze=False)[0]
    tops = []
    for axes, (name, events) in zip(columns, steps.items(), strict=True):
        begin = min(event["start"] for event in events if event["rank"] == rank)
        tops.append(draw_bytes(axes, events, rank, begin, formulas.get(name, {})))
        axes.set_title(name, fontsize=10, weight="bold")
        axes.set_xlabel("milliseconds", fontsize=8)
        axes.set_ylabel("MB alive" if axes is columns[0] else "", fontsize=9)
    columns[0].set_ylim(0, max(tops))
    legend(figure, columns, columns=6)
    figure.set_label(f"Bytes alive on rank {rank} over a step, stacked by kind. "
                     + " ".join(f"{name}: {extremes(events, rank)}." for name, events in steps.items()))
    return figure


def stacked(rows: Sequence[tuple[str, Sequence[dict], int, Mapping[str, int]]]) -> Figure:
    """One below the other, (title, events, rank, formulas) each: the lanes of the rank over its bytes."""
    figure = Figure(figsize=(WIDTH, 0.9 + 2.9 * len(rows)), layout="constrained")
    figure.get_layout_engine().set(hspace=0.01, h_pad=0.03)
    axes = figure.subplots(2 * len(rows), 1, sharex=True, squeeze=False, height_ratios=[1.15, 1.3] * len(rows))[:, 0]
    starts = [min(event["start"] for event in events) for _, events, _, _ in rows]
    longest = max(max(event["end"] for event in events) - begin for (_, events, _, _), begin in zip(rows, starts, strict=True))
    axes[-1].set(xlim=(-0.005e3 * longest, 1.02e3 * longest), xlabel="milliseconds since the step began")
    axes[-1].xaxis.label.set_size(9)
    tops = []
    for index, (title, events, rank, formulas) in enumerate(rows):
        lanes, alive = axes[2 * index : 2 * index + 2]
        draw_lanes(lanes, events, rank, starts[index])
        lanes.set_title(title, loc="left", fontsize=10, weight="bold")
        tops.append(draw_bytes(alive, events, rank, starts[index], formulas))
        alive.set_ylabel("MB alive", fontsize=9)
    for alive in axes[1::2]:
        alive.set_ylim(0, max(tops))
    legend(figure, axes)
    figure.set_label("What a rank computes and which collectives are under way, over the bytes alive on it. "
                     + " ".join(f"{title}: {extremes(events, rank)}." for title, events, rank, _ in rows))
    return figure


def extremes(events: Sequence[dict], rank: int) -> str:
    """How many bytes are alive at most and at the end, and when, for readers who do not see the picture."""
    ordered = sorted((event for event in events if event["rank"] == rank), key=lambda event: event["end"])
    highest = max(ordered, key=lambda event: event["alive"])
    return (f"at most {highest['alive'] / 1e6:.1f} MB, when {highest['verb']} of {highest['unit']} ends, "
            f"and {ordered[-1]['alive'] / 1e6:.1f} MB at the end")


# -- one rank's lanes --------------------------------------------------------------------------------------------------

def draw_lanes(axes: Axes, events: Sequence[dict], rank: int, begin: float) -> None:
    """What the rank computes, with its waits and what is neither, over its collectives. The x axis must have its limits."""
    lanes = [lane for lane in LANES if lane == "compute" or any(event["verb"] == lane for event in events)]
    axes.set_ylim(len(lanes) - 0.1, -0.06)
    waits = waiting(events, rank)
    free = [Interval(event["start"], event["end"], event["unit"], "reshard") for event in events
            if event["verb"] == "reshard" and event["rank"] == rank]
    blocks = [block._replace(what="step") if block.verb == "step" else block for block in computing(events, rank)]
    row = [(gap, gap.what) for gap in gaps(events, rank)] + [(block, block.verb) for block in blocks]
    row += [(wait, LINK if wait.what == LINK else "rank") for wait in waits] + [(each, "reshard") for each in free]
    for interval, style in row:
        draw(axes, interval, style, begin, 0.0)
    write(axes, [largest_part(block, waits) for block in blocks], begin, 0.0)
    write(axes, [wait for wait in waits if wait.what != LINK], begin, 0.0, boxed=True)
    for place, verb in enumerate(lanes[1:], 1):
        rows = in_rows(collectives(events, rank, verb))
        for number, intervals in enumerate(rows):
            top = place + LANE * number / len(rows)
            for interval in intervals:
                draw(axes, interval, verb, begin, top, LANE / len(rows))
            write(axes, intervals, begin, top, LANE / len(rows), color="white" if verb in ("all_gather", "up") else INK)
    axes.set(yticks=[place + LANE / 2 for place in range(len(lanes))], yticklabels=[WORDS.get(lane, lane) for lane in lanes])
    axes.tick_params(length=0, labelsize=8, labelbottom=False)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)


def draw(axes: Axes, interval: Interval, style: str, begin: float, top: float, height: float = LANE) -> None:
    """A block of a lane; top, height: in lanes."""
    axes.add_patch(Rectangle(((interval.start - begin) * 1e3, top), (interval.end - interval.start) * 1e3, height, label=style,
                             linewidth=0.4, edgecolor=FAINT if "hatch" in SPANS[style] else "white", **SPANS[style]))


def write(axes: Axes, intervals: Sequence[Interval], begin: float, top: float, height: float = LANE, color: str = INK,
          boxed: bool = False) -> None:
    """The numbers of blocks (3 of h.3), and what has a name alone, where there is room for them."""
    points = height * LANES_POINTS / abs(np.diff(axes.get_ylim())[0])
    if points < 6:  # too small to read
        return
    for interval in intervals:
        label = interval.what.rpartition(".")[2]  # everywhere: beside each other, "10" and "h.10" look like different things
        if len(label) * LETTER <= (interval.end - interval.start) * 1e3 * points_per_millisecond(axes):
            axes.text(((interval.start + interval.end) / 2 - begin) * 1e3, top + height / 2, label, ha="center", va="center_baseline",
                      fontsize=min(SMALL, 0.85 * points), clip_on=True, color=color,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8} if boxed else None)


def largest_part(block: Interval, others: Sequence[Interval]) -> Interval:
    """The longest part of the block that none of the others covers."""
    edges = [block.start]
    for other in sorted(others):
        if other.start < block.end and other.end > block.start:
            edges += [max(other.start, block.start), min(other.end, block.end)]
    parts = zip(edges[::2], [*edges[1::2], block.end], strict=True)
    start, end = max(parts, key=lambda part: part[1] - part[0])
    return block._replace(start=start, end=end)


def points_per_millisecond(axes: Axes) -> float:
    left, right = axes.get_xlim()
    return 72 * 0.9 * axes.get_figure().get_figwidth() / (right - left)


# -- one rank's bytes --------------------------------------------------------------------------------------------------

def draw_bytes(axes: Axes, events: Sequence[dict], rank: int, begin: float, formulas: Mapping[str, int]) -> float:
    """MB alive after each event, stacked by kind where the events know it, the highest and the last value written at it.
    Returns how high the axis should be."""
    ordered = sorted((event for event in events if event["rank"] == rank), key=lambda event: event["end"])
    times = [0.0, *((event["end"] - begin) * 1e3 for event in ordered)]
    alive = [event["alive"] / 1e6 for event in ordered]
    alive = [alive[0], *alive]  # before the first event ends, as after it
    if all(event.get("kinds") for event in ordered):
        bottom = np.zeros(len(alive))
        for kind in KINDS:
            heights = [event["kinds"][kind] / 1e6 for event in ordered]
            upper = bottom + [heights[0], *heights]
            if any(heights):
                axes.fill_between(times, bottom, upper, step="post", facecolor=MEANINGS[kind].color, edgecolor="white",
                                  hatch=MEANINGS[kind].mpl_hatch, linewidth=0, label=kind)
            bottom = upper
    axes.step(times, alive, where="post", color=INK, linewidth=0.9)
    highest = max(range(len(alive)), key=alive.__getitem__)
    places = 1 if alive[highest] >= 1 else 3  # of a model of a few kB, 0.1 and 0.0 MB would say nothing
    words = {"textcoords": "offset points", "fontsize": 8, "zorder": 4,
             "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.85}}
    for index, offset, place in ((highest, (0, 4), "center"), (len(alive) - 1, (4, 0), "left")):
        axes.annotate(f"{alive[index]:.{places}f}", (times[index], alive[index]), offset, ha=place, weight="bold",
                      va="bottom" if index == highest else "center", **words)
    for name, nbytes in sorted(formulas.items(), key=lambda each: each[1]):
        above = nbytes == max(formulas.values())  # the others are written below their lines
        axes.axhline(nbytes / 1e6, color=INK, linewidth=1, linestyle=DASHES, zorder=3, label=FORMULA)
        axes.annotate(f"{name}: {nbytes / 1e6:.1f}", (0, nbytes / 1e6), (3, 3 if above else -3),
                      xycoords=("axes fraction", "data"), va="bottom" if above else "top", **words)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return 1.2 * max([*alive, *(nbytes / 1e6 for nbytes in formulas.values())]) or 1.0


def legend(figure: Figure, axes: Sequence[Axes], columns: int = 4) -> None:
    """What blocks and areas mean, below the figure: only what is there."""
    spans = {patch.get_label() for each in axes for patch in each.patches}
    kinds = {area.get_label() for each in axes for area in each.collections}
    lines = {line.get_label() for each in axes for line in each.lines}
    handles = [Patch(label=WORDS.get(name, name), edgecolor=FAINT, linewidth=0.4, **style)
               for name, style in SPANS.items() if name in spans]
    handles += [Patch(label=kind, facecolor=MEANINGS[kind].color, hatch=MEANINGS[kind].mpl_hatch, edgecolor="white", linewidth=0)
                for kind in KINDS if kind in kinds]
    handles += [Line2D([], [], color=INK, linewidth=1, linestyle=DASHES, label=FORMULA)] * (FORMULA in lines)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)


# -- other forms -------------------------------------------------------------------------------------------------------

def timeline_until(events: Sequence[dict], moment: int, title: str = "", formulas: Mapping[str, int] | None = None) -> Figure:
    """`timeline` with everything after event number `moment` faded (counted from 0 in the order of their ends)."""
    figure = timeline(events, title, formulas)
    ordered = sorted(events, key=lambda event: event["end"])
    begin, now = min(event["start"] for event in events), ordered[moment]["end"]
    for axes in figure.axes:
        right = axes.get_xlim()[1]
        axes.axvspan((now - begin) * 1e3, right, color="white", alpha=0.8, zorder=4.2)  # above lines and words
        axes.axvline((now - begin) * 1e3, color=INK, linewidth=1, zorder=4.3)
        axes.set_xlim(right=right)
    return figure


def live_bytes(curves: dict[str, Sequence[dict]], title: str, what: str) -> Figure:
    """Bytes alive after each event, one curve per name. The axis counts events, because stages need different times.

    In each curve the forward, if there is one, takes the left half, and the backward takes the right half.
    curves: name → events of one rank, as in `timeline`.   what: the label of the axis; its unit is MB.
    """
    figure, axes = panels(WIDTH, 3.2)
    axes.set(title=title, ylabel=what, xlabel="from the first event to the last", xticks=[])
    for (name, events), style in zip(curves.items(), cycle(("-", "--", "-.", ":"))):
        ordered = sorted(events, key=lambda event: event["end"])
        begins = min((event["start"] for event in ordered if event["verb"] == "backward"), default=float("-inf"))
        before = sum(event["end"] <= begins for event in ordered)
        known, places = ([0, before, len(ordered) - 1], [0, 0.5, 1]) if before else ([0, len(ordered) - 1], [0, 1])
        axes.step(np.interp(range(len(ordered)), known, places), [event["alive"] / 1e6 for event in ordered], where="post",
                  label=name, linestyle=style)
        if before:
            axes.axvline(0.5, color="grey", linewidth=1, linestyle=":", zorder=0)
            axes.set_xticks([0.25, 0.75], ["forward", "backward"])
            axes.set_xlabel("event by event")
    axes.set_ylim(0, None)
    axes.margins(x=0.01)
    axes.legend(loc="lower right")
    figure.set_label(f"{what} after each event, {title}. " + " ".join(
        f"{name}: at most {max(event['alive'] for event in events) / 1e6:.1f} MB." for name, events in curves.items()))
    return figure
