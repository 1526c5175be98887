"""What the checks of chapter 03 compare with: maps and layouts done right and with known misunderstandings, and the
post with which ranks send each other parcels."""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from ....layout.balance import Balance
from ....comm.group import Comm
from ....layout.rankmap import MAPS, Layout
from ..verdict import Wrong

LAYOUT = "zerocourse.layout.rankmap:Layout"
REPLACED = ("zerocourse.layout.rankmap:*", "zerocourse.layout.balance:Balance.build",  # what an answer may not call
            *(f"{LAYOUT}.{method}" for method in ("build", "param_slice", "shard_ranges", "slice", "real")))

# The package's own, with the exercises' signatures ------------------------------------------------------------------

def own_imbalance(shapes, owner, world_size):
    return Balance.build(shapes, world_size, lambda shapes, world_size: owner).imbalance


def own_layout(shapes, world_size, owner):
    layout = Layout.build(shapes, world_size, owner)
    return dict(layout.offset), list(layout.bounds)


def own_ranges(shapes, offsets, bounds, rank):
    in_row = {name: shapes[name] for name in offsets}
    layout = Layout(in_row, offsets, tuple(bounds), sum(map(math.prod, shapes.values())))
    return [(part.name, part.start, part.stop, part.at) for part in layout.shard_ranges(layout.slice(rank))]


# Random questions ---------------------------------------------------------------------------------------------------

def some_shapes(random, most: int = 9) -> dict[str, tuple[int, ...]]:
    return {f"p{i}": tuple(random.randint(0, 6) for _ in range(random.randint(0, 3)))
            for i in range(random.randint(1, most))}


def some_owner(random, shapes, world_size) -> dict[str, int]:
    return {name: random.randrange(world_size) for name in shapes}


# Loads and maps -----------------------------------------------------------------------------------------------------

def loads(shapes, owner, world_size, size: Callable = math.prod) -> list[int]:
    """Elements a rank owns."""
    load = [0] * world_size
    for name, rank in owner.items():
        load[rank] += size(shapes[name])
    return load


def ratio(size: Callable = math.prod, rule: Callable | None = None):
    """An imbalance: by default the largest load over the mean load."""
    def imbalance(shapes, owner, world_size):
        load = loads(shapes, owner, world_size, size)
        if not sum(load):
            return 1.0
        return rule(load) if rule else max(load) * world_size / sum(load)
    return imbalance


def biggest_to_least(shapes, world_size, *, order: Callable | None = None, last: bool = False):
    """Greedy; `order(names, shapes)` in which tensors are dealt, `last`: ties go to the highest rank."""
    load, owner = [0] * world_size, {}
    names = order(list(shapes), shapes) if order else sorted(shapes, key=lambda name: -math.prod(shapes[name]))
    for name in names:
        least = [rank for rank in range(world_size) if load[rank] == min(load)]
        owner[name] = least[-1 if last else 0]
        load[owner[name]] += math.prod(shapes[name])
    return owner


def fewest_tensors(shapes, world_size):
    """Each to the rank that has the fewest tensors, of these to the one with the fewest elements."""
    load, owner = [(0, 0)] * world_size, {}
    for name in sorted(shapes, key=lambda name: -math.prod(shapes[name])):
        rank = owner[name] = load.index(min(load))
        load[rank] = load[rank][0] + 1, load[rank][1] + math.prod(shapes[name])
    return owner


def in_turn(shapes, world_size):
    """Sorted by size, then dealt in turn."""
    names = sorted(shapes, key=lambda name: -math.prod(shapes[name]))
    return {name: index % world_size for index, name in enumerate(names)}


def smallest_limit(shapes, world_size) -> int:
    """The least that the largest load of any division into runs of neighbours can be."""
    sizes = [math.prod(shape) for shape in shapes.values()]

    @functools.cache
    def best(first: int, ranks: int) -> int:
        if ranks == 1:
            return sum(sizes[first:])
        return min(max(sum(sizes[first:cut]), best(cut, ranks - 1)) for cut in range(first, len(sizes) + 1))

    return best(0, world_size)


