"""Which units are whole on a rank while it trains and while it writes, from the events that it recorded."""

from collections.abc import Mapping

from ...show.cells.shown import Shown
from ...show.pictures import svg
from ...show.pictures.timeline_lanes import LEFT, Lane, LaneBlock, draw_lanes, height_of, legend_of
from .hybrid_engine import Written

TITLE, BELOW = 48, 22  # units: above a panel's lanes, below them
DRAWN = ("forward", "backward", "step", "all_gather", "reshard")


def whole_units(ways: Mapping[str, Written]) -> Shown:
    """One panel for each way of writing: the passes of the model, and below them each unit, while all of its parameters are there.

    The axis has the events of a rank one after the other, as they ended, each as wide as the others.
    """
    panels = {way: lanes_of(seen) for way, seen in ways.items()}
    longest = max(len(used(seen)) for seen in ways.values())
    scale = (svg.WIDTH - LEFT - 2) / longest
    drawing = svg.Drawing(svg.WIDTH, sum(TITLE + height_of(lanes) + BELOW for lanes in panels.values()) + 28)
    top = 0.0
    for way, lanes in panels.items():
        drawing.text(0, top + 16, way, bold=True)
        drawing.text(0, top + 37, said(ways[way]), size=14)
        top = draw_lanes(drawing, lanes, top + TITLE, scale, len(used(ways[way]))) + BELOW
    legend_of(drawing, top, [lane for lanes in panels.values() for lane in lanes], {"all_gather": "whole on this rank"})
    words = " ".join(f"{way}: {said(seen)}." for way, seen in ways.items())
    return Shown(words, svg=svg.still(drawing, "Which units are whole on a rank, in a training step and while it writes", words))


def said(seen: Written) -> str:
    gathers = sum(event["verb"] == "all_gather" for event in seen.writing)
    return f"{gathers} gathers while it writes, at most {seen.whole / seen.params:.0%} of the parameters gathered, {seen.kept / seen.params:.0%} kept"


def used(seen: Written) -> list[dict]:
    """The events that are drawn: what is computed, gathered and freed."""
    return [event for event in (*seen.training, *seen.writing) if event["verb"] in DRAWN]


def lanes_of(seen: Written) -> list[Lane]:
    """The passes of the whole model, those of a rollout by the number of their token; each unit; and the parts, where a rank keeps some."""
    events, trained = used(seen), sum(event["verb"] in DRAWN for event in seen.training)
    passes, began, tokens, first = [], 0, 0, 0
    whole: dict[str, list[LaneBlock]] = {}
    gathered: dict[str, int] = {}  # of what is whole now, since when; a unit may have several buffers
    for at, event in enumerate(events):
        verb, unit = event["verb"], event["unit"].partition("[")[0]
        if verb == "all_gather":
            gathered[event["unit"]] = at
        elif verb == "reshard":
            since = gathered.pop(event["unit"])
            whole.setdefault(unit, []).append(LaneBlock(since, at + 1, "all_gather", data={"unit": unit}))
            began = began if gathered else at + 1
        elif unit in ("root", "optimizer"):
            tokens += at >= trained
            passes.append(LaneBlock(began, at + 1, verb, str(tokens or ""), {"pass": verb, "token": tokens}))
            first = first or began * (at >= trained)
            began = at + 1
    parts = [Lane("parts", [LaneBlock(first, len(events), "all_gather", f"{seen.kept:,} kept")])] if 0 < seen.kept < seen.params else []
    return [Lane("passes", passes), *(Lane(unit, whole[unit]) for unit in sorted(whole)), *parts]
