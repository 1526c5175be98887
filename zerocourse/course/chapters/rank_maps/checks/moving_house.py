"""The check of exercise 3.6: a model moves from one rank map to another, on real ranks."""

import math
import operator

import torch

from .....comm.group import Comm
from .....layout.rankmap import MAPS, Layout
from ....checks import MISUSED, STUCK, Trial, When, Wrong, exercise
from ....checks.words import a
from .row_slices import REPLACED

# 31 elements: neither 2 nor 3 divides them.
SHAPES = {"a": (2, 3), "b": (5,), "c": (), "d": (4, 2), "e": (0, 3), "f": (3,), "g": (8,)}
MOVES = [("flat", "round_robin"), ("round_robin", "flat"), ("rank 0", "flat"), ("flat", "last rank"),
         ("greedy", "round_robin"), ("round_robin", "round_robin"), ("backwards", "contiguous"), ("flat", "flat"),
         ("round_robin", "last two swapped"),  # on three ranks the first is idle while the others trade
         ("rank 0", "last rank")]  # on three ranks the second has nothing, before and after


def owner_by(name, world_size):
    """The owners that a map of that name gives; None for flat."""
    last, in_turn = world_size - 1, MAPS["round_robin"](SHAPES, world_size)
    swapped = {last: last - 1, last - 1: last}
    return None if name == "flat" else dict(MAPS[name](SHAPES, world_size)) if name in MAPS else {
        "backwards": {key: last - rank for key, rank in in_turn.items()},
        "last two swapped": {key: swapped.get(rank, rank) for key, rank in in_turn.items()},
        "rank 0": dict.fromkeys(SHAPES, 0), "last rank": dict.fromkeys(SHAPES, last)}[name]


def slices(shapes, world_size, owner):
    """The elements in each rank's slice, by name, such as "b[3]"; padding is "0"."""
    layout = Layout.build(shapes, world_size, owner)
    row = ["0"] * layout.padded
    for name, shape in shapes.items():
        row[layout.param_slice(name)] = [f"{name}[{number}]" for number in range(math.prod(shape))]
    return [row[layout.slice(rank)] for rank in range(world_size)]


NAMES = dict(enumerate(["0", *slices(SHAPES, 1, None)[0]]))  # an element's value is its number; padding is 0
VALUES = {name: float(value) for value, name in NAMES.items()}


class Post:
    """The `exchange` that an answer gets: every rank gives a parcel for each rank, and gets one from each."""

    def __init__(self, comm: Comm):
        self.comm, self.sent = comm, 0

    def __call__(self, parcels: list[torch.Tensor]) -> list[torch.Tensor]:
        world, rank = self.comm.world_size, self.comm.rank
        if not isinstance(parcels, (list, tuple)) or len(parcels) != world:
            came = len(parcels) if isinstance(parcels, (list, tuple)) else a(parcels)
            raise Wrong(f"`exchange` takes a list of {world} parcels, one for each rank, and it was given {came}",
                        MISUSED)
        for peer, parcel in enumerate(parcels):
            if not isinstance(parcel, torch.Tensor) or parcel.dim() != 1:
                kind = f"of shape {tuple(parcel.shape)}" if isinstance(parcel, torch.Tensor) else a(parcel)
                raise Wrong(f"the parcel for rank {peer} is {kind}: a parcel is a tensor with one dimension, which may "
                            "have no elements", MISUSED)
        self.sent += sum(parcel.numel() for peer, parcel in enumerate(parcels) if peer != rank)
        others = self._meet([parcel.tolist() for parcel in parcels])
        return [torch.tensor(other[rank], dtype=torch.float32) for other in others]

    def close(self) -> None:
        """This rank is done."""
        self._meet(None)

    def _meet(self, parcels: list | None) -> list:
        others = self.comm.all_gather_object(parcels)
        if None in others and any(others):
            waits = next(rank for rank, other in enumerate(others) if other is not None)
            raise Wrong(f"rank {others.index(None)} was done while rank {waits} was in `exchange`", STUCK)
        return others


