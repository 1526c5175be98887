"""Which rows or columns of a weight each rank has, drawn from the cuts of a real model, between the borders f and g."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from ....errors import BadInput
from ....parallel.tensor.cuts import Cut
from ...show import Shown
from ...show.palette import INK
from ...show.pictures import svg

LONGEST, HEAD, ARROW, CIRCLE, GAP = 224, 44, 26, 15, 10  # units: the longest side of a weight, the words above it, an
# arrow, the radius of f and g, and the space around an arrow's words
BESIDE = 8  # units between a weight and the names of its parts
FILLS = (("#cfe6f5", INK), ("#0072b2", "white"), ("#fbf5b5", INK), ("#6f6f6f", "white"))  # of ranks 0 to 3: box, words


class CutWeight(NamedTuple):
    """name: of the parameter.   shape: of the whole weight, (out, in).   cut: which rows or columns each rank has."""

    name: str
    shape: tuple[int, int]
    cut: Cut


def cuts_of(model: nn.Module, names: Sequence[str]) -> list[CutWeight]:
    """The cuts of these parameters of a model that `tensor_parallel` has cut, on any rank. Raises BadInput."""
    params, found = dict(model.named_parameters()), []
    for name in names:
        cut = getattr(params.get(name), "tensor_cut", None)
        if cut is None or params[name].dim() != 2:
            raise BadInput(f"{name} is no matrix of this model that was cut: the cut ones are "
                           f"{', '.join(key for key, param in params.items() if hasattr(param, 'tensor_cut'))}")
        found.append(CutWeight(name, tuple(cut.shape(params[name])), cut))
    return found


def tensor_cut(weights: Sequence[CutWeight], between: Sequence[str] = (), parts: Sequence[str] = (),
               borders: bool = True) -> Shown:
    """One or two weights that a tensor passes one after the other, as torch stores them, with a row per output.

    between: what stands between each two of them, such as ("GELU",).   parts: names of the matrices side by side in one,
    where a rank has a piece of each, such as ("q", "k", "v").   borders: with f before and g after them.
    All weights are drawn on one scale. Raises BadInput where there is nothing to draw, or not one `between` per gap.
    """
    if len(between) != len(weights) - 1:
        raise BadInput(f"there are {len(weights)} weights and {len(between)} words between them: there must be one weight "
                       "at least, and one word fewer than weights")
    scale = LONGEST / max(side for weight in weights for side in weight.shape)
    height = HEAD + max(weight.shape[0] for weight in weights) * scale + 8
    middle = HEAD + (height - HEAD) / 2
    drawing = svg.Drawing(svg.WIDTH, height)
    x = border(drawing, 0, middle, "f") if borders else 0
    for number, weight in enumerate(weights):
        if number:
            x = named_arrow(drawing, x, middle, between[number - 1])
        x = one_weight(drawing, weight, x, middle, scale, parts)
    if borders:
        x = border(drawing, x, middle, "g", inward=False)
    drawing.width = min(drawing.width, x + 2)
    words = " ".join(described(weight) for weight in weights)
    return Shown(words, svg=svg.still(drawing, "Which rank has which part", words))


def described(weight: CutWeight) -> str:
    """The cut in numbers."""
    kind = "columns" if weight.cut.dim else "rows"
    ranks = "; ".join(f"rank {rank} has the {kind} {', '.join(span(rows) for rows in ranges)}"
                      for rank, ranges in enumerate(weight.cut.by_rank))
    return f"{weight.name} {weight.shape}: {ranks}."


def span(rows: range) -> str:
    return f"{rows.start} to {rows.stop - 1}"


def one_weight(drawing: svg.Drawing, weight: CutWeight, x: float, middle: float, scale: float, parts: Sequence[str]) -> float:
    """The matrix from x on, with its name above it. Returns where the next thing may begin."""
    out, inputs = (side * scale for side in weight.shape)
    layer = weight.name.removesuffix(".weight").split(".")[-1]
    wide = max(inputs, svg.words_width(layer, svg.SIZE, True), svg.words_width(sizes(weight), 13))
    left, top = x + (wide - inputs) / 2, middle - out / 2
    drawing.text(x + wide / 2, 16, layer, bold=True, anchor="middle")
    drawing.text(x + wide / 2, 34, sizes(weight), size=13, anchor="middle")
    apart = len(weight.cut.by_rank[0]) == len(parts)
    names = parts if apart else [""] * len(weight.cut.by_rank[0])
    for rank, ranges in enumerate(weight.cut.by_rank):
        fill, ink = FILLS[rank % len(FILLS)]
        for part, rows in zip(names, ranges, strict=True):
            at, long = rows.start * scale, len(rows) * scale
            box = (left, top + at, inputs, long) if weight.cut.dim == 0 else (left + at, top, long, out)
            data = {"name": weight.name, "rank": rank, "start": rows.start, "stop": rows.stop}
            drawing.rect(*box, fill=fill, data=data)
            label(drawing, box, f"{part}, " if part else "", rank, ink)
    if parts and not apart:
        wide = max(wide, wide / 2 + inputs / 2 + BESIDE) + part_names(drawing, parts, left + inputs, top, out)
    return x + wide


def part_names(drawing: svg.Drawing, parts: Sequence[str], x: float, top: float, long: float) -> float:
    """Where the parts of a weight end, and their names beside it. Returns how much room they take."""
    for number, part in enumerate(parts):
        begin = top + long * number / len(parts)
        if number:
            drawing.line(x, begin, x + BESIDE, begin)
        drawing.text(x + BESIDE, begin + long / len(parts) / 2 + 5, part, size=13)
    return max(svg.words_width(part, 13) for part in parts)


def sizes(weight: CutWeight) -> str:
    return "{} × {}".format(*weight.shape)


def label(drawing: svg.Drawing, box: Sequence[float], part: str, rank: int, ink: str) -> None:
    """As many words as fit into a box; where nothing fits, none."""
    x, y, wide, high = box
    for words in (f"{part}rank {rank}", f"{part}{rank}", f"{rank}"):
        size = min(13.0, 0.8 * high)
        if size >= 8 and svg.words_width(words, size) + 4 <= wide:
            drawing.text(x + wide / 2, y + high / 2 + 0.35 * size, words, size=size, anchor="middle", color=ink)
            return


def border(drawing: svg.Drawing, x: float, middle: float, name: str, inward: bool = True) -> float:
    """An arrow, the circle f or g, and an arrow. Returns where the next thing may begin."""
    if not inward:
        x += GAP / 2
    drawing.arrow(x, middle, x + ARROW, middle)
    x += ARROW + CIRCLE
    drawing.tag("circle", cx=x, cy=middle, r=CIRCLE, fill="white", stroke=INK, stroke_width=2)
    drawing.text(x, middle + 6, name, bold=True, anchor="middle", size=17)
    x += CIRCLE
    drawing.arrow(x, middle, x + ARROW, middle)
    return x + ARROW + GAP / 2


def named_arrow(drawing: svg.Drawing, x: float, middle: float, words: str) -> float:
    """An arrow with words above it. Returns where the next thing may begin."""
    x, wide = x + GAP, max(svg.words_width(words, 14), 2 * ARROW)
    drawing.text(x + wide / 2, middle - 10, words, size=14, anchor="middle")
    drawing.arrow(x, middle, x + wide, middle)
    return x + wide + GAP


def taken_for(cut: Cut, rank: int, heads: int) -> dict[str, str]:
    """What attention takes a rank's rows of a qkv matrix for: three equal parts, each head named by what it is in the whole
    matrix, such as q0. heads: of queries, and as many of keys and of values."""
    width = cut.size // (3 * heads)
    rows = [row for span in cut.by_rank[rank] for row in span]
    named = [f"{'qkv'[row // (heads * width)]}{row // width % heads}" for row in rows[::width]]
    third = len(named) // 3
    return {f"as {kind}": " ".join(named[part * third : (part + 1) * third])
            for part, kind in enumerate(("queries", "keys", "values"))}
