"""A recorded step, frame by frame: all ranks side by side, and every byte that they hold in its place.

    story(3)     a film: the start, every forward and backward, the update

`python -m zerocourse.course.show.pictures.story` draws the one that the README begins with.
"""

from contextlib import nullcontext
from pathlib import Path

from ....errors import BadInput
from ....formulas.units import gb
from ....measure.stage_meter import KINDS
from ..cells.sources import ROOT
from ..film import Film, Frame
from ..palette import FAINT, INK, MEANINGS
from . import svg
from .placing import GRADIENTS, OPTIMIZER, PARAMETERS, Placed, find, listed, pieces, under_way, units
from .recorded_stages import RecordedRank, recorded_stage

README_PICTURE = ROOT / "notebooks" / "pictures" / "zero3_step.svg"
NAMES = ("data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3")
SECONDS = 1.6  # per frame
LABELS, BETWEEN, GAP, LANE, ROW = 56, 30, 14, 13, 38  # units: names at the left, between ranks, between cells; heights
TOP, RIGHT = 72, svg.WIDTH - 2  # of the first row; the right edge


def story(stage: int) -> Film:
    """The recorded step of a stage, 0 to 3, of a GPT-2 of four blocks on two ranks. Raises BadInput for any other."""
    if stage not in range(len(NAMES)):
        raise BadInput(f"stage is {stage!r}: it must be 0, 1, 2 or 3")
    ranks = recorded_stage(stage)
    highest = max(event["alive"] for event in ranks[0].events)
    title, shown, told = f"One step of {NAMES[stage]}, frame by frame", moments(ranks[0]), key_moments(ranks[0])
    words = (f"{title}: what {len(ranks)} ranks hold of each of {len(units(ranks[0]))} units while the forward goes down "
             f"through the blocks and the backward comes up again. Rank 0 holds {gb(ranks[0].events[0]['alive'])} before "
             f"the step and at most {gb(highest)} in it. {SHORT[stage]}")
    return Film(title, [Frame(frame(ranks, stage, *moment), sentence(stage, *moment, under_way(ranks[0], find(ranks[0], *moment))),
                              f"{NAMES[stage]}: {heading(*moment)}") for moment in shown],
                words, SECONDS, background(ranks, stage), [shown.index(moment) for moment in told])


SHORT = {0: "Every rank holds everything all the time.",
         1: "Every rank holds all parameters and gradients, but only its half of the optimizer's states.",
         2: "Of gradients and optimizer's states every rank keeps its half; a bucket is freed when it has been reduced.",
         3: "Every rank keeps its half of everything; a block is gathered before it computes, and freed after."}

BEFORE = {0: "Every rank holds all parameters and all of the optimizer's states. There are no gradients yet.",
          1: "Every rank holds all parameters, but only its half of the optimizer's states. There are no gradients yet.",
          2: "Every rank holds all parameters, but only its half of the optimizer's states. There are no gradients yet.",
          3: "Every rank keeps its half of the parameters and of the optimizer's states. There are no gradients yet."}


def moments(rank: RecordedRank) -> list[tuple[str, str]]:
    """(verb, unit) of the events at whose ends a frame is drawn: the start, every forward and backward, the update."""
    return [(event["verb"], event["unit"]) for event in rank.events if event["verb"] in ("start", "forward", "backward", "step")]


def key_moments(rank: RecordedRank) -> list[tuple[str, str]]:
    """Those that tell the most: before the step, early in the forward, in the middle of the backward, the update."""
    blocks = [name for name in units(rank) if name != "root"]
    return [("start", "step"), ("forward", blocks[0]), ("backward", blocks[-2]), ("step", "optimizer")]


class Grid:
    """Where things stand: the columns of the ranks, the rows of the units, the cells of a unit on a rank."""

    def __init__(self, ranks: list[RecordedRank]):
        self.sizes, self.most = units(ranks[0]), max(event["alive"] for rank in ranks for event in rank.events)
        self.wide = (RIGHT - LABELS - BETWEEN * (len(ranks) - 1)) / len(ranks)
        self.left = [LABELS + number * (self.wide + BETWEEN) for number in range(len(ranks))]
        self.cell = (self.wide - 2 * GAP) / 4  # the optimizer has two averages of each element
        self.scale = self.cell / max(self.sizes.values())  # units of length per element
        self.top = {name: TOP + ROW * row for row, name in enumerate(self.sizes)}
        self.below = TOP + ROW * len(self.sizes)

    def across(self, rank: int) -> dict[str, float]:
        """Where the cells of the three kinds begin."""
        return {of: self.left[rank] + place * (self.cell + GAP) for place, of in enumerate((PARAMETERS, GRADIENTS, OPTIMIZER))}


def kept(rank: RecordedRank, stage: int) -> set[Placed]:
    """What the rank holds in every frame."""
    return set.intersection(*(set(pieces(rank, find(rank, *moment), stage)) for moment in moments(rank)))


