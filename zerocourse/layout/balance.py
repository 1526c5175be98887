"""What a rank map does with a whole model: how much each rank gets, how uneven that is, and a picture of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from .rankmap import Layout, RankMap, Shape, owners


@dataclass(frozen=True, repr=False)
class Balance:
    """A map applied to a whole model: elements per rank, and how uneven they are. Draws itself in a notebook."""

    name: str
    shapes: dict[str, Shape]
    layout: Layout

    @classmethod
    def build(cls, shapes: Mapping[str, Shape], world_size: int, rank_map: str | RankMap | None = None) -> "Balance":
        named = getattr(rank_map, "func", rank_map) or "flat"  # functools.partial has its function inside
        name = named if isinstance(named, str) else getattr(named, "__name__", type(named).__name__)
        return cls(name, dict(shapes), Layout.build(shapes, world_size, owners(rank_map, shapes, world_size)))

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

    def _repr_svg_(self) -> str:
        """One bar per rank, in it one cell per tensor (or part of one), wide as its elements. Hover for its name."""
        wide, high, gap, left, right = 720, 22, 6, 64, 120  # right: room for the count after the longest bar
        scale = (wide - left - right) / max(1, *self.elements)
        hue = {name: index * 360 // max(1, len(self.shapes)) for index, name in enumerate(self.shapes)}
        rows = []
        for rank, count in enumerate(self.elements):
            y = 24 + rank * (high + gap)
            rows.append(f'<text x="4" y="{y + 15}">rank {rank}</text>')
            for piece in self.layout.shard_ranges(self.layout.slice(rank)):
                size = piece.stop - piece.start
                edge = ' stroke="white" stroke-width="0.4"' if size * scale > 2 else ""  # it would hide a narrow cell
                rows.append(
                    f'<rect x="{left + piece.at * scale:.2f}" y="{y}" width="{size * scale:.2f}" height="{high}"'
                    f' fill="hsl({hue[piece.name]},55%,65%)"{edge}>'
                    f"<title>{escape(piece.name)}[{piece.start}:{piece.stop}], {size:,} elements</title></rect>")
            rows.append(f'<text x="{left + count * scale + 6:.2f}" y="{y + 15}">{count:,}</text>')
        title = f"{escape(self.name)}: parameters per rank, max/mean {self.imbalance:.2f}"
        height = 24 + len(self.elements) * (high + gap)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{height}" role="img"'
                f' font-family="sans-serif" font-size="12"><title>{title}</title>'
                f'<rect width="100%" height="100%" fill="white"/><text x="4" y="14">{title}</text>'
                + "".join(rows) + "</svg>")
