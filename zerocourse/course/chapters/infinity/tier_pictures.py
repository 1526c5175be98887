"""What moves between tiers: blocks through the host's buffers, layers up the links of ranks, a layer tile by tile.

Drawn from events that were recorded, from the shares of a rank map, and from the order in which tiles computed.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ....offload import TiledLinear
from ...show import Shown
from ...show.film import Film, Frame
from ...show.palette import FAINT
from ...show.pictures import svg

DISK_Y, HOST_Y, BOX, GAP = 116.0, 6.0, 56.0, 14.0
MOVING = {"read": "is read", "step": "is updated", "write": "is written"}


def buffers_film(events: Sequence[Mapping], blocks: int, buffers: int) -> Film:
    """Blocks on their way from the disk through the host's buffers and back, at the middle of each update.

    events: "verb" (read, step or write), "unit" (such as "blocks.7"), "start", "end", in seconds, in the order in which they began.
    """
    times = {verb: [(each["start"], each["end"]) for each in events if each["verb"] == verb] for verb in MOVING}
    names = [each["unit"].rpartition(".")[2] for each in events if each["verb"] == "step"]
    frames = []
    for name, (start, end) in zip(names, times["step"], strict=True):
        moment = (start + end) / 2
        states = [state_of(block, moment, times) for block in range(blocks)]
        held = [block for block, state in enumerate(states) if state not in ("old", "new")]
        said = "; ".join(f"block {names[block]} {MOVING.get(states[block], 'waits')}" for block in held)
        frames.append(Frame(buffers_frame(states, names, buffers), f"{said}. {len(held)} of {buffers} buffers are in use.",
                            f"The update of block {name}"))
    words = f"{blocks} blocks pass through {buffers} staging buffers of the host: each is read from the disk, updated, and written back."
    return Film("Through the staging buffers", frames, words, 1.6)


def state_of(block: int, moment: float, times: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Of a block: old and new lie on the disk alone; wait is in a buffer; the others are the verbs."""
    if moment < times["read"][block][0]:
        return "old"
    for verb in MOVING:
        start, end = times[verb][block]
        if start <= moment <= end:
            return verb
    return "new" if moment > times["write"][block][1] else "wait"


def buffers_frame(states: Sequence[str], names: Sequence[str], buffers: int) -> svg.Drawing:
    drawing = svg.Drawing(svg.WIDTH, DISK_Y + BOX + 30)
    drawing.text((BOX + GAP) * buffers, HOST_Y + BOX / 2 + 5, "host", bold=True)
    drawing.text((BOX + GAP) * len(states), DISK_Y + BOX / 2 + 5, "disk", bold=True)
    for slot in range(buffers):
        drawing.rect((BOX + GAP) * slot, HOST_Y, BOX, BOX, fill="white", dashed=True)
    for block, state in enumerate(states):
        x = (BOX + GAP) * block
        drawing.rect(x, DISK_Y, BOX, BOX, "optimizer" if state == "new" else "padding" if state == "old" else None,
                     names[block], fill="white", dashed=state not in ("old", "new"), data={"block": block, "state": state})
        if state in ("old", "new"):
            continue
        slot = (BOX + GAP) * (block % buffers)
        drawing.rect(slot, HOST_Y, BOX, BOX, "optimizer" if state == "step" else "in flight" if state in MOVING else "padding", names[block])
        if state in ("read", "write"):
            ends = (x + BOX / 2, DISK_Y - 4), (slot + BOX / 2, HOST_Y + BOX + 4)
            start, stop = ends if state == "read" else ends[::-1]
            drawing.arrow(*start, *stop)
    drawing.text(0, DISK_Y + BOX + 20, "grey: old states, or waiting; striped: moving; green: being updated, or new", size=13, color=FAINT)
    return drawing


def links_picture(ways: Mapping[str, Sequence[Mapping[int, int]]], ranks: int) -> Shown:
    """Which links carry a layer, and how long. ways: name → for each layer in order: rank → bytes up its link."""
    unit = max(max(layer.values()) for layers in ways.values() for layer in layers)
    longest = max(sum(max(layer.values()) for layer in layers) for layers in ways.values())
    left, row, said = 84.0, 22.0, []
    scale = (svg.WIDTH - left) / longest
    drawing = svg.Drawing(svg.WIDTH, len(ways) * (row * ranks + 52) + 10)
    for panel, (name, layers) in enumerate(ways.items()):
        top, x = panel * (row * ranks + 52) + 26, left
        drawing.text(0, top - 9, name, bold=True)
        for rank in range(ranks):
            drawing.text(0, top + row * rank + 15, f"link {rank}", size=13)
            drawing.line(left, top + row * (rank + 1), svg.WIDTH, top + row * (rank + 1), color=FAINT)
        for number, layer in enumerate(layers):
            for rank, nbytes in layer.items():
                if nbytes:
                    drawing.rect(x, top + row * rank + 1, nbytes * scale, row - 2, "parameters", str(number), size=12,
                                 data={"layer": number, "rank": rank, "bytes": nbytes})
            x += max(layer.values()) * scale
        took = sum(max(layer.values()) for layer in layers) / unit
        said.append(f"{name}: {len(layers)} layers take {took:g} times as long as one whole layer over one link")
    drawing.text(svg.WIDTH, drawing.height - 6, "time, to the right; the numbers are those of the layers", size=13, color=FAINT, anchor="end")
    words = "Which link carries which layer, over time. " + "; ".join(said) + "."
    return Shown(words, svg=svg.still(drawing, "Which links work", words))


def tiles_film(inputs: int, outputs: int, tiles: int) -> Film:
    """A forward through a layer cut over its outputs: one tile at a time is gathered whole."""
    layer, order = TiledLinear.from_linear(nn.Linear(inputs, outputs, bias=False), out_splits=tiles), []
    for tile in layer.modules():
        if isinstance(tile, nn.Linear):
            tile.register_forward_hook(lambda module, inputs, output: order.append(module))
    with torch.no_grad():
        layer(torch.ones(1, inputs))
    high, wide = 200.0, 170.0
    frames = []
    for number, module in enumerate(order):
        drawing = svg.Drawing(svg.WIDTH, high + 50)
        drawing.text(0, 16, f"weight, {outputs:,} × {inputs:,}", size=13)
        each = high / len(order)
        for place in range(len(order)):
            here = place == number
            drawing.rect(0, 26 + place * each, wide, each, "parameters" if here else None, fill="white", dashed=not here, data={"tile": place})
        drawing.rect(wide + 60, 26 + number * each, 34, each, "activations")
        first, last = number * outputs // tiles, (number + 1) * outputs // tiles - 1
        drawing.text(wide + 104, 26 + (number + 0.5) * each + 5, f"outputs {first} to {last}", size=13)
        drawing.arrow(wide + 8, 26 + (number + 0.5) * each, wide + 54, 26 + (number + 0.5) * each)
        said = f"Its {module.weight.numel():,} elements are gathered, used and freed. Of all others a rank has its slice alone."
        frames.append(Frame(drawing, said, f"Tile {number}, of {tiles}"))
    words = f"A layer of {outputs * inputs:,} elements in {tiles} tiles over its outputs: {order[0].weight.numel():,} are gathered at a time."
    return Film("Tile by tile", frames, words, 1.6)