def until_full(shapes, world_size, late: bool):
    """Runs that end at the mean: with the tensor that reaches it (late), or before the one that would pass it."""
    mean, rank, load, owner = sum(map(math.prod, shapes.values())) / world_size, 0, 0, {}
    for name, shape in shapes.items():
        size = math.prod(shape)
        full = load >= mean if late else load + size > mean
        if full and load and rank < world_size - 1:
            rank, load = rank + 1, 0
        owner[name], load = rank, load + size
    return owner


def rounded_up(shapes, world_size):
    """As many tensors for each rank; the last ones may have fewer."""
    each = -(-len(shapes) // world_size)
    return {name: index // each for index, name in enumerate(shapes)}


def longer_first(shapes, world_size):
    """As many tensors for each rank; what is left over goes to the first ones."""
    each, left = divmod(len(shapes), world_size)
    ranks = [rank for rank in range(world_size) for _ in range(each + (rank < left))]
    return dict(zip(shapes, ranks, strict=True))


def spread(shapes, world_size):
    """As many tensors for each rank; what is left over is spread over all."""
    return {name: index * world_size // len(shapes) for index, name in enumerate(shapes)}


def rest_last(shapes, world_size):
    """As many tensors for each rank; what is left over goes to the last."""
    each = max(1, len(shapes) // world_size)
    return {name: min(index // each, world_size - 1) for index, name in enumerate(shapes)}


EQUAL_COUNTS = (rounded_up, longer_first, spread, rest_last)


# A row and its cuts -------------------------------------------------------------------------------------------------

def row(shapes, world_size, owner, *, down=False, clipped=False, each=False, by_owner=True, sorts=True, gaps=True):
    """Offsets and bounds, right or with one misunderstanding."""
    sort = owner and by_owner and sorts
    names = sorted(shapes, key=owner.__getitem__) if sort else list(shapes)
    offsets, end = {}, 0
    for name in names:
        offsets[name] = end
        count = math.prod(shapes[name])
        end += -(-count // world_size) * world_size if each and not owner else count
    if owner and by_owner:
        load = loads(shapes, owner, world_size)
        bounds = [sum(load[:rank]) for rank in range(world_size + 1)]
        return offsets, bounds if gaps else [0, *(b for a, b in zip(bounds, bounds[1:], strict=False) if a < b)]
    size = end // world_size if down else -(-end // world_size)
    bounds = [rank * size for rank in range(world_size + 1)]
    if down:
        bounds[-1] = end
    return offsets, [min(bound, end) for bound in bounds] if clipped else bounds


def parts(shapes, offsets, bounds, rank, *, row_numbers=False, row_at=False, whole=False, inclusive=False, empty=False,
          touching=False, begins=False, order=None):
    """Shard ranges, right or with one misunderstanding."""
    first, last, found = bounds[rank], bounds[rank + 1], []
    for name in order or offsets:
        begin = offsets[name]
        end = begin + math.prod(shapes[name])
        start, stop = max(begin, first), min(end, last)
        if start >= stop and not (start == stop and (touching or empty and begin == end)):
            continue
        if whole and (start, stop) != (begin, end) or begins and not first <= begin < last:
            continue
        shift = 0 if row_numbers else begin
        found.append((name, start - shift, stop - shift - inclusive, start if row_at else start - first))
    return found


# Parcels ------------------------------------------------------------------------------------------------------------

# 31 elements: neither 2 nor 3 divides them.
SHAPES = {"a": (2, 3), "b": (5,), "c": (), "d": (4, 2), "e": (0, 3), "f": (3,), "g": (8,)}
MOVES = [("flat", "round_robin"), ("round_robin", "flat"), ("rank 0", "flat"), ("flat", "last rank"),
         ("greedy", "round_robin"), ("round_robin", "round_robin"), ("backwards", "contiguous"), ("flat", "flat"),
         ("round_robin", "last two swapped")]  # on three ranks the first is idle while the others trade


def owner_by(name: str, world_size: int) -> dict[str, int] | None:
    """The owners that a map of that name gives; None for flat."""
    if name == "flat":
        return None
    if name in MAPS:
        return dict(MAPS[name](SHAPES, world_size))
    if name == "backwards":
        return {key: world_size - 1 - index % world_size for index, key in enumerate(SHAPES)}
    if name == "last two swapped":
        swapped = [*range(world_size - 2), world_size - 1, world_size - 2]
        return {key: swapped[rank] for key, rank in MAPS["round_robin"](SHAPES, world_size).items()}
    return dict.fromkeys(SHAPES, 0 if name == "rank 0" else world_size - 1)


def coded_row(layout: Layout) -> Tensor:
    """A row in which every element of every parameter has a number of its own, from 1 on; padding is 0."""
    values, number = torch.zeros(layout.padded), 1
    for name, shape in SHAPES.items():
        count = math.prod(shape)
        values[layout.param_slice(name)] = torch.arange(number, number + count, dtype=torch.float32)
        number += count
    return values


def element_of(code: int) -> str:
    """ "b[3]", the element with that number."""
    number = 1
    for name, shape in SHAPES.items():
        if code < number + math.prod(shape):
            return f"{name}[{code - number}]"
        number += math.prod(shape)
    return f"the number {code}"


class Post:
    """The `exchange` that an answer gets: every rank gives a parcel for each rank, and gets one from each."""

    def __init__(self, comm: Comm):
        self.comm, self.sent, self.calls = comm, 0, 0

    def __call__(self, parcels: list[Tensor]) -> list[Tensor]:
        world, rank = self.comm.world_size, self.comm.rank
        if not isinstance(parcels, (list, tuple)) or len(parcels) != world:
            raise Wrong(f"`exchange` takes a list of {world} parcels, one for each rank, and it was given "
                        f"{len(parcels) if isinstance(parcels, (list, tuple)) else type(parcels).__name__}")
        for peer, parcel in enumerate(parcels):
            if not isinstance(parcel, Tensor) or parcel.dim() != 1:
                kind = f"of shape {tuple(parcel.shape)}" if isinstance(parcel, Tensor) else f"a {type(parcel).__name__}"
                raise Wrong(f"the parcel for rank {peer} is {kind}: a parcel is a tensor with one dimension, which may "
                            "have no elements")
        self.calls += 1
        self.sent += sum(parcel.numel() for peer, parcel in enumerate(parcels) if peer != rank)
        others = self._meet([parcel.tolist() for parcel in parcels])
        return [torch.tensor(other[rank], dtype=torch.float32) for other in others]

    def close(self) -> None:
        """This rank is done."""
        self._meet(None)

    def _meet(self, parcels: list | None) -> list:
        others = self.comm.all_gather_object(parcels)
        done = [rank for rank, other in enumerate(others) if other is None]
        if 0 < len(done) < len(others):
            waits = next(rank for rank, other in enumerate(others) if other is not None)
            raise Wrong(f"rank {done[0]} was done while rank {waits} was in `exchange`: every rank must call it, and "
                        "as often as the others, also a rank that has nothing to send or nothing to get. Is it behind "
                        "an `if`? With real collectives this waits for ever.")
        return others


def move(answer: Callable, moves: list[tuple[str, str]]) -> list[dict]:
    """On a rank of a world: what the answer makes of this rank's slice for each pair of maps, and what it sent."""
    comm, found = Comm(timeout=4.0), []
    rank, world = comm.rank, comm.world_size
    for before, after in moves:
        old = Layout.build(SHAPES, world, owner_by(before, world))
        own, post = coded_row(old)[old.slice(rank)].clone(), Post(comm)
        kept = own.clone()
        new = answer(own, dict(SHAPES), owner_by(before, world), owner_by(after, world), rank, world, post)
        post.close()
        found.append({"new": new, "sent": post.sent, "calls": post.calls, "same": bool(torch.equal(own, kept)),
                      "apart": not isinstance(new, Tensor) or not new.numel() or
                      new.untyped_storage()._cdata != own.untyped_storage()._cdata,
                      "held": new.untyped_storage().nbytes() if isinstance(new, Tensor) else 0})
    return found


def must_send(old: Layout, new: Layout, rank: int, world_size: int) -> dict[int, int]:
    """Elements that a rank has to send to each rank, itself included."""
    codes, to = coded_row(old)[old.slice(rank)].tolist(), {}
    target = coded_row(new)
    for other in range(world_size):
        there = set(target[new.slice(other)].tolist())
        to[other] = sum(code in there for code in codes if code)
    return to
