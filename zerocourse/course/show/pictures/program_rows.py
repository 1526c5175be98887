"""Backwards, drawn lane by lane: as their program makes them, or as they were recorded."""

from collections.abc import Mapping

from ....errors import BadInput
from ....measure.backward_lanes import COMPUTES, GATHERS, REDUCTIONS, SUMS, BackwardLanes
from ....measure.backward_lanes import WAITS as WAITING
from .. import Shown
from . import svg
from .timeline_lanes import LEFT, WAITS, Lane, LaneBlock, axis, draw_lanes, height_of, legend_of

TITLE, BELOW = 26, 46  # units: above a panel's lanes, below them
KINDS = {COMPUTES: "backward", GATHERS: "all_gather", REDUCTIONS: "reduce_scatter", SUMS: "all_reduce"}  # by lane, from the top down


def program_rows(backwards: Mapping[str, BackwardLanes]) -> Shown:
    """Backwards below each other, those of one unit of time on one scale: what is ideal first, then what was measured.

    In the first lane a block is a unit's backward. The others are what travels: a block of a program lasts as long as the
    link carries it; one that was recorded, from its issue until the rank knew of its end. In each stands the unit of the
    model, or its bucket. Raises BadInput where there is nothing to draw.
    """
    if not backwards or not all(backward.lanes[COMPUTES] for backward in backwards.values()):
        raise BadInput("backwards is empty, or has one that computes nothing: there is nothing to draw")
    seen = [lane for lane in KINDS if any(backward.lanes[lane] for backward in backwards.values())]
    said = {name: f"{each.takes:.4g} {each.unit}, of which it waits {each.waited:.4g}" for name, each in backwards.items()}
    panels = {name: lanes_of(backward, seen) for name, backward in backwards.items()}
    drawing = svg.Drawing(svg.WIDTH, sum(TITLE + height_of(lanes) + BELOW for lanes in panels.values()) + 28)
    top = 0.0
    for name, lanes in panels.items():
        backward = backwards[name]
        scale = (svg.WIDTH - LEFT - 2) / max(each.takes for each in backwards.values() if each.unit == backward.unit)
        drawing.text(0, top + 16, name, bold=True)
        drawing.text(svg.WIDTH, top + 16, said[name], anchor="end", size=14)
        below = draw_lanes(drawing, lanes, top + TITLE, scale, backward.takes)
        top = axis(drawing, below, scale, backward.takes, {"ms": "milliseconds"}.get(backward.unit, backward.unit)) + BELOW - 38
    legend_of(drawing, top + 4, [lane for lanes in panels.values() for lane in lanes], {"backward": COMPUTES})
    words = " ".join(f"{name}: {said[name]}. In order: {', '.join(each.begun) or 'nothing travels'}." for name, each in backwards.items())
    return Shown(words, svg=svg.still(drawing, "What a rank computes in a backward, and what travels meanwhile", words))


def lanes_of(backward: BackwardLanes, seen: list[str]) -> list[Lane]:
    """Its lanes; the rank waits in the first."""
    lanes = []
    for lane in seen:
        blocks = [LaneBlock(each.start, each.end, KINDS[lane], each.what, {"lane": lane, "name": each.what, "start": each.start, "end": each.end})
                  for each in backward.lanes[lane]]
        blocks += [LaneBlock(each.start, each.end, WAITS) for each in backward.lanes[WAITING] if lane == COMPUTES]
        lanes.append(Lane(lane, blocks, apart=lane != COMPUTES))
    return lanes
