"""A weight near 1 gets small updates. With a master they add up until bf16 can show them; without one they are lost.

The numbers are torch's own: each frame is computed with tensors of the two dtypes, and drawn on the line of numbers.
"""

from itertools import pairwise

import torch

from ...show.film import Film, Frame
from ...show.pictures import svg

START, UPDATE, COUNT = 1.0, 0.0008, 8
LOW, HIGH, LEFT, WIDE = 0.991, 1.001, 96, 520  # the line of numbers: its ends, and where it is drawn
ROWS = {"master, fp32": 58, "weight, bf16": 108, "without a master": 158}


def sleeping_update() -> Film:
    """A frame before the first update, and one after each."""
    master = torch.tensor([START])
    weight, alone = master.bfloat16(), master.bfloat16()
    values = [(master.item(), weight.item(), alone.item())]
    for _ in range(COUNT):
        master -= UPDATE
        weight.copy_(master)
        alone -= UPDATE
        values.append((master.item(), weight.item(), alone.item()))
    frames = [Frame(frame(each), sentence(values, number), f"Update {number} of {COUNT}") for number, each in enumerate(values)]
    moved = sum(after[1] != before[1] for before, after in pairwise(values))
    words = (f"A weight of {START:g} is made smaller by {UPDATE} in each of {COUNT} steps. Its fp32 master moves each time, to {values[-1][0]:.4f}. "
             f"The bf16 weight moves {moved} times, to {values[-1][1]:.4f}, and without a master it stays at {values[-1][2]:g}.")
    return Film("Updates that sleep in the master", frames, words, 1.6)


def numbers_of_bf16() -> list[float]:
    """All that lie on the drawn line."""
    bits = torch.arange(torch.tensor(LOW).bfloat16().view(torch.int16), torch.tensor(HIGH).bfloat16().view(torch.int16) + 2, dtype=torch.int16)
    return [value for value in bits.view(torch.bfloat16).tolist() if LOW <= value <= HIGH]


def place(value: float) -> float:
    return LEFT + WIDE * (value - LOW) / (HIGH - LOW)


def frame(values: tuple[float, float, float]) -> svg.Drawing:
    drawing = svg.Drawing(svg.WIDTH, 190)
    for value in numbers_of_bf16():
        drawing.line(place(value), 34, place(value), 172, dashed=True)
        drawing.text(place(value), 24, f"{value:.7g}", size=13, anchor="middle")
    for (name, y), value in zip(ROWS.items(), values, strict=True):
        drawing.text(0, y - 14, name, size=13)
        drawing.line(LEFT, y, LEFT + WIDE, y)
        drawing.rect(place(value) - 6, y - 8, 12, 16, "optimizer" if name == "master, fp32" else "parameters", data={"row": name, "value": value})
    return drawing


def sentence(values: list[tuple[float, float, float]], number: int) -> str:
    if number == 0:
        return f"The dashed lines are the numbers that bf16 has here. All three weights are {START:g}."
    (_, before, _), (master, weight, alone) = values[number - 1], values[number]
    moved = "the bf16 weight moves to the nearest number that it has" if weight != before else "the nearest number of bf16 is still the same"
    return f"After {number} update{'s' * (number > 1)} the master is {master:.4f}, and {moved}. Without a master the weight is {alone:g}."
