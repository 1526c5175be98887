"""The batch of one optimizer step as squares, one a sample: ranks are rows, micro-batches are columns."""

from ....engine.config.rules import batch_sizes
from ....errors import BadInput
from ...show import Shown
from ...show.pictures import svg

LEFT, TOP, GAP, WIDEST = 110, 64, 16, 30  # units; GAP: between micro-batches, and between ranks
MOST_RANKS, MOST_SQUARES = 8, 26  # that are drawn


def batch_grid(train: int | None = None, micro: int | None = None, steps: int | None = None, ranks: int = 2) -> Shown:
    """The three sizes of a config on some ranks; of what is None the rule says what it is.

    Raises BadInput where the rule has no answer, with the engine's own sentence, and for a batch too large to draw.
    """
    train, micro, steps = batch_sizes(train, micro, steps, ranks)
    if ranks > MOST_RANKS or micro * steps > MOST_SQUARES:
        raise BadInput(f"{micro} × {steps} samples on {ranks} ranks are too many to draw: there is room for {MOST_SQUARES} "
                       f"per rank on {MOST_RANKS} ranks")
    side = min(WIDEST, (svg.WIDTH - LEFT - steps * GAP) / (micro * steps))
    drawing = svg.Drawing(svg.WIDTH, TOP + ranks * (side + GAP))
    drawing.text(0, 18, f"{train} samples in a step = {micro} × {steps} × {ranks}", bold=True, size=16)
    drawing.text(0, TOP - 10, "micro-batch")
    for column in range(steps):
        x = LEFT + column * (micro * side + GAP)
        drawing.text(x + micro * side / 2, TOP - 10, str(column + 1), anchor="middle")
        for rank in range(ranks):
            for sample in range(micro):
                drawing.rect(x + sample * side, TOP + rank * (side + GAP), side, side, "activations",
                             data={"rank": rank, "micro": column, "sample": sample})
    for rank in range(ranks):
        drawing.text(0, TOP + rank * (side + GAP) + side / 2 + 5, f"rank {rank}")
    words = (f"{ranks} ranks, each with {steps} micro-batch{'es' * (steps > 1)} of {micro} sample{'s' * (micro > 1)} one after "
             f"the other: {train} samples in an optimizer step.")
    return Shown(words, svg=svg.still(drawing, "The samples of one optimizer step", words))
