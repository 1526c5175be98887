"""Four blocks go through a forward and a backward, and each is computed again before its backward.

The bytes are those of a real run: a ledger is read around each move, and a frame draws what it said.
"""

from dataclasses import dataclass, replace

import torch

from ....measure.ledger import Ledger
from ...show.film import Film, Frame
from ...show.pictures import svg
from .activation_trial import SAMPLES, SHAPE, model_of
from .checks.cells_recompute import compute_again, keep_input

FORWARD, AGAIN, BACKWARD = "forward", "forward again", "backward"
FLOOR, HIGH, LEFT, STRIDE, BAR = 212.0, 150.0, 70.0, 142.0, 44.0  # units: the ground line, the tallest bar, columns


class Recompute(torch.autograd.Function):
    forward, backward = staticmethod(keep_input), staticmethod(compute_again)


@dataclass(frozen=True)
class Move:
    """One block at work.   made: bytes of activations that it has left.   gradients: bytes of its parameters' gradients."""

    name: str
    block: int
    made: int = 0
    gradients: int = 0


def recorded_moves() -> tuple[list[Move], int]:
    """The moves through the blocks of chapter 13's model, and the bytes of one activation (B, T, C)."""
    model, moves = model_of(), []
    x_BTC = torch.randn(SAMPLES, SHAPE.block_size, SHAPE.n_embd, generator=torch.Generator().manual_seed(0), requires_grad=True)
    with Ledger(model.h) as ledger:
        ledger.track(x_BTC)

        def watched(number: int):
            def block(x):
                before, is_again = ledger.now().rest, torch.is_grad_enabled()
                if is_again:
                    x.register_hook(lambda gradient: moves.append(Move(BACKWARD, number)))  # its backward is at its end
                output = model.h[number](x)
                moves.append(Move(AGAIN if is_again else FORWARD, number, ledger.now().rest - before))
                return output
            return block

        output = x_BTC
        for number in range(SHAPE.n_layer):
            output = Recompute.apply(watched(number), output)
        output.backward(torch.ones_like(output))
    left = [sum(param.grad.nbytes for param in block.parameters()) for block in model.h]
    return [replace(move, gradients=left[move.block]) if move.name == BACKWARD else move for move in moves], x_BTC.nbytes


def recompute_film() -> Film:
    """A frame for each move."""
    moves, unit = recorded_moves()
    scale = HIGH / max(move.made + unit for move in moves)
    frames, checkpoints, gradients = [], set(), {}
    for move in moves:
        if move.name == FORWARD:
            checkpoints.add(move.block)
        if move.name == BACKWARD:
            checkpoints.discard(move.block)
            gradients[move.block] = move.gradients
        frames.append(Frame(frame(move, checkpoints, gradients, unit, scale), sentence(move, len(checkpoints), unit),
                            f"{move.name.capitalize()}, block {move.block}"))
    most = max(move.made for move in moves if move.name == AGAIN)
    words = (f"{SHAPE.n_layer} blocks of a GPT-2. After the forward only their inputs are kept, one unit of (B, T, C) each. In the backward "
             f"each block in turn is computed again, which makes {most / unit:.3g} units more, and these are free before the next block's turn.")
    return Film("Computed again, block by block", frames, words, 1.6)


def frame(move: Move, checkpoints: set[int], gradients: dict[int, int], unit: int, scale: float) -> svg.Drawing:
    """scale: units of length per byte."""
    drawing = svg.Drawing(svg.WIDTH, 262)
    drawing.line(0, FLOOR, svg.WIDTH, FLOOR)
    for number in range(SHAPE.n_layer):
        x = LEFT + STRIDE * number
        here = number == move.block
        drawing.text(x, FLOOR + 20, f"block {number}", anchor="middle", bold=here)
        if number in checkpoints:
            drawing.rect(x - BAR, FLOOR - unit * scale, BAR, unit * scale, "activations", data={"checkpoint": number})
        if here and move.name == AGAIN:
            top = FLOOR - (unit + move.made) * scale
            drawing.rect(x - BAR, top, BAR, move.made * scale, "activations", data={"again": move.made})
            drawing.text(x - BAR / 2, top - 7, f"+ {move.made / unit:.3g}", anchor="middle")
        if number in gradients:
            drawing.rect(x + 4, FLOOR - gradients[number] * scale, BAR, gradients[number] * scale, "gradients",
                         data={"gradients": gradients[number]})
    drawing.text(LEFT + STRIDE * move.block, FLOOR + 42, move.name, anchor="middle", size=14)
    return drawing


def sentence(move: Move, waiting: int, unit: int) -> str:
    if move.name == FORWARD:
        return "The block has run without a graph, so that only its input is kept: one unit."
    if move.name == AGAIN:
        return f"From its input the block has run once more, now with a graph. That makes {move.made / unit:.3g} units, its output among them."
    left = f"{waiting} inputs wait" if waiting > 1 else "One input waits" if waiting else "No input waits any more"
    return f"Its backward is over. All that was made again is free, and so is its input. Its parameters' gradients stay. {left}."
