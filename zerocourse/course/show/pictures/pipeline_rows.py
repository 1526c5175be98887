"""Schedules of pipelines, drawn from the lists that are simulated, proved and run: a row per rank, a box per action."""

from collections.abc import Mapping

from ....errors import BadInput
from ....parallel.pipeline import Timing
from .. import Shown
from ..palette import INK
from . import svg

LEFT, ROW, GAP, TITLE = 62, 26, 5, 44  # units: names of ranks, height of a row, between rows, above each schedule
IDLE = "#ebebeb"
FILLS = {"F": ("#7cc0ea", INK), "B": ("#0072b2", "white"), "I": ("#0072b2", "white"), "W": ("#fbf5b5", INK)}  # box, number
NAMES = {"F": "F, forward", "B": "B, backward", "I": "I, gradient of the input", "W": "W, gradients of weights"}
SMALLEST = 8  # units: of a number in a box


def pipeline_rows(timings: Mapping[str, Timing]) -> Shown:
    """The schedules below each other, on one scale of time. In each box stands its micro-batch's number, counted from
    0.

    Light boxes are F, dark ones with white numbers B or I, the lightest W; a bar along the lower edge marks a rank's
    second stage, two bars its third. A thick line is an update. Where a row is grey the rank stands still: that is the
    bubble. Raises BadInput where there is nothing to draw.
    """
    if not timings or not all(timing.spans for timing in timings.values()):
        raise BadInput("timings is empty, or has a schedule without actions: there is nothing to draw")
    scale = (svg.WIDTH - LEFT - 2) / float(max(timing.makespan for timing in timings.values()))
    heights = [TITLE + timing.plan.ranks * (ROW + GAP) + 10 for timing in timings.values()]
    drawing, top = svg.Drawing(svg.WIDTH, sum(heights) + 30), 0
    for (name, timing), height in zip(timings.items(), heights, strict=True):
        panel = svg.Drawing(svg.WIDTH, height)
        one_schedule(panel, name, timing, scale)
        drawing.put(panel, 0, top)
        top += height
    kinds = [kind for kind in FILLS if any(span.action.kind == kind for each in timings.values() for span in each.spans)]
    at = 0.0
    for kind in kinds:
        fill, _ = FILLS[kind]
        drawing.rect(at, top + 4, 22, 16, fill=fill)
        drawing.text(at + 28, top + 17, NAMES[kind], size=14)
        at += 28 + svg.words_width(NAMES[kind], 14) + 16
    words = " ".join(f"{name}: {described(timing)}." for name, timing in timings.items())
    return Shown(words, svg=svg.still(drawing, "Who computes what, and when", words))


def described(timing: Timing) -> str:
    """A schedule in numbers."""
    held = ", ".join(str(timing.in_flight(rank)) for rank in range(timing.plan.ranks))
    return (f"{timing.plan.ranks} ranks and {timing.plan.micro_batches} micro-batches take {timing.makespan} units, the bubble is "
            f"{timing.bubble}, and the ranks hold up to {held} micro-batches")


def one_schedule(panel: svg.Drawing, name: str, timing: Timing, scale: float) -> None:
    """Its name, its numbers, and its rows."""
    panel.text(0, 18, name, bold=True)
    panel.text(svg.WIDTH, 18, f"{timing.makespan} units, bubble {timing.bubble}", anchor="end", size=14)
    for rank in range(timing.plan.ranks):
        y = TITLE - 14 + rank * (ROW + GAP)
        panel.text(0, y + ROW / 2 + 5, f"rank {rank}")
        panel.rect(LEFT, y, float(timing.makespan) * scale, ROW, fill=IDLE, stroke="none")
        chunks = {stage: chunk for chunk, stage in enumerate(timing.plan.stages_of(rank))}
        for span in timing.of_rank(rank):
            kind, stage, micro_batch = span.action
            x, wide = LEFT + float(span.start) * scale, float(span.end - span.start) * scale
            if kind == "STEP":
                panel.line(x, y - 2, x, y + ROW + 2, width=3)
                continue
            fill, ink = FILLS[kind]
            panel.rect(x, y, wide, ROW, fill=fill, data={
                "rank": rank, "kind": kind, "stage": stage, "micro": micro_batch, "start": str(span.start), "end": str(span.end)})
            for bar in range(chunks[stage]):
                panel.line(x + 2, y + ROW - 2.5 - 4 * bar, x + wide - 2, y + ROW - 2.5 - 4 * bar, color=ink, width=2)
            named(panel, x, y - 1.5 * (chunks[stage] > 0), wide, ROW, str(micro_batch), ink)


def named(panel: svg.Drawing, x: float, y: float, wide: float, high: float, name: str, ink: str) -> None:
    """The name in the middle of its box, as large as it fits; where it would be too small to read there is none."""
    size = min(13, high / 1.2, wide / (0.6 * len(name) + 0.2))
    if size >= SMALLEST:
        panel.text(x + wide / 2, y + high / 2 + 0.35 * size, name, size=round(size, 1), anchor="middle", color=ink)
