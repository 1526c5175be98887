"""What a rank map does with a whole model: how much each rank gets, how uneven that is, and a picture of it."""

from collections.abc import Mapping
from colorsys import hls_to_rgb
from dataclasses import dataclass
from html import escape

from ...layout.rankmap import Layout, RankMap, Shape, owners
from .image import picture
from .png import png_of_svg

WIDTH = 640  # of the picture, in CSS pixels
LETTER = 7.5  # at most, of a name in a cell


@dataclass(frozen=True, repr=False)
class Balance:
    """A map applied to a whole model: elements per rank, and how uneven they are. Draws itself in a notebook.

    widest: the elements of a bar over the full width, for pictures that are compared; None: those of the longest bar.
    """

    name: str
    shapes: dict[str, Shape]
    layout: Layout
    widest: int | None = None

    @classmethod
    def build(cls, shapes: Mapping[str, Shape], world_size: int, rank_map: str | RankMap | None = None,
              widest: int | None = None) -> "Balance":
        named = getattr(rank_map, "func", rank_map) or "flat"  # functools.partial has its function inside
        name = named if isinstance(named, str) else getattr(named, "__name__", type(named).__name__)
        return cls(name, dict(shapes), Layout.build(shapes, world_size, owners(rank_map, shapes, world_size)), widest)

    @property
    def elements(self) -> list[int]:
        """The number of parameters that each rank owns, without padding."""
        return [self.layout.real(rank) for rank in range(len(self.layout.bounds) - 1)]

    @property
    def imbalance(self) -> float:
        """The largest share over the mean share: 1.0 is perfect, N means that one rank owns everything."""
        total = sum(self.elements)
        return max(self.elements) * len(self.elements) / total if total else 1.0

    def __str__(self) -> str:
        rows = [f"{self.name}: {len(self.elements)} ranks, max/mean {self.imbalance:.3f}"]
        rows += [f"  rank {rank}: {count:>13,}" for rank, count in enumerate(self.elements)]
        return "\n".join(rows)

    __repr__ = __str__  # what a page shows that cannot draw

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return picture(png_of_svg(self.svg(), str(self)), str(self))

    def svg(self) -> str:
        """One bar per rank, in it one cell per tensor (or part of one), as wide as its elements, with its name if there is room."""
        high, gap, left, right = 24, 6, 64, 120  # right: room for the count after the longest bar
        scale = (WIDTH - left - right) / max(1, self.widest or 0, *self.elements)
        hues = {name: hls_to_rgb(index / len(self.shapes), 0.7, 0.55) for index, name in enumerate(self.shapes)}
        color = {name: "#" + "".join(f"{round(255 * part):02x}" for part in parts) for name, parts in hues.items()}
        rows: list[str] = []
        for rank, count in enumerate(self.elements):
            y = 26 + rank * (high + gap)
            rows.append(f'<text x="4" y="{y + 17}">rank {rank}</text>')
            for piece in self.layout.shard_ranges(self.layout.slice(rank)):
                size = piece.stop - piece.start
                x, width = left + piece.at * scale, size * scale
                edge = ' stroke="white" stroke-width="0.8"' if width > 2 else ""  # it would hide a narrow cell
                rows.append(
                    f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{high}"'
                    f' fill="{color[piece.name]}"{edge}>'
                    f"<title>{escape(piece.name)}[{piece.start}:{piece.stop}], {size:,} elements</title></rect>")
                if width > LETTER * len(name := piece.name.removesuffix(".weight")):
                    rows.append(f'<text x="{x + width / 2:.2f}" y="{y + 16}" text-anchor="middle" font-size="12">{escape(name)}</text>')
            rows.append(f'<text x="{left + count * scale + 6:.2f}" y="{y + 17}">{count:,}</text>')
        title = f"{escape(self.name)}: parameters per rank, max/mean {self.imbalance:.2f}"
        height = 26 + len(self.elements) * (high + gap)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img"'
                f' font-family="Helvetica, Arial, sans-serif" font-size="14"><title>{title}</title>'
                f'<rect width="100%" height="100%" fill="white"/><text x="4" y="16">{title}</text>'
                + "".join(rows) + "</svg>")
