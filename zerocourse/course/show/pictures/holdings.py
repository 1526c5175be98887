"""Which rank holds which slice of what, stage by stage: Figure 1 of the ZeRO paper (arXiv 1910.02054), but of a model
that one has, to scale. The slices are those that `shard` would cut: the same units, buffers and layouts.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import nn

from ....errors import BadInput
from ....formulas.units import gb, integer
from ....layout.rankmap import Layout, RankMap, owners
from ....zero.buffers.gradients import HALF
from ....zero.buffers.unit import cut_into_units
from ....zero.ddp import DataParallel
from ....zero.stage1 import Stage1
from ....zero.stage2 import Stage2
from ....zero.stage3 import Stage3
from .. import Shown
from ..palette import FAINT
from . import svg
from .placing import GRADIENTS, OPTIMIZER, PARAMETERS, listed

STAGES: tuple[type[DataParallel], ...] = (DataParallel, Stage1, Stage2, Stage3)
NAMES = ("data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3")
MOST_RANKS = 8  # more columns than that are too narrow to be read
LABELS, GAP, LANE = 114, 12, 9  # units: names at the left, between ranks, height of four bytes per element
HEAD = 56


class ModelBuffer(NamedTuple):
    """One flat buffer of the model. itemsize: bytes of a parameter.   states, master: bytes per element of Adam's two averages,
    which padding does not have, and of master weights, which only parameters in half precision have."""

    unit: str
    layout: Layout
    itemsize: int
    states: int
    master: int
    trainable: bool


class HeldSlice(NamedTuple):
    """What a rank holds of a buffer as parameters, gradients or optimizer states: elements from start to stop of the model."""

    of: str
    unit: str
    start: int
    stop: int
    nbytes: int


def buffers_of(model: nn.Module, world_size: int, rank_map: str | RankMap | None = None) -> list[ModelBuffer]:
    """The flat buffers that `shard` makes of the model, one after the other; the model may be on the meta device."""
    shapes = {name: param.shape for name, param in model.named_parameters()}
    owner = owners(rank_map, shapes, world_size)
    found = []
    for unit in cut_into_units(model):
        for params in unit.buffers:
            dtype, trainable = next((param.dtype, param.requires_grad) for param in params.values())
            mine = owner and {name: owner[name] for name in params}
            layout = Layout.build({name: shapes[name] for name in params}, world_size, mine)
            states = (8, 4) if dtype in HALF else (2 * dtype.itemsize, 0)
            found.append(ModelBuffer(unit.name, layout, dtype.itemsize, *states, trainable))
    return found


def held_by(buffers: Sequence[ModelBuffer], stage: int, rank: int) -> list[HeldSlice]:
    """What a rank holds between two steps, with the gradients as they are just before the step."""
    kind, found, begin = STAGES[stage], [], 0
    for unit, layout, itemsize, states, master, trainable in buffers:
        whole, own = slice(0, layout.padded), layout.slice(rank)
        for of, sharded, each in ((PARAMETERS, kind.shards_parameters, itemsize),
                                  (GRADIENTS, kind.shards_gradients, itemsize * trainable),
                                  (OPTIMIZER, kind.shards_optimizer, master * trainable)):
            part = own if sharded else whole
            real = (layout.real(rank) if sharded else layout.numel) * trainable
            nbytes = (part.stop - part.start) * each + (real * states if of == OPTIMIZER else 0)
            if nbytes:
                found.append(HeldSlice(of, unit, begin + part.start, begin + part.stop, nbytes))
        begin += layout.padded
    return found


def holdings(model: nn.Module, world_size: int, stages: Sequence[int] = (0, 1, 2, 3),
             rank_map: str | RankMap | None = None) -> Shown:
    """Which slices of the model each rank holds under each stage, to scale: as wide as its elements, as high as its bytes.

    rank_map: as `shard` has it; None cuts each unit into equal slices.   Raises BadInput for more than 8 ranks, or an
    unknown stage.
    """
    integer(world_size, "world_size", 1, MOST_RANKS)
    if not stages or any(stage not in range(len(STAGES)) for stage in stages):
        raise BadInput(f"stages is {stages!r}: it must name some of 0, 1, 2 and 3")
    buffers = buffers_of(model, world_size, rank_map)
    held = {(stage, rank): held_by(buffers, stage, rank) for stage in stages for rank in range(world_size)}
    nbytes = {stage: [sum(part.nbytes for part in held[stage, rank]) for rank in range(world_size)] for stage in stages}
    params = sum(buffer.layout.numel for buffer in buffers)
    title = f"Who holds what: {params:,} parameters on {world_size} ranks"
    words = f"{title}. Bytes per rank: " + listed([f"{NAMES[stage]} {said(nbytes[stage])}" for stage in stages]) + "."
    return Shown(words, svg=svg.still(drawn(buffers, held, nbytes, stages, world_size), title, words))


def said(nbytes: Sequence[int]) -> str:
    return gb(nbytes[0]) if len(set(map(gb, nbytes))) == 1 else f"from {gb(min(nbytes))} to {gb(max(nbytes))}"


def drawn(buffers: Sequence[ModelBuffer], held: Mapping[tuple[int, int], list[HeldSlice]], nbytes: Mapping[int, list[int]],
          stages: Sequence[int], world_size: int) -> svg.Drawing:
    per_element = {PARAMETERS: max(buffer.itemsize for buffer in buffers), GRADIENTS: max(buffer.itemsize for buffer in buffers),
                   OPTIMIZER: max(buffer.states + buffer.master for buffer in buffers)}
    height = {of: LANE * each / 4 if each >= 4 else LANE / 2 for of, each in per_element.items()}
    wide = (svg.WIDTH - LABELS - GAP * (world_size - 1)) / world_size
    scale = wide / sum(buffer.layout.padded for buffer in buffers)
    cell = sum(height.values()) + 4
    row = cell + 34
    drawing = svg.Drawing(svg.WIDTH, HEAD + row * len(stages) + 48)
    for rank in range(world_size):
        drawing.text(LABELS + rank * (wide + GAP) + wide / 2, 16, f"rank {rank}", anchor="middle", bold=True)
        unit_names(drawing, buffers, LABELS + rank * (wide + GAP), scale)
    for place, stage in enumerate(stages):
        top = HEAD + row * place
        drawing.text(0, top + cell / 2 + 5, NAMES[stage], size=14, bold=True)
        for rank in range(world_size):
            left = LABELS + rank * (wide + GAP)
            lanes = dict(zip(height, (top, top + height[PARAMETERS] + 2, top + height[PARAMETERS] + height[GRADIENTS] + 4),
                             strict=True))
            for of, y in lanes.items():
                drawing.rect(left, y, wide, height[of], stroke="#b4b4b4", dashed=True)
            for part in held[stage, rank]:
                drawing.rect(left + part.start * scale, lanes[part.of], (part.stop - part.start) * scale, height[part.of],
                             part.of, stroke="none",
                             data={"stage": stage, "rank": rank, "of": part.of, "unit": part.unit, "bytes": part.nbytes})
            drawing.text(left + wide / 2, top + cell + 16, gb(nbytes[stage][rank]), size=14, anchor="middle")
    below = drawing.legend(LABELS, HEAD + row * len(stages) + 2, list(height))
    drawing.text(LABELS, below + 12, "As wide as the elements, as high as their bytes; dashed: not held.", size=13, color=FAINT)
    return drawing


def unit_names(drawing: svg.Drawing, buffers: Sequence[ModelBuffer], left: float, scale: float) -> None:
    """Above a column: where each unit begins, with its name where there is room."""
    at, room = left, left
    for buffer in buffers:
        drawing.line(at, HEAD - 12, at, HEAD - 5, color=FAINT)
        name, wide = buffer.unit, buffer.layout.padded * scale
        if at >= room and svg.words_width(name, 12) <= wide:
            drawing.text(at + 2, HEAD - 16, name, size=12, color=FAINT)
            room = at + svg.words_width(name, 12) + 4
        at += wide
    drawing.line(left, HEAD - 5, at, HEAD - 5, color=FAINT)