def moved(answer, before, after):
    """This rank's slice under the new map, and what it sent."""
    comm = Comm(timeout=1.5)
    rank, world = comm.rank, comm.world_size
    owners, post = [owner_by(name, world) for name in (before, after)], Post(comm)
    own = torch.tensor([VALUES[name] for name in slices(SHAPES, world, owners[0])[rank]])
    given = own.clone()
    new = answer(own, dict(SHAPES), *owners, rank, world, post)
    post.close()
    if not isinstance(new, torch.Tensor) or new.dim() != 1:
        return {"kind": f"a tensor of shape {tuple(new.shape)}" if isinstance(new, torch.Tensor) else a(new)}
    return {"kind": f"{new.dtype} of shape ({len(new)},)", "slice": [NAMES.get(value, value) for value in new.tolist()],
            "changed": not torch.equal(own, given),
            "shared": len(new) > 0 and new.untyped_storage()._cdata == own.untyped_storage()._cdata,
            "beyond": new.untyped_storage().nbytes() - new.nbytes, "sent": post.sent}


@exercise(
    "3.6", "Moving house", minutes=60, difficulty=3, replaces=REPLACED, timeout=15,
    trials=[Trial(MOVES, moved, worlds=(2, 3))],
    mistakes={
        "old length": {"shape": lambda new, old, row: torch.zeros(len(old))},
        "whole row": {"shape": lambda new, old, row: torch.zeros(row)},
        "no padding": {"shape": lambda new, old, row: new[:sum(value > 0 for value in new.tolist())]},
        "kept forgotten": {"stays": False},
        "sent dropped": {"comes": False},
        "one after the other": {"place": lambda wanted, come: [*come, *["0"] * (len(wanted) - len(come))]},
        "padding not 0": ({"fill": -1.0}, When("slice", lambda got, want: all(
            value == right for value, right in zip(got, want, strict=True) if right != "0"))),
        "old slice changed": ({"writes": True}, When("changed")),
        "old memory": ({"shape": lambda new, old, row: old if torch.equal(new, old) else new}, When("shared")),
        "view": ({"shape": lambda new, old, row: torch.cat([new, new])[:len(new)]}, When("beyond", operator.gt)),
        "to everybody": ({"sends": lambda name, wanted, home: True}, {"sends": lambda name, wanted, home: name != "0"}),
        "padding": {"sends": lambda name, wanted, home: name in wanted and not home or name == "0"},
        "sizes": {"sizes": True},
        "too much": ({"sends": lambda name, wanted, home: name[0] in map(min, wanted) and not home},
                     When("sent", operator.gt)),
        "stuck": ({"silent": lambda had, leaving, wanted: not leaving},
                  {"silent": lambda had, leaving, wanted: not wanted},
                  {"silent": lambda had, leaving, wanted: not had},
                  {"silent": lambda had, leaving, wanted: not had and not wanted}),
    })
def move(own, shapes, before, after, rank, world_size, exchange, *, sends=lambda name, wanted, home: name in wanted and
         name != "0" and not home, stays=True, comes=True, fill=0.0, sizes=False,
         silent=lambda had, leaving, wanted: False, place=lambda wanted, come: wanted, shape=lambda new, old, row: new,
         writes=False):
    """This rank's slice under the new map.
    sends: does an element go to a rank that will own `wanted`? `home`: when that is the rank itself.   place: the
    elements in the order of the new slice; `come`: those that are there, rank by rank.   shape: the last touch to the
    new slice; `row`: the elements in the whole row.   silent: does a rank that had so many elements, of which so many
    leave, and wants so many, stay out of the exchange?"""
    old, new = slices(shapes, world_size, before), slices(shapes, world_size, after)
    mine = dict(zip(old[rank], own.tolist(), strict=True))

    def goes(source, target):
        return [name for name in old[source] if sends(name, new[target], source == target)]

    if sizes:
        exchange([torch.ones(1)] * world_size)
    parcels = [torch.tensor([mine[name] for name in goes(rank, peer)]) for peer in range(world_size)]
    stays_out = silent(len(own), sum(map(len, parcels)), len(new[rank]))
    arrived = [own[:0]] * world_size if stays_out else exchange(parcels)
    there = {}
    for source, parcel in enumerate(arrived):
        if source == rank:
            there |= {name: mine[name] for name in old[rank] if stays and name in new[rank]}
        elif comes:
            there |= dict(zip(goes(source, rank), parcel.tolist(), strict=not stays_out))
    there.pop("0", None)
    result = torch.tensor([there.get(name, 0.0 if name != "0" else fill) for name in place(new[rank], list(there))])
    if writes:
        own.zero_()
    return shape(result, own, sum(map(len, new)))
