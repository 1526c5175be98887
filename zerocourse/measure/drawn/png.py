"""Pictures as PNG: two dots for each unit of length, for screens of double density, in a palette of their own colours.

Hosts of notebooks may drop SVG that stands in HTML, and none drops PNG. It is drawn by matplotlib, which is installed
wherever the package is, and has its own letters, so that the same picture gives the same bytes on every machine.
"""

import io
import re
from collections.abc import Iterator
from math import cos, pi, sin
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from ...errors import BadInput

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = 128  # of the palette: enough for the edges of letters
DOTS = 2  # for each unit
MARGIN = 8  # units around an SVG, whose words would touch a dark page
LETTERS = 0.9  # matplotlib's letters are wider than those that a browser takes for the same size
SHAPES = ("rect", "line", "polygon", "path", "circle")
UNSEEN = ("title", "desc", "animate")


def png_of(figure: "Figure", description: str, dpi: float = 200) -> bytes:
    """A figure of matplotlib's. description: what it shows, kept in the file."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    whole, small, words = io.BytesIO(), io.BytesIO(), PngInfo()
    figure.savefig(whole, format="png", dpi=dpi, facecolor="white")
    words.add_itxt("Description", description)
    with Image.open(whole) as image:
        image.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(small, "PNG", optimize=True, pnginfo=words)
    return small.getvalue()


def png_of_svg(svg: str, description: str, dots: float = DOTS) -> bytes:
    """An SVG that this package has drawn: boxes, lines, polygons, paths of straight lines, words, and groups of these.

    Of an animation it is the first frame. Raises BadInput for any other element, which would be missing in silence.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path
    from matplotlib.transforms import Affine2D

    root = ElementTree.fromstring(svg)
    size = [float(root.attrib[side]) for side in ("width", "height")]
    width, height = (side + 2 * MARGIN for side in size)
    figure = Figure(figsize=(width / 72, height / 72))  # so that a unit is a point
    to_figure = Affine2D().scale(1 / width, -1 / height).translate(0, 1) + figure.transFigure
    for layer, (kind, values, words, (left, top), opacity) in enumerate(elements(root, (MARGIN, MARGIN))):
        if kind == "text":
            figure.text((left + float(values["x"])) / width, 1 - (top + float(values["y"])) / height, words, zorder=layer,
                        fontsize=LETTERS * float(values["font-size"]), color=values.get("fill", "black"), parse_math=False,
                        alpha=opacity, ha={"middle": "center", "end": "right"}.get(values.get("text-anchor"), "left"),
                        va="baseline", weight=values.get("font-weight", "normal"))
            continue
        shift = Affine2D().translate(left, top) + to_figure
        corners, codes = outline(kind, values, *size)
        line = float(values.get("stroke-width", 1))
        dashes = [float(each) / line for each in values.get("stroke-dasharray", "").split() if line]
        figure.add_artist(PathPatch(
            Path(corners, codes), transform=shift, zorder=layer, linewidth=line, capstyle="butt", joinstyle="miter",
            facecolor="none" if kind == "line" else paint(values, "fill", opacity), edgecolor=paint(values, "stroke", opacity),
            linestyle=(0, dashes) if dashes else "solid"))
    return png_of(figure, description, 72 * dots)


def elements(parent: ElementTree.Element, shift: tuple[float, float], opacity: float = 1.0,
             size: str = "15") -> Iterator[tuple[str, dict[str, str], str, tuple[float, float], float]]:
    """(name, attributes, words, shift, opacity) of what is seen below an element, in the order in which it is drawn."""
    size = parent.attrib.get("font-size", size)
    for each in parent:
        name, there = each.tag.rpartition("}")[2], opacity * float(each.attrib.get("opacity", 1))
        if name == "g" and there:
            moved = re.match(r"translate\((\S+) (\S+)\)", each.attrib.get("transform", "")) or (0, 0, 0)
            yield from elements(each, (shift[0] + float(moved[1]), shift[1] + float(moved[2])), there, size)
        elif name in SHAPES or name == "text":
            yield name, {"font-size": size} | each.attrib, each.text or "", shift, there
        elif name not in ("g", *UNSEEN):
            raise BadInput(f"the picture has an element <{name}>: only {', '.join(SHAPES)}, text and g are drawn as PNG")


def outline(kind: str, values: dict[str, str], width: float, height: float) -> tuple[list[tuple[float, float]], list[int]]:
    """The corners of a shape, and how matplotlib goes from one to the next (1: starts, 2: a line, 79: closes).

    width, height: of the picture, for sides in percent.
    """
    def length(name: str, of: float) -> float:
        said = values.get(name, "0")
        return of * float(said[:-1]) / 100 if said.endswith("%") else float(said)

    if kind == "rect":
        x, y, wide, high = length("x", width), length("y", height), length("width", width), length("height", height)
        return [(x, y), (x + wide, y), (x + wide, y + high), (x, y + high), (x, y)], [1, 2, 2, 2, 79]
    if kind == "line":
        return [(length("x1", width), length("y1", height)), (length("x2", width), length("y2", height))], [1, 2]
    if kind == "polygon":
        corners = [tuple(map(float, pair.split(","))) for pair in values["points"].split()]
        return [*corners, corners[0]], [1, *[2] * (len(corners) - 1), 79]
    if kind == "circle":
        (x, y, radius), turns = map(float, (values["cx"], values["cy"], values["r"])), [number * pi / 24 for number in range(49)]
        return [(x + radius * cos(turn), y + radius * sin(turn)) for turn in turns], [1, *[2] * 48]
    steps = re.findall(r"([ML])([-\d.]+) ([-\d.]+)", values.get("d", "")) or [("M", 0, 0)]
    return [(float(x), float(y)) for _, x, y in steps], [1 if how == "M" else 2 for how, _, _ in steps]


def paint(values: dict[str, str], of: str, opacity: float) -> tuple:
    """The colour of the inside ("fill") or of the edge ("stroke"), with its opacity, as matplotlib has it."""
    from matplotlib.colors import to_rgba

    color = values.get(of, "black" if of == "fill" else "none")
    return to_rgba(color, 0 if color == "none" else opacity * float(values.get(f"{of}-opacity", 1)))
