"""What passes through a cut MLP on two ranks, there and back, recorded on them and drawn as a film.

Without sequence parallelism f and g are an all-reduce in one direction each. With it the ranks have some of the tokens
outside of the region, and all of them inside.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ....comm import Comm
from ...show.film import Film, Frame
from ...show.palette import FAINT
from ...show.pictures import svg

TOKENS, WIDTH, HIDDEN = 8, 16, 64
STOPS = "x", "f(x)", "hidden", "term", "y"  # what there is, from left to right; f stands before the second, g before the last
BETWEEN = "f", "up, GELU", "down", "g"
WIDE, HIGH, LEFT, TOP, LANE = 66.0, 44.0, 62.0, 46.0, 104.0  # units: of a box; where the first is; from rank to rank


@dataclass(frozen=True)
class Passing:
    """way: "forward" or "backward".   stop: of STOPS.   shape: of the tensor.   sent: elements, by this rank, to get it."""

    way: str
    stop: str
    shape: tuple[int, int]
    sent: int


def recorded_passes(enter: Callable, leave: Callable, tokens_are_cut: bool = False) -> list[Passing]:
    """What this rank has, in order, in a forward and a backward of a cut MLP between `enter` and `leave`. Collective."""
    comm, found, sent = Comm(), [], 0

    def note(way: str, stop: str, tensor: torch.Tensor) -> None:
        nonlocal sent
        now = sum(comm.elements.values()) + comm.metadata // tensor.itemsize  # an all-reduce of a few numbers is counted apart
        found.append(Passing(way, stop, tuple(tensor.shape[-2:]), now - sent))
        sent = now

    def passing(stop: str, tensor: torch.Tensor) -> torch.Tensor:
        note("forward", stop, tensor)
        tensor.register_hook(lambda gradient: note("backward", stop, gradient))
        return tensor

    draw = torch.Generator().manual_seed(0)
    own = TOKENS // comm.world_size if tokens_are_cut else TOKENS
    x = passing("x", torch.randn(1, own, WIDTH, generator=draw, requires_grad=True))
    up, down = (torch.randn(size, generator=draw) / 8 for size in ((HIDDEN // comm.world_size, WIDTH), (WIDTH, HIDDEN // comm.world_size)))
    entered = passing("f(x)", enter(x, comm))
    hidden = passing("hidden", F.gelu(F.linear(entered, up)))
    y = passing("y", leave(passing("term", F.linear(hidden, down)), comm))
    y.sum().backward()
    return found


def region_film(ranks: Sequence[Sequence[Passing]], title: str) -> Film:
    """ranks: of each, what `recorded_passes` returned. A frame for each stop on the way there, and on the way back."""
    frames = []
    for number, passing in enumerate(ranks[0]):
        sent = [of_rank[number].sent for of_rank in ranks]
        at = STOPS.index(passing.stop)
        border = at in (1, 4) if passing.way == "forward" else at in (0, 3)
        what = BETWEEN[at - 1] if passing.way == "forward" and at else BETWEEN[at] if passing.way == "backward" and at < 4 else ""
        rows, columns = passing.shape
        said = f"Each rank has {passing.stop if passing.way == 'forward' else f'the gradient of {passing.stop}'}, {rows} tokens of {columns} numbers."
        if border:
            said = f"{what} sends {sent[0]:,} elements. {said}" if sent[0] else f"{what} sends nothing. {said}"
        frames.append(Frame(region_frame(ranks, number), said, f"{passing.way.capitalize()}, {passing.stop}"))
    total = sum(passing.sent for passing in ranks[0])
    words = " ".join(frame.caption for frame in frames)
    return Film(title, frames, f"{title}. On {len(ranks)} ranks. {words} A rank sends {total:,} elements in all.", 1.6)


def region_frame(ranks: Sequence[Sequence[Passing]], number: int) -> svg.Drawing:
    drawing = svg.Drawing(svg.WIDTH, TOP + LANE * len(ranks) + 8)
    step = (svg.WIDTH - LEFT - WIDE - 2) / (len(STOPS) - 1)
    way, now = ranks[0][number].way, STOPS.index(ranks[0][number].stop)
    sent = ranks[0][number].sent
    for place, words in enumerate(BETWEEN):
        drawing.text(LEFT + WIDE + place * step + (step - WIDE) / 2, TOP - 22, words, anchor="middle", size=13, bold=words in "fg")
    for lane, passes in enumerate(ranks):
        y = TOP + LANE * lane
        drawing.text(0, y + HIGH / 2 + 5, f"rank {lane}", size=13)
        for passing in passes[:number + 1]:
            place, back = STOPS.index(passing.stop), passing.way == "backward"
            drawing.rect(LEFT + place * step, y + (HIGH + 2) * back, WIDE, HIGH, "gradients" if back else "activations",
                         "×".join(map(str, passing.shape)), size=13, data={"rank": lane, "way": passing.way, "stop": passing.stop})
        place = now - 1 if way == "forward" else now
        if number not in (0, len(STOPS)):  # nothing leads to the first of either way
            middle = y + HIGH / 2 + (HIGH + 2) * (way == "backward")
            ends = LEFT + WIDE + place * step + 4, LEFT + (place + 1) * step - 4
            drawing.arrow(*(ends[0], middle, ends[1], middle) if way == "forward" else (ends[1], middle, ends[0], middle))
            if sent and lane:
                x = sum(ends) / 2
                drawing.line(x, middle - LANE, x, middle, width=3, color="#cc79a7", data={"sent": sent})
                drawing.text(x, middle - LANE / 2 + 5, f"{sent:,}", size=13, anchor="middle", plate=True)
    drawing.text(LEFT, TOP + LANE * len(ranks) - 2, "above: activations; below: their gradients; the line between the ranks: they communicate",
                 size=12, color=FAINT)
    return drawing
