"""One unit's flat buffer: its parameters one after the other, cut into one slice per rank, with padding at the end."""

import math
from collections.abc import Sequence

from torch import nn

from ....errors import BadInput
from ....formulas.units import integer
from ....layout.rankmap import RankMap
from ...show import Shown
from ...show.palette import FAINT, INK
from ...show.pictures import svg
from ...show.pictures.holdings import buffers_of

BAR, TOP, SLOPE = 40, 74, 15  # units: height of the buffer, where it begins, from name to name where names are below it
MOST_NAMES = 24


def padding(model: nn.Module, world_size: int, unit: str = "root", rank_map: str | RankMap | None = None) -> Shown:
    """The first flat buffer of `unit`, to scale: whose elements lie where, where it is cut, and what padding is added.

    Raises BadInput for a unit that the model does not have, or that is empty.
    """
    integer(world_size, "world_size", 1, 16)
    buffers = buffers_of(model, world_size, rank_map)
    names = list(dict.fromkeys(buffer.unit for buffer in buffers))
    layout = next((buffer.layout for buffer in buffers if buffer.unit == unit), None)
    if layout is None or not layout.padded:
        raise BadInput(f"unit is {unit!r}: the units of this model that have elements are {', '.join(names)}")
    shown = {name: math.prod(shape) for name, shape in layout.shapes.items() if math.prod(shape)}
    padded = layout.padded - layout.numel
    title = f"The flat buffer of {unit} on {world_size} ranks"
    own = sorted({bound - before for before, bound in zip(layout.bounds, layout.bounds[1:])})
    words = (f"{title}: {layout.numel:,} elements of {len(shown)} parameters and {padded:,} of padding, cut into slices of "
             f"{own[0]:,}" + (f" to {own[-1]:,}" if len(own) > 1 else "") + f" element{'s' * (own[-1] > 1)}.")
    drawing = svg.Drawing(svg.WIDTH, TOP + BAR + 50 + SLOPE * min(len(shown), MOST_NAMES))
    scale = (svg.WIDTH - 4) / layout.padded

    def at(element: int) -> float:
        return 2 + element * scale

    drawing.text(0, 18, f"{layout.numel:,} elements + {padded:,} of padding = {world_size} × {layout.padded // world_size:,}"
                 if rank_map is None else f"{layout.numel:,} elements, each parameter whole on one rank", bold=True, size=16)
    names_at = []
    for number, (name, numel) in enumerate(shown.items()):
        begin = layout.offset[name]
        drawing.rect(at(begin), TOP, numel * scale, BAR, "parameters", stroke="white",
                     data={"name": name, "start": begin, "stop": begin + numel})
        if number < MOST_NAMES:
            label = f"{name.removeprefix(unit + '.')} {'×'.join(map(str, layout.shapes[name])) or '1'}"
            names_at.append((at(begin) + min(numel * scale / 2, 6), label))
    named(drawing, names_at)
    if len(shown) > MOST_NAMES:
        drawing.text(0, TOP + BAR + 42 + SLOPE * MOST_NAMES, f"and {len(shown) - MOST_NAMES} more", size=12, color=FAINT)
    if padded and rank_map is None:
        seen = max(padded * scale, 4)  # units: a few elements of padding are narrower than a line
        drawing.rect(at(layout.padded) - seen, TOP, seen, BAR, "padding",
                     data={"name": "", "start": layout.numel, "stop": layout.padded})
        drawing.text(at(layout.padded), TOP + BAR + 20, "padding", size=12, anchor="end", color=FAINT)
    for rank, (start, stop) in enumerate(zip(layout.bounds, layout.bounds[1:])):
        drawing.tag("line", x1=at(start), y1=TOP - 12, x2=at(start), y2=TOP + BAR + 8, stroke=INK, stroke_width=2.5)
        if svg.words_width(f"rank {rank}", 13) < (stop - start) * scale:
            drawing.text(at((start + stop) / 2), TOP - 16, f"rank {rank}", size=13, anchor="middle")
    drawing.tag("line", x1=at(layout.padded), y1=TOP - 12, x2=at(layout.padded), y2=TOP + BAR + 8, stroke=INK, stroke_width=2.5)
    return Shown(words, svg=svg.still(drawing, title, words))


def named(drawing: svg.Drawing, names_at: Sequence[tuple[float, str]]) -> None:
    """Names below the buffer, and a line to each from (x, name). A name is at the right of its line, or where there is no
    room at the left. Those at the right begin with the last, those at the left with the first, so that no line of theirs
    crosses a name; the others pass behind it."""
    left = [(x, name) for x, name in names_at if x + 4 + svg.words_width(name, 12) > svg.WIDTH]
    placed = [(x, name, TOP + BAR + 42 + SLOPE * row) for row, (x, name) in
              enumerate([*left, *reversed([each for each in names_at if each not in left])])]
    for x, _, y in placed:
        drawing.line(x, TOP + BAR, x, y - 5, color="#b4b4b4")
    for x, name, y in placed:
        drawing.text(*((x - 1, y) if (x, name) in left else (x + 1, y)), name, size=12, plate=True,
                     anchor="end" if (x, name) in left else "start")
