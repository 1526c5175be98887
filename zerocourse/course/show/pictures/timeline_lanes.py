"""The one grammar of timelines: what computes is solid, what moves is solid in a lane of its own, waiting is hatched, and idle is
empty. A block has its name in it, a lane has its name beside it, so that a legend has five entries at most.

Every timeline of the course is drawn by `draw_lanes`: recorded steps, programs of a backward, schedules of pipelines. What is
compared stands on one scale, and what would be ideal stands above what was measured.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ....errors import BadInput
from ....measure.intervals import in_rows
from ..palette import FAINT, INK, MEANINGS
from . import svg

LEFT, ROW, THIN, GAP = 108, 26, 15, 5  # units: names of lanes, height of a lane, of a row of several in a lane, between lanes
SMALLEST = 8  # units: of a name in a block
IDLE = "#dddddd"  # the frame of a lane
MOST = 5  # entries of a legend
WAITS = "waits"


class Look(NamedTuple):
    """fill: of its blocks.   ink: of their names.   words: in a legend; none: its lane says what it is."""

    fill: str
    ink: str = INK
    words: str = ""


GATHERED, ADDED, STATES = (MEANINGS[of].color for of in ("parameters", "gradients", "optimizer"))
LOOKS = {"forward": Look("#c3ddef", INK, "forward"), "backward": Look("#47789c", "white", "backward"),
         "inputs": Look("#47789c", "white", "backward, of the input"), "weights": Look("#f3e7a8", INK, "backward, of weights"),
         "step": Look("#8fd3bb", INK, "optimizer's step"), "root": Look("#e3e8ec", INK, "root: embeddings, head, loss"),
         WAITS: Look("white", INK, "waits"),
         "all_gather": Look(GATHERED, "white"), "up": Look(GATHERED, "white"), "reduce_scatter": Look(ADDED), "down": Look(ADDED),
         "all_reduce": Look(MEANINGS["in flight"].color), "read": Look(STATES), "write": Look(STATES)}


class LaneBlock(NamedTuple):
    """start, end: on the clock of its timeline.   kind: one of `LOOKS`.   label: in it, where there is room.

    data: what tests read.   bars: thin lines along its lower edge.
    """

    start: float
    end: float
    kind: str
    label: str = ""
    data: Mapping[str, object] | None = None
    bars: int = 0


class Lane(NamedTuple):
    """name: beside it.   blocks: in the order in which they are drawn.   apart: what overlaps stands in rows of its own, as
    collectives do that are under way together; otherwise the later block is above the earlier."""

    name: str
    blocks: Sequence[LaneBlock]
    apart: bool = False

    @property
    def rows(self) -> list[Sequence[LaneBlock]]:
        return in_rows(sorted(self.blocks)) or [[]] if self.apart else [self.blocks]

    @property
    def high(self) -> float:
        return ROW if len(self.rows) < 2 else THIN * len(self.rows)


def height_of(lanes: Iterable[Lane]) -> float:
    """How much room `draw_lanes` takes, in units."""
    return sum(lane.high + GAP for lane in lanes)


def draw_lanes(drawing: svg.Drawing, lanes: Sequence[Lane], top: float, scale: float, end: float, left: float = LEFT) -> float:
    """Lanes below each other, from `top` down. scale: units of length for one of time.   end: when the lanes end.

    Returns y below them. Raises BadInput for a kind of block that has no look.
    """
    for lane in lanes:
        rows, high = lane.rows, lane.high
        drawing.text(0, top + high / 2 + 5, lane.name, size=13.5)
        drawing.rect(left, top, end * scale, high, stroke=IDLE)
        for place, row in enumerate(rows):
            for block in row:
                draw_block(drawing, block, left + block.start * scale, top + place * high / len(rows),
                           (block.end - block.start) * scale, high / len(rows))
        top += high + GAP
    return top


def draw_block(drawing: svg.Drawing, block: LaneBlock, x: float, y: float, wide: float, high: float) -> None:
    """One block, solid or hatched, with its name as large as it fits; where that would be too small to read there is none."""
    if block.kind not in LOOKS:
        raise BadInput(f"a block is of kind {block.kind!r}: a timeline has blocks of {', '.join(LOOKS)}")
    look = LOOKS[block.kind]
    waits = block.kind == WAITS
    drawing.tag("rect", x=x, y=y, width=wide, height=high, fill=look.fill, stroke=FAINT if waits else "white", stroke_width=0.6,
                data=dict(block.data or {}) | {"look": block.kind})
    if waits:
        drawing.tag("path", d="".join(svg.diagonals(x, y, wide, high, rising=True)) or None, fill="none", stroke=FAINT)
    for bar in range(block.bars):
        drawing.line(x + 2, y + high - 2.5 - 4 * bar, x + wide - 2, y + high - 2.5 - 4 * bar, color=look.ink, width=2)
    size = min(13, high / 1.2, wide / (0.6 * len(block.label) + 0.2))
    if block.label and size >= SMALLEST:
        drawing.text(x + wide / 2, y + high / 2 + 0.35 * size - 1.5 * (block.bars > 0), block.label, size=round(size, 1), anchor="middle",
                     color=look.ink, plate=waits)


def legend_of(drawing: svg.Drawing, y: float, lanes: Iterable[Lane], names: Mapping[str, str] | None = None) -> float:
    """What the kinds of these lanes mean, where the lane itself does not say it. names: other words, by kind, or "" for no entry.
    Returns y below.

    Raises BadInput where it would have more than five entries.
    """
    there = {block.kind for lane in lanes for block in lane.blocks}
    said = {kind: (names or {}).get(kind, look.words) for kind, look in LOOKS.items() if kind in there}
    entries = {kind: words for kind, words in said.items() if words}
    if len(entries) > MOST:
        raise BadInput(f"the legend would have {len(entries)} entries ({', '.join(entries.values())}): {MOST} is the most; name the lanes")
    at = 0.0
    for kind, words in entries.items():
        wide = 28 + svg.words_width(words, 14) + 22
        if at and at + wide - 22 > drawing.width:
            at, y = 0.0, y + 24
        draw_block(drawing, LaneBlock(0, 0, kind, data={"legend": words}), at, y, 22, 16)
        drawing.text(at + 28, y + 13, words, size=14)
        at += wide
    return y + 24


def axis(drawing: svg.Drawing, y: float, scale: float, end: float, words: str, left: float = LEFT) -> float:
    """The axis of time below lanes, with round numbers. words: what it counts. Returns y below it."""
    each = next(step for step in (base * 10**power for power in range(-6, 10) for base in (1, 2, 5)) if step * scale >= 56)
    drawing.line(left, y, left + end * scale, y, color=FAINT)
    for number in range(int(end / each + 1e-9) + 1):
        drawing.line(left + number * each * scale, y, left + number * each * scale, y + 4, color=FAINT)
        drawing.text(left + number * each * scale, y + 17, f"{number * each:g}", size=12, anchor="middle", color=FAINT)
    drawing.text(left + end * scale, y + 32, words, size=12, anchor="end", color=FAINT)
    return y + 38
