"""Timelines of recorded steps: what each rank computed, what was on its way, where it stood still, and its bytes by kind.

    timeline(events)                       one step of all ranks
    compare({"ZeRO-1": events, ...})       one rank's steps, below each other or side by side, on shared axes
    step_film(events)                      one step of all ranks, event by event
    live_bytes({"ZeRO-1": events, ...})    one curve each

Events are dictionaries, as `events.Event` has them. All functions are pure: nothing is computed or launched here.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ...formulas.units import gb
from ...measure.backward_lanes import without
from ...measure.intervals import ROOT, Interval, collectives, computing, gaps, ranks_of, waiting
from .cells.shown import Shown
from .figures import panels
from .film import Film, Frame
from .pictures import svg
from .pictures.bytes_chart import draw_bytes, draw_key
from .pictures.timeline_lanes import LEFT, WAITS, Lane, LaneBlock, axis, draw_lanes, height_of, legend_of

WIDE, RIGHT = 860, 48  # units: of a timeline; room at its right, for the last value
BYTES, TITLE, BETWEEN = 130, 28, 22  # units: height of the bytes' chart, of a title, between one step and the next
MOVES = {"all_gather": "all-gather", "reduce_scatter": "reduce-scatter", "down": "down to the host", "up": "up from the host",
         "read": "read from disk", "write": "written to disk"}


class RankStep(NamedTuple):
    """One rank's step to draw. formulas: name → bytes, each a dashed line across the rank's bytes."""

    title: str
    events: Sequence[dict]
    rank: int
    formulas: Mapping[str, int]

    @property
    def begin(self) -> float:
        return min(event["start"] for event in self.events)

    @property
    def takes(self) -> float:
        """Seconds from the first event of any rank to the last."""
        return max(event["end"] for event in self.events) - self.begin

    @property
    def mine(self) -> list[dict]:
        return sorted((event for event in self.events if event["rank"] == self.rank), key=lambda event: event["end"])

    @property
    def most(self) -> int:
        return max([*(event["alive"] for event in self.mine), *self.formulas.values()])


def timeline(events: Sequence[dict], title: str = "", formulas: Mapping[str, int] | None = None) -> Shown:
    """One step: for each rank its lanes over the bytes alive on it, stacked by kind.

    formulas: name → bytes, each drawn as a dashed line across the bytes of every rank.
    """
    return stacked(steps_of(events, title, formulas))


def steps_of(events: Sequence[dict], title: str, formulas: Mapping[str, int] | None) -> list[RankStep]:
    return [RankStep(f"{title.rstrip(' ,')}, rank {rank}".lstrip(", "), events, rank, formulas or {}) for rank in ranks_of(events)]


def compare(steps: Mapping[str, Sequence[dict]], formulas: Mapping[str, Mapping[str, int]] | None = None, rank: int = 0,
            lanes: bool = True, alive: bool = True) -> Shown:
    """Steps of one rank, by name, on shared axes: a millisecond and a megabyte are as long in each.

    formulas: by the same names, name → bytes, drawn as dashed lines.
    lanes: with what the rank did over its bytes, one step below the other; False: only the bytes, side by side.
    alive: with the bytes below the lanes.
    """
    drawn = [RankStep(name, events, rank, (formulas or {}).get(name, {})) for name, events in steps.items()]
    return stacked(drawn, alive, key_first=True) if lanes else beside(drawn)


def stacked(steps: Sequence[RankStep], alive: bool = True, key_first: bool = False) -> Shown:
    """One below the other: the lanes of a rank, over its bytes. key_first: with the legend above, where it is seen with the first."""
    drawing, words = drawn_steps(steps, alive, key_first)
    return Shown(words, svg=svg.still(drawing, "What a rank computes, what moves meanwhile, and the bytes alive", words))


def drawn_steps(steps: Sequence[RankStep], alive: bool = True, key_first: bool = False) -> tuple[svg.Drawing, str]:
    """The picture of `stacked`, and its words."""
    scale = (WIDE - LEFT - RIGHT) / (1e3 * max(step.takes for step in steps))
    lanes = [lanes_of(step) for step in steps]
    below = (BYTES + BETWEEN if alive else 0) + 38
    key = 4 + 24 + 24 * alive
    drawing = svg.Drawing(WIDE, sum(TITLE + height_of(each) + below for each in lanes) + key)
    top, most = float(key * key_first), max(step.most for step in steps)
    for step, its in zip(steps, lanes, strict=True):
        drawing.text(0, top + 16, step.title, bold=True)
        top = draw_lanes(drawing, its, top + TITLE, scale, 1e3 * step.takes)
        if alive:
            draw_bytes(drawing, step, top + 8, BYTES, most, scale, LEFT)
            top += BYTES + BETWEEN
        top = axis(drawing, top - 6 * alive, scale, 1e3 * step.takes, "milliseconds since the step began") + 6 * alive
    top = 0 if key_first else top + 4
    legend_of(drawing, top, [lane for its in lanes for lane in its])
    if alive:
        draw_key(drawing, top + 24, steps)
    words = "What a rank computes and which collectives are under way" + ", over the bytes alive on it" * alive + ". "
    return drawing, words + " ".join(f"{step.title}: {extremes(step) if alive else f'{1e3 * step.takes:.0f} ms'}." for step in steps)


def beside(steps: Sequence[RankStep]) -> Shown:
    """Only the bytes, side by side."""
    gap, most = 30, max(step.most for step in steps)
    wide = (WIDE - LEFT / 2 - (gap + RIGHT) * len(steps)) / len(steps)
    scale = wide / (1e3 * max(step.takes for step in steps))
    drawing = svg.Drawing(WIDE, TITLE + 1.6 * BYTES + 46 + 24)
    for place, step in enumerate(steps):
        left = LEFT / 2 + place * (wide + gap + RIGHT)
        drawing.text(left, 16, step.title, bold=True)
        draw_bytes(drawing, step, TITLE, 1.6 * BYTES, most, scale, left)
        axis(drawing, TITLE + 1.6 * BYTES, scale, 1e3 * step.takes, "milliseconds", left)
    draw_key(drawing, TITLE + 1.6 * BYTES + 42, steps)
    words = f"Bytes alive on rank {steps[0].rank} over a step, stacked by kind. " + " ".join(
        f"{step.title}: {extremes(step)}." for step in steps)
    return Shown(words, svg=svg.still(drawing, "Bytes alive over a step", words))


def extremes(step: RankStep) -> str:
    """How many bytes are alive at most and at the end, and when, for readers who do not see the picture."""
    highest = max(step.mine, key=lambda event: event["alive"])
    return (f"at most {highest['alive'] / 1e6:.1f} MB, when {highest['verb']} of {highest['unit']} ends, "
            f"and {step.mine[-1]['alive'] / 1e6:.1f} MB at the end")


def lanes_of(step: RankStep) -> list[Lane]:
    """What the rank computes, with its waits, over what moves; in milliseconds. Where it does neither, a lane is empty."""
    def blocks(intervals: Iterable[Interval], kind: str = "", name: str | None = None) -> list[LaneBlock]:
        return [LaneBlock(1e3 * (each.start - step.begin), 1e3 * (each.end - step.begin), kind or each.verb,
                      each.what.rpartition(".")[2] if name is None else name) for each in intervals]

    events, rank = step.events, step.rank
    waits = waiting(events, rank)
    computes = blocks((gap for gap in gaps(events, rank) if gap.what == ROOT), "root", "root")
    computes += blocks(without(waits, computing(events, rank)))
    computes += blocks((wait._replace(what=wait.what.removeprefix("the ")) for wait in waits), WAITS)
    lanes = [Lane("computes", [block._replace(label="") if block.kind == "step" else block for block in computes])]
    return lanes + [Lane(words, blocks(collectives(events, rank, verb)), apart=True) for verb, words in MOVES.items()
                    if any(event["verb"] == verb for event in events)]


# -- event by event ----------------------------------------------------------------------------------------------------

def step_film(events: Sequence[dict], title: str = "", formulas: Mapping[str, int] | None = None, code: str = "",
              lines: Mapping[str, int] | None = None) -> Film:
    """`timeline` event by event, in the order of their ends, first at its peak: what is later is pale.

    code: shown beside it.   lines: verb → the number of the line that runs, counted from 0.
    """
    steps = steps_of(events, title, formulas)
    under, words = drawn_steps(steps)
    begin, ordered = steps[0].begin, sorted(events, key=lambda event: event["end"])
    scale = (WIDE - LEFT - RIGHT) / max(step.takes for step in steps)
    frames = []
    for event in ordered:
        cursor, x = svg.Drawing(under.width, under.height), LEFT + scale * (event["end"] - begin)
        cursor.rect(x, 20, WIDE - x, under.height - 72, fill="#ffffffc0", stroke="none")
        cursor.line(x, 20, x, under.height - 52, data={"after": event["verb"]})
        moved = f", {gb(event['bytes'])}" if event["bytes"] else ""
        frames.append(Frame(cursor, f"After {(event['end'] - begin) * 1e3:.1f} ms: rank {event['rank']} ends {event['verb']} of "
                                    f"{event['unit']}{moved}; {gb(event['alive'])} are alive on it.",
                            line=(lines or {}).get(event["verb"])))
    peak = max(range(len(ordered)), key=lambda moment: ordered[moment]["alive"])
    return Film(f"{title.rstrip(' ,') or 'One step'}, event by event", frames, words, 0.4, under, [peak], peak, code)


# -- curves ------------------------------------------------------------------------------------------------------------

def live_bytes(curves: dict[str, Sequence[dict]], title: str, what: str) -> Figure:
    """Bytes alive after each event, one curve per name. The axis counts events, because stages need different times.

    In each curve the forward, if there is one, takes the left half, and the backward takes the right half.
    curves: name → events of one rank, as in `timeline`.   what: the label of the axis; its unit is MB.
    """
    figure, axes = panels(9.6, 3.2)
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
