"""A model on the meta device becomes real: unit after unit gets memory and values, and each rank keeps its slice of it.

    made = launch(watched_build, config, nproc=2)     # on each rank: shard a deferred model, with a ledger beside it
    becoming_real(made)                               # a film
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple
from unittest import mock

import torch
from torch import nn

from ....errors import BadInput
from ....formulas.units import gb
from ....init.deferred import deferred_init
from ....measure.ledger import Ledger
from ....models.gpt2 import GPTConfig, build_model
from ....zero import shard as sharding
from ....zero.buffers.buffer import FlatBuffer
from ...show.film import Film, Frame
from ...show.palette import FAINT, INK
from ...show.pictures import svg

SECONDS = 1.4  # per frame
LABELS, GAP, LANE, ROW, TOP = 64, 40, 20, 30, 66  # units: names at the left, between ranks, a bar, from bar to bar, the first bar
MOST_RANKS = 4
SAID = {"deferred": "The model has shapes, and no memory.", "empty": "{} gets memory: what is in it is left over.",
        "whole": "{} gets its values.", "slice": "Each rank keeps its slice of {}."}


class Moment(NamedTuple):
    """Just after something happened on a rank. what: "deferred", "empty" (a unit has memory, with whatever was in it), "whole"
    (it has values) or "slice" (of it this rank's slice is left).   alive: bytes on the rank, by the ledger."""

    what: str
    unit: str
    alive: int


class Made(NamedTuple):
    """What one rank saw. units: name → for each of its flat buffers, its bytes, and where this rank's slice begins and ends."""

    moments: list[Moment]
    units: dict[str, list[tuple[int, int, int]]]


def watched_build(config: GPTConfig, stage: int = 3, build: Callable[[GPTConfig], nn.Module] = build_model) -> Made:
    """On every rank: build the model of `config` without memory, shard it, and tell what was alive when. Collective."""
    units: dict[str, list[tuple[int, int, int]]] = {}
    with Ledger() as ledger:
        with deferred_init():
            model = build(config)
        moments = [Moment("deferred", "", ledger.alive)]
        make_full, build_flat, fill_unit = FlatBuffer.make_full, FlatBuffer.build, sharding.fill_unit

        def begun(flat: FlatBuffer, device: torch.device, is_trained: bool = True) -> dict[str, torch.Tensor]:
            places, unit = make_full(flat, device, is_trained), flat.name.partition("[")[0]
            if moments[-1][:2] == ("empty", unit):  # its buffer before this one
                moments.pop()
            moments.append(Moment("empty", unit, ledger.alive))
            return places

        def filled(flat: FlatBuffer, equalise: Callable) -> None:
            unit = flat.name.partition("[")[0]
            if moments[-1][:2] != ("whole", unit):  # all buffers of a unit are whole before the first of them is cut
                moments.append(Moment("whole", unit, ledger.alive))
            build_flat(flat, equalise)

        def unit_filled(unit, *args, **kwargs) -> None:
            fill_unit(unit, *args, **kwargs)
            sizes = [(flat.dtype.itemsize, flat) for flat in unit.flats]
            units[unit.name] = [(flat.layout.padded * each, flat.own.start * each, flat.own.stop * each) for each, flat in sizes]
            moments.append(Moment("slice", unit.name, ledger.alive))

        with mock.patch.multiple(FlatBuffer, make_full=begun, build=filled), mock.patch.object(sharding, "fill_unit", unit_filled):
            sharding.shard(model, None, stage)
    return Made(moments, units)


def becoming_real(made: Sequence[Made]) -> Film:
    """What `watched_build` returned on each rank, frame by frame. Raises BadInput for more than four ranks."""
    if not 1 <= len(made) <= MOST_RANKS:
        raise BadInput(f"made is of {len(made)} ranks: 1 to {MOST_RANKS} can be seen side by side")
    count = len(made[0].moments)
    whole = sum(map(size_of, made[0].units.values()))
    peak = max(moment.alive for moment in made[0].moments)
    title = "A deferred model becomes real, unit after unit"
    words = (f"{title}, on {len(made)} ranks. The parameters of the model are {gb(whole)}. Rank 0 begins with "
             f"{gb(made[0].moments[0].alive)} and ends with {gb(made[0].moments[-1].alive)}. At no time does it hold more "
             f"than {gb(peak)}: its slices so far, and the one unit that is being filled.")
    return Film(title, [Frame(frame(made, number, whole), SAID[moment.what].format(moment.unit))
                        for number, moment in enumerate(made[0].moments)],
                words, SECONDS, keys=sorted({0, 1, 2, 3, 2 + 3 * ((count - 1) // 6), count - 1}))


def size_of(buffers: Sequence[tuple[int, int, int]]) -> int:
    return sum(nbytes for nbytes, _, _ in buffers)


def frame(made: Sequence[Made], number: int, whole: int) -> svg.Drawing:
    units = made[0].units
    wide = (svg.WIDTH - LABELS - GAP * (len(made) - 1) - 2) / len(made)
    scale = wide / max(map(size_of, units.values()))
    drawing = svg.Drawing(svg.WIDTH, TOP + ROW * len(units) + 18)
    for rank, (moments, own) in enumerate(made):
        left, now, alive = LABELS + rank * (wide + GAP), moments[: number + 1], moments[number].alive
        drawing.text(left, 18, f"rank {rank}", size=14, bold=True)
        drawing.text(left + wide, 18, f"{gb(alive)} alive", size=14, anchor="end")
        drawing.rect(left, 26, wide, 12, stroke="#b4b4b4")  # as wide as the whole model
        drawing.rect(left, 26, wide * min(1, alive / whole), 12, fill=INK, stroke="none", data={"rank": rank, "alive": alive})
        for row, (name, buffers) in enumerate(own.items()):
            y, there, begin = TOP + ROW * row, [each.what for each in now if each.unit == name], left
            if rank == 0:
                drawing.text(0, y + 15, name, size=14)
            drawing.rect(left, y, size_of(buffers) * scale, LANE, stroke="#9a9a9a", dashed=True)
            for nbytes, start, stop in buffers:
                held = {"empty": (0, nbytes, None, "memory, no values"), "whole": (0, nbytes, "in flight", "whole"),
                        "slice": (start, stop, "parameters", "slice")}.get(there[-1] if there else "")
                if held and held[1] > held[0]:
                    width = (held[1] - held[0]) * scale
                    drawing.rect(begin + held[0] * scale, y, width, LANE, held[2],
                                 held[3] if width > svg.words_width(held[3], 12) + 6 else "", size=12,
                                 data={"rank": rank, "unit": name, "bytes": held[1] - held[0]})
                begin += nbytes * scale
    drawing.text(0, TOP - 8, "Black: the bytes alive; its frame is as long as the whole model would be.", size=12, color=FAINT)
    return drawing
