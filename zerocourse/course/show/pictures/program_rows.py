"""Backwards, drawn lane by lane: as their program makes them, or as they were recorded."""

from collections.abc import Mapping, Sequence

from ....errors import BadInput
from ....measure.backward_lanes import COMPUTES, GATHERS, REDUCTIONS, SUMS, WAITS, BackwardLanes
from ....measure.intervals import Interval, in_rows
from .. import Shown
from ..palette import FAINT, INK, MEANINGS
from . import svg
from .pipeline_rows import named

LEFT, ROW, THIN, GAP, TITLE = 84, 26, 15, 5, 30  # units: names of lanes, height of a lane, of a row of several, between, above a panel
FILLS = {COMPUTES: ("#9cc3e0", INK), GATHERS: (MEANINGS["parameters"].color, "white"), REDUCTIONS: (MEANINGS["gradients"].color, INK),
         SUMS: (MEANINGS["in flight"].color, INK)}  # by lane, from the top down; waits are in the first
EMPTY = "#f2f2f2"


def program_rows(backwards: Mapping[str, BackwardLanes]) -> Shown:
    """Backwards below each other, those of one unit of time on one scale. In each box stands the unit of the model, or its bucket.

    In the first lane a box is a unit's backward, and where it is hatched the rank stands still. The others are what travels: a bar
    of a program lasts as long as the link carries it; one that was recorded, from its issue until the rank knew of its end.
    Raises BadInput where there is nothing to draw.
    """
    if not backwards or not all(backward.lanes[COMPUTES] for backward in backwards.values()):
        raise BadInput("backwards is empty, or has one that computes nothing: there is nothing to draw")
    seen = [lane for lane in FILLS if any(backward.lanes[lane] for backward in backwards.values())]
    said = {name: f"{each.takes:.4g} {each.unit}, of which it waits {each.waited:.4g}" for name, each in backwards.items()}
    panels = []
    for name, backward in backwards.items():
        longest = max(each.takes for each in backwards.values() if each.unit == backward.unit)
        panels.append(one_backward(name, said[name], backward, seen, (svg.WIDTH - LEFT - 2) / longest))
    drawing, top, at = svg.Drawing(svg.WIDTH, sum(panel.height for panel in panels) + 28), 0.0, 0.0
    for panel in panels:
        drawing.put(panel, 0, top)
        top += panel.height
    for what in (COMPUTES, WAITS, *seen[1:]):
        box(drawing, what, at, top + 4, 22, 16)
        drawing.text(at + 28, top + 17, what, size=14)
        at += 28 + svg.words_width(what, 14) + 16
    words = " ".join(f"{name}: {said[name]}. In order: {', '.join(each.begun) or 'nothing travels'}." for name, each in backwards.items())
    return Shown(words, svg=svg.still(drawing, "What a rank computes in a backward, and what travels meanwhile", words))


def one_backward(name: str, said: str, backward: BackwardLanes, seen: Sequence[str], scale: float) -> svg.Drawing:
    """Its name, its numbers, and its lanes. What overlaps in a lane stands in rows of its own."""
    rows = {lane: in_rows(backward.lanes[lane]) for lane in seen}
    highs = {lane: ROW if len(of_lane) < 2 else THIN * len(of_lane) for lane, of_lane in rows.items()}
    panel, top = svg.Drawing(svg.WIDTH, TITLE + sum(highs.values()) + len(seen) * GAP + 16), TITLE
    panel.text(0, 18, name, bold=True)
    panel.text(svg.WIDTH, 18, said, anchor="end", size=14)
    for lane, high in highs.items():
        panel.text(0, top + high / 2 + 5, lane, size=14)
        panel.rect(LEFT, top, backward.takes * scale, high, fill=EMPTY, stroke="none")
        boxes = [(lane, place, len(rows[lane]), each) for place, row in enumerate(rows[lane]) for each in row]
        for kind, place, count, each in boxes + [(WAITS, 0, 1, each) for each in backward.lanes[WAITS] if lane == COMPUTES]:
            box(panel, kind, LEFT + each.start * scale, top + place * high / count, (each.end - each.start) * scale, high / count, each)
        top += high + GAP
    return panel


def box(drawing: svg.Drawing, kind: str, x: float, y: float, wide: float, high: float, drawn: Interval | None = None) -> None:
    """Of a lane, with its name; or hatched where the rank waits. drawn: None in the legend."""
    if kind == WAITS:
        drawing.rect(x, y, wide, high, fill="white", stroke=FAINT)
        drawing.tag("path", d="".join(svg.diagonals(x, y, wide, high, rising=True)) or None, fill="none", stroke=FAINT)
        return
    fill, ink = FILLS[kind]
    data = {"lane": kind, "name": drawn.what, "start": drawn.start, "end": drawn.end} if drawn is not None else None
    drawing.rect(x, y, wide, high, fill=fill, data=data)
    if drawn is not None:
        named(drawing, x, y, wide, high, drawn.what, ink)