def background(ranks: list[RecordedRank], stage: int) -> svg.Drawing:
    """What is the same in all frames: names, empty cells, memory that is held throughout, the legend."""
    grid = Grid(ranks)
    drawing = svg.Drawing(svg.WIDTH, grid.below + 62)
    for name, y in grid.top.items():
        drawing.text(4, y + LANE + 5, name, size=14)
    for rank, left in enumerate(grid.left):
        drawing.text(left, 18, f"rank {rank}", bold=True)
        drawing.rect(left, 25, grid.wide, 14, stroke=FAINT)
        for (of, x), words in zip(grid.across(rank).items(), (PARAMETERS, GRADIENTS, "Adam's averages"), strict=True):
            drawing.text(x, 62, words, size=11.5)
            for name, y in grid.top.items():
                for copy in range(1 + (of == OPTIMIZER)):
                    width = grid.sizes[name] * grid.scale
                    drawing.rect(x + copy * width, y + LANE + 1, width, LANE, stroke="#b4b4b4")
        for piece in sorted(kept(ranks[rank], stage)):
            draw_piece(drawing, grid, rank, piece)
    drawing.legend(LABELS, grid.below + 8, KINDS, {"in flight": "in flight: gathered, buckets", "activations": "activations, the rest"})
    return drawing


def frame(ranks: list[RecordedRank], stage: int, verb: str, unit: str) -> svg.Drawing:
    """What the ranks held at the end of one event. It is the same event on each of them, not the same instant."""
    grid, at = Grid(ranks), find(ranks[0], verb, unit)
    moving = under_way(ranks[0], at)
    drawing = svg.Drawing(svg.WIDTH, grid.below + 62)
    if unit in grid.top:
        drawing.rect(0.5, grid.top[unit] - 5, RIGHT, ROW - 2)
    for number, rank in enumerate(ranks):
        index = find(rank, verb, unit)
        draw_total(drawing, grid, rank.events[index])
        for piece in sorted(set(pieces(rank, index, stage)) - kept(rank, stage)):
            draw_piece(drawing, grid, number, piece, arriving=("all_gather", piece.unit) in moving)
    for kind, of_unit in moving:
        y = grid.top[of_unit] + (LANE / 2 if kind == "all_gather" else 1.5 * LANE)
        color = MEANINGS[PARAMETERS if kind == "all_gather" else GRADIENTS].color
        for right in grid.left[1:]:
            for begin, end in ((right - BETWEEN + 3, right - 3), (right - 3, right - BETWEEN + 3)):
                drawing.arrow(begin, y, end, y, color=color, data={"moving": kind, "unit": of_unit})
    return drawing


def draw_total(drawing: svg.Drawing, grid: Grid, event: dict) -> None:
    """The rank's bytes in all, by kind."""
    x = grid.left[event["rank"]]
    drawing.text(x + grid.wide, 18, f"{gb(event['alive'])} alive", anchor="end")
    for kind, nbytes in event["kinds"].items():
        width = grid.wide * nbytes / grid.most
        if nbytes:
            drawing.rect(x, 25, width, 14, kind, stroke="none", data={"rank": event["rank"], "kind": kind, "bytes": nbytes})
        x += width


def draw_piece(drawing: svg.Drawing, grid: Grid, rank: int, piece: Placed, arriving: bool = False) -> None:
    """The lower lane has what stays, at its place in the whole, the upper one what passes; pale: it is still arriving."""
    copies = 2 if piece.of == OPTIMIZER else 1
    y = grid.top[piece.unit] + (0 if piece.passing else LANE + 1)
    width = (piece.stop - piece.start) * grid.scale
    pale = drawing.group(opacity=0.4) if arriving and piece.of == PARAMETERS and piece.passing else nullcontext()
    with pale:
        for copy in range(copies):
            x = grid.across(rank)[piece.of] + (copy * grid.sizes[piece.unit] + piece.start) * grid.scale
            drawing.rect(x, y, width, LANE, piece.kind, stroke=INK if width > 2 else "none",
                         data={"rank": rank, "unit": piece.unit, "bytes": piece.nbytes // copies})


def heading(verb: str, unit: str) -> str:
    return {"start": "before the step", "step": "the optimizer's step"}.get(verb, f"{verb} of {unit}")


def sentence(stage: int, verb: str, unit: str, moving: list[tuple[str, str]]) -> str:
    """What happens, in words."""
    gathers, reductions = (listed(sorted({name for each, name in moving if each == kind})) for kind in ("all_gather", "reduce_scatter"))
    if verb == "start":
        return BEFORE[stage]
    if verb == "step":
        ending = ("Every rank updates everything." if stage == 0 else "Each rank updates its half."
                  if stage == 3 else "Each rank updates its half, and gathers the other half of the parameters.")
        return f"{ending} What was in flight is gone."
    gathers, reductions = (words.replace("root", "the root") for words in (gathers, reductions))
    said = [f"{'The root' if unit == 'root' else unit} has computed its {verb}"
            + (", with gathered parameters" if stage == 3 else "")
            + (" and its gradients fill a bucket." if verb == "backward" and unit != "root" else ".")]
    if gathers:
        said.append(f"The parameters of {gathers} are on their way.")
    if reductions:
        said.append(f"The gradients of {reductions} are being added up over the ranks.")
    return " ".join(said)


def draw_for_readme(path: Path = README_PICTURE) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(story(3).animation() + "\n")


if __name__ == "__main__":
    draw_for_readme()
