"""Who reads what: the slices in which a tensor was saved, above those that other ranks want, with every transfer."""

from collections.abc import Sequence

from ....errors import BadInput
from ...show import Shown
from ...show.palette import FAINT
from ...show.pictures import svg
from .resumes import SliceRead

BAR, GAP, TOP = 38, 96, 58  # units: height of a bar, room between the two rows, where the first begins


def reshuffle(moves: Sequence[SliceRead], size: int, title: str) -> Shown:
    """One tensor of `size` elements: a bar for each file above, one for each rank below, a band for what is read.

    Raises BadInput when there is nothing to read.
    """
    if not moves:
        raise BadInput("moves is empty: a picture needs at least one transfer")
    files = sorted({move.file for move in moves})
    ranks = sorted({move.rank for move in moves})
    scale = svg.WIDTH / size
    saved = {file: _bounds([move for move in moves if move.file == file]) for file in files}
    read = {rank: _bounds([move for move in moves if move.rank == rank]) for rank in ranks}
    drawing = svg.Drawing(svg.WIDTH, TOP + 2 * BAR + GAP + 34)
    drawing.text(0, 18, title, bold=True, size=16)
    drawing.text(0, TOP - 10, "in files, as they were saved", size=13, color=FAINT)
    bottom = TOP + BAR + GAP
    for number, move in enumerate(moves):
        x, wide = move.start * scale, (move.stop - move.start) * scale
        drawing.rect(x, TOP + BAR, wide, GAP, fill=("#e4e4e4", "#f4f4f4")[number % 2], stroke="none",
                     data={"rank": move.rank, "bytes": move.nbytes})
        drawing.line(x, TOP + BAR, x, bottom, color=FAINT, dashed=True)
        if svg.words_width(f"{move.nbytes:,} B", 13) < wide:
            drawing.text(x + wide / 2, TOP + BAR + GAP / 2 + 5, f"{move.nbytes:,} B", size=13, anchor="middle")
    for y, bars, name in ((TOP, saved, "{}"), (bottom, read, "rank {}")):
        for key, (start, stop) in bars.items():
            drawing.rect(start * scale, y, (stop - start) * scale, BAR, "parameters", name.format(key), size=13)
    drawing.text(0, bottom + BAR + 20, "on the ranks that load them", size=13, color=FAINT)
    words = f"{title}: " + "; ".join(f"rank {move.rank} reads elements {move.start:,} to {move.stop:,} from {move.file}, "
                                     f"{move.nbytes:,} bytes" for move in moves) + "."
    return Shown(words, svg=svg.still(drawing, title, words))


def _bounds(moves: Sequence[SliceRead]) -> tuple[int, int]:
    return min(move.start for move in moves), max(move.stop for move in moves)
