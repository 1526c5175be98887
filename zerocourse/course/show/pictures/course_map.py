"""The chapters, and which of them each needs."""

from ...chapters import NEEDS, PATHS
from .. import Shown
from ..palette import FAINT, INK
from . import svg

COLUMN, ROW, WIDE, HIGH, TOP = 128, 66, 118, 42, 34  # units: from box to box, the box, and where the first row begins
PLACES = {  # the chapter's name in two lines, its column from the left and its row from above
    0: ("start|here", 1.5, 0), 1: ("memory|math", 1.5, 1), 2: ("the meta|device", 0, 2), 3: ("rank|maps", 1, 2), 4: ("data|parallel", 2, 2),
    5: ("ZeRO-1|", 1.5, 3), 6: ("ZeRO-2|", 1.5, 4), 7: ("ZeRO-3|", 1, 5), 8: ("overlap|", 2, 6), 9: ("what goes|wrong", 0, 6),
    10: ("mixed|precision", 1, 6), 11: ("the|engine", 0.5, 7), 12: ("check-|points", 0.5, 8), 13: ("acti-|vations", 3, 3),
    14: ("offload|", 1.5, 7), 15: ("ZeRO-|Infinity", 1.5, 8), 16: ("tensor|parallel", 3, 6), 17: ("pipelines|", 4, 6),
    18: ("one|cluster", 4, 7), 19: ("long|sequences", 3, 7), 20: ("slow|links", 2.6, 8),
    21: ("experts|", 4.6, 8), 22: ("kernels|", 3.6, 8), 23: ("inference|", 3.6, 9), 24: ("RLHF|", 3.6, 10),
    25: ("scale|", 2.6, 9),
    26: ("claims|on trial", 2.1, 10)}
FILLS = dict(zip(PATHS, ("#9cc3e0", "#dbe9f4", "white"), strict=True))


def course_map() -> Shown:
    """An arrow leads from a chapter to each that needs it. A chapter's colour says which is the shortest path that has it."""
    drawing = svg.Drawing(svg.WIDTH, TOP + HIGH + 2 + ROW * max(row for _, _, row in PLACES.values()))
    left = 0.0
    for path, chapters in PATHS.items():
        words = f"{path}: {len(chapters)} chapters"
        drawing.rect(left, 2, 22, 16, fill=FILLS[path])
        drawing.text(left + 28, 15, words, size=14)
        left += svg.words_width(words, 14) + 52
    for chapter, needed in NEEDS.items():
        for other in needed:
            (x1, y1), (x2, y2) = corner(other), corner(chapter)
            drawing.arrow(x1 + WIDE / 2, y1 + HIGH, x2 + WIDE / 2, y2, color=FAINT, width=1.5, data={"from": other, "to": chapter})
    for chapter, (name, _, _) in PLACES.items():
        path = shortest(chapter)
        (x, y), (first, second) = corner(chapter), name.split("|")
        drawing.rect(x, y, WIDE, HIGH, fill=FILLS[path], data={"chapter": chapter, "path": path})
        drawing.text(x + 8, y + 27, f"{chapter:02}", bold=True, color=INK)
        for line, words in enumerate((first, second) if second else (first,)):
            drawing.text(x + 34, y + (18 if second else 27) + 16 * line, words, size=14)
    needs = "; ".join(f"{chapter:02} needs {' and '.join(f'{other:02}' for other in needed)}" for chapter, needed in NEEDS.items() if needed)
    paths = "; ".join(f"{path}: {', '.join(f'{chapter:02}' for chapter in PATHS[path])}" for path in list(PATHS)[:-1])
    words = f"Which chapter needs which: {needs}. Paths: {paths}; the whole course: all of them."
    return Shown(words, svg=svg.still(drawing, "What needs what", words))


def corner(chapter: int) -> tuple[float, float]:
    _, column, row = PLACES[chapter]
    return 1 + column * COLUMN, TOP + row * ROW


def shortest(chapter: int) -> str:
    return next(path for path, chapters in PATHS.items() if chapter in chapters)
