"""Schedules of pipelines, drawn from the lists that are simulated, proved and run: a row per rank, a box per action."""

from collections.abc import Mapping
from fractions import Fraction

from ....errors import BadInput
from ....parallel.pipeline import Timing
from .. import Shown
from . import svg
from .timeline_lanes import GAP, LEFT, ROW, Lane, LaneBlock, draw_lanes, legend_of

TITLE, BELOW = 30, 24  # units: above a schedule, below it
SMALL = 40  # of a fraction that is written as one
KINDS = {"F": "forward", "B": "backward", "I": "inputs", "W": "weights"}
NAMES = {"forward": "F, forward", "backward": "B, backward", "inputs": "I, gradient of the input", "weights": "W, gradients of weights"}
BOTH = {"backward": "B, backward; I, gradient of the input alone", "inputs": ""}  # of one colour


def pipeline_rows(timings: Mapping[str, Timing]) -> Shown:
    """The schedules below each other, on one scale of time. In each block stands its micro-batch's number, counted from
    0.

    Light blocks are F, dark ones with white numbers B or I, the lightest W; a bar along the lower edge marks a rank's
    second stage, two bars its third. A thick line is an update. Where a row is empty the rank stands still: that is the
    bubble. Raises BadInput where there is nothing to draw.
    """
    if not timings or not all(timing.spans for timing in timings.values()):
        raise BadInput("timings is empty, or has a schedule without actions: there is nothing to draw")
    scale = (svg.WIDTH - LEFT - 2) / float(max(timing.makespan for timing in timings.values()))
    drawing = svg.Drawing(svg.WIDTH, sum(TITLE + timing.plan.ranks * (ROW + GAP) + BELOW for timing in timings.values()) + 54)
    top, drawn = 0.0, []
    for name, timing in timings.items():
        drawing.text(0, top + 18, name, bold=True)
        drawing.text(svg.WIDTH, top + 18, f"{said(timing.makespan)} units, bubble {said(timing.bubble)}", anchor="end", size=14)
        lanes = lanes_of(timing)
        below = draw_lanes(drawing, lanes, top + TITLE, scale, float(timing.makespan))
        for rank in range(timing.plan.ranks):
            y = top + TITLE + rank * (ROW + GAP)
            for span in timing.of_rank(rank):
                if span.action.kind == "STEP":
                    x = LEFT + float(span.start) * scale
                    drawing.line(x, y - 2, x, y + ROW + 2, width=3)
        top, drawn = below + BELOW, [*drawn, *lanes]
    blocks = [block for lane in drawn for block in lane.blocks]
    both = {"backward", "inputs"} <= {block.kind for block in blocks}
    below = legend_of(drawing, top, drawn, NAMES | BOTH if both else NAMES)
    if any(block.bars for block in blocks):
        drawing.text(0, below + 13, "underlined: a rank's second stage, twice: its third", size=14)
        below += 24
    drawing.height = below
    words = " ".join(f"{name}: {described(timing)}." for name, timing in timings.items())
    return Shown(words, svg=svg.still(drawing, "Who computes what, and when", words))


def lanes_of(timing: Timing) -> list[Lane]:
    """A lane for each rank."""
    lanes = []
    for rank in range(timing.plan.ranks):
        chunks = {stage: chunk for chunk, stage in enumerate(timing.plan.stages_of(rank))}
        lanes.append(Lane(f"rank {rank}", [
            LaneBlock(float(span.start), float(span.end), KINDS[kind], str(micro_batch),
                  {"rank": rank, "kind": kind, "stage": stage, "micro": micro_batch, "start": str(span.start), "end": str(span.end)},
                  bars=chunks[stage])
            for span in timing.of_rank(rank) for kind, stage, micro_batch in [span.action] if kind != "STEP"]))
    return lanes


def described(timing: Timing) -> str:
    """A schedule in numbers."""
    held = ", ".join(str(timing.in_flight(rank)) for rank in range(timing.plan.ranks))
    return (f"{timing.plan.ranks} ranks and {timing.plan.micro_batches} micro-batches take {said(timing.makespan)} units, the bubble is "
            f"{said(timing.bubble)}, and the ranks hold up to {held} micro-batches")


def said(number: Fraction) -> str:
    """A fraction as it is, and what was measured, to hundredths, as a decimal number."""
    return str(number) if number.denominator < SMALL else f"{float(number):.2g}" if number < 1 else f"{float(number):.1f}"
