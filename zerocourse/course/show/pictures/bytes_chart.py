"""A rank's bytes over a step: stacked by kind, each kind in its colour and hatching, with the highest and the last value."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from ....measure.stage_meter import KINDS
from ..palette import FAINT, INK, MEANINGS
from . import svg

KEY = {"in flight": "gathered blocks, buckets", "activations": "activations, the rest"}


class RecordedStep(Protocol):
    """One rank's step: its events in order of their ends, when the step began, and formulas, name → bytes."""

    events: Sequence[dict]
    formulas: Mapping[str, int]

    @property
    def begin(self) -> float: ...

    @property
    def mine(self) -> list[dict]: ...


def draw_bytes(drawing: svg.Drawing, step: RecordedStep, top: float, high: float, most: int, scale: float, left: float) -> None:
    """The bytes alive after each event, stacked by kind where the events know it.

    most: the bytes of the whole height but for a fifth of it.   scale: units of length for a millisecond.
    """
    ordered, bottom = step.mine, top + high
    tall = high / (1.2 * most or 1)
    times = [left, *(left + 1e3 * scale * (event["end"] - step.begin) for event in ordered)]
    values = [ordered[0], *ordered]  # before the first event ends, as after it
    kinds = [kind for kind in KINDS if any((event.get("kinds") or {}).get(kind) for event in ordered)]
    boxes: dict[str, list[list[float]]] = {kind: [] for kind in kinds}  # start, end, y, bytes; what stays as it is is one box
    for start, end, event in zip(times, [*times[1:], times[-1]], values, strict=True):
        y = bottom
        for kind, of_kind in boxes.items() if all(each.get("kinds") for each in ordered) else ():
            nbytes = event["kinds"][kind]
            y -= tall * nbytes
            if of_kind and of_kind[-1][1:] == [start, y, nbytes]:
                of_kind[-1][1] = end
            elif nbytes and end > start:
                of_kind.append([start, end, y, nbytes])
    for kind, of_kind in boxes.items():
        for start, end, y, nbytes in of_kind:
            drawing.tag("rect", x=start, y=y, width=end - start, height=tall * nbytes, fill=MEANINGS[kind].color,
                        shape_rendering="crispEdges", data={"kind": kind, "alive": nbytes})
        draw_hatching(drawing, kind, "".join(path for start, end, y, nbytes in of_kind
                                             for path in hatching(MEANINGS[kind].hatch, start, y, end - start, tall * nbytes)))
    heights = [bottom - tall * event["alive"] for event in values]
    corners = [(times[0], heights[0])]
    for x, before, after in zip(times[1:], heights, heights[1:], strict=False):
        corners += [(x, before), (x, after)]
    drawing.tag("path", d="".join(f"{'L' if index else 'M'}{svg.number(x)} {svg.number(y)}" for index, (x, y) in enumerate(corners)),
                fill="none", stroke=INK)
    drawing.line(left, bottom, times[-1], bottom, color=FAINT)
    drawing.text(left - 6, top + 12, "MB alive", size=12, anchor="end", color=FAINT)
    highest = min(range(len(values)), key=heights.__getitem__)
    places = 1 if values[highest]["alive"] >= 10**6 else 3  # of a model of a few kB, 0.1 and 0.0 MB would say nothing
    for index, x, y, anchor in ((highest, times[highest], heights[highest] - 5, "middle"), (-1, times[-1] + 5, heights[-1] + 5, "start")):
        drawing.text(x, y, f"{values[index]['alive'] / 1e6:.{places}f}", size=13, bold=True, anchor=anchor, plate=True)
    for name, nbytes in sorted(step.formulas.items(), key=lambda each: each[1]):
        y = bottom - tall * nbytes
        drawing.line(left, y, times[-1], y, dashed=True)
        drawing.text(left + 4, y - 5 if nbytes == max(step.formulas.values()) else y + 14, f"{name} by formula: {nbytes / 1e6:.{places}f}",
                     size=12, plate=True)


def hatching(hatch: str, x: float, y: float, width: float, height: float, step: float = 7) -> Iterator[str]:
    """Lines of a hatching inside of a box, as pieces of a path, at the same places in every box, so that neighbours join."""
    def inside(low: float, length: float) -> Iterator[float]:
        at = step * (int(low // step) + 1)
        while at < low + length:
            yield at
            at += step

    right, below = x + width, y + height
    if hatch == "horizontal":
        yield from (f"M{svg.number(x)} {at:g}L{svg.number(right)} {at:g}" for at in inside(y, height))
    elif hatch == "vertical":
        yield from (f"M{at:g} {svg.number(y)}L{at:g} {svg.number(below)}" for at in inside(x, width))
    elif hatch == "dots":
        yield from (f"M{at:g} {row:g}L{min(right, at + 2):g} {row:g}" for at in inside(x, width) for row in inside(y, height))
    elif hatch in ("diagonal", "crossed"):
        for both in inside(x + y, width + height):  # the line on which x + y is this
            low, high = max(x, both - below), min(right, both - y)
            yield f"M{svg.number(low)} {svg.number(both - low)}L{svg.number(high)} {svg.number(both - high)}"


def draw_hatching(drawing: svg.Drawing, kind: str, path: str) -> None:
    """The lines of a kind's hatching, all in one path."""
    if path:
        drawing.tag("path", d=path, fill="none", stroke=INK if MEANINGS[kind].hatch == "vertical" else "white", stroke_opacity=0.6, stroke_width=1.1)


def draw_key(drawing: svg.Drawing, y: float, steps: Sequence[RecordedStep]) -> None:
    """What the colours of these steps' bytes mean."""
    there = [kind for kind in KINDS if any((event.get("kinds") or {}).get(kind) for step in steps for event in step.mine)]
    at = 0.0
    for kind in there:
        words, look = KEY.get(kind, kind), MEANINGS[kind]
        drawing.rect(at, y, 22, 16, fill=look.color)
        draw_hatching(drawing, kind, "".join(hatching(look.hatch, at, y, 22, 16)))
        drawing.text(at + 28, y + 13, words, size=14)
        at += 28 + svg.words_width(words, 14) + 22
