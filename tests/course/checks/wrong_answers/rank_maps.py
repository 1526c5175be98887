"""Wrong answers of chapter 03."""

import heapq
import math
from itertools import accumulate
from math import prod

import torch

from wrong_answers import wrong

# 3.1 ----------------------------------------------------------------------------------------------------------------

@wrong("3.1", "busy ranks")
def only_ranks_that_own(shapes, owner, world_size):
    load = {}
    for name, rank in owner.items():
        load[rank] = load.get(rank, 0) + prod(shapes[name])
    return max(load.values()) / (sum(load.values()) / len(load))


# 3.2 ----------------------------------------------------------------------------------------------------------------

@wrong("3.2", "tie by count")
def heap_with_a_counter(shapes, world_size):
    heap, owner = [(0, 0, rank) for rank in range(world_size)], {}
    for name in sorted(shapes, key=lambda name: -prod(shapes[name])):
        load, tensors, rank = heapq.heappop(heap)
        owner[name] = rank
        heapq.heappush(heap, (load + prod(shapes[name]), tensors + 1, rank))
    return owner


# 3.3 ----------------------------------------------------------------------------------------------------------------

@wrong("3.3", "hash")
def salted_by_python(shapes, world_size):
    return {name: abs(hash(f"{name}/{world_size}")) % world_size for name in shapes}


@wrong("3.3", "others")
def in_the_order_of_names(shapes, world_size):
    names = sorted(shapes)
    return {name: names.index(name) * world_size // len(names) for name in shapes}


# 3.4 ----------------------------------------------------------------------------------------------------------------

def _begin(shapes, names):
    return dict(zip(names, accumulate((prod(shapes[name]) for name in names), initial=0), strict=False))


@wrong("3.4", "one more")
def always_one_more(shapes, world_size, owner):
    if owner is None:
        size = sum(map(prod, shapes.values())) // world_size + 1
        return _begin(shapes, list(shapes)), [rank * size for rank in range(world_size + 1)]
    load = [sum(prod(shapes[name]) for name in shapes if owner[name] == rank) for rank in range(world_size)]
    return _begin(shapes, sorted(shapes, key=owner.get)), list(accumulate(load, initial=0))


# 3.5 ----------------------------------------------------------------------------------------------------------------

@wrong("3.5", "no middles")
def three_cases(shapes, offsets, bounds, rank):
    low, high, found = bounds[rank], bounds[rank + 1], []
    for name, begin in offsets.items():
        size = prod(shapes[name])
        end = begin + size
        if size and low <= begin and end <= high:
            found.append((name, 0, size, begin - low))
        elif begin < low < end <= high:
            found.append((name, low - begin, size, 0))
        elif low <= begin < high < end:
            found.append((name, 0, high - begin, begin - low))
    return found


# 3.6 ----------------------------------------------------------------------------------------------------------------

def _numbers(shapes, world_size, owner):
    """Each rank's slice as numbers of elements, counted through the model; -1 is padding."""
    total = sum(map(prod, shapes.values()))
    if owner is None:
        length = -(-total // world_size)
        row = torch.full((length * world_size,), -1)
        row[:total] = torch.arange(total)
        return list(row.view(world_size, length))
    ranks = torch.cat([torch.full((prod(shape),), owner[name]) for name, shape in shapes.items()])
    return [(ranks == rank).nonzero().flatten() for rank in range(world_size)]


def _goes(source, target):
    return torch.isin(source, target) & (source >= 0)


@wrong("3.6", "stuck")
def leaves_early(own, shapes, before, after, rank, world_size, exchange):
    old, new = _numbers(shapes, world_size, before), _numbers(shapes, world_size, after)
    if torch.equal(old[rank], new[rank]):
        return own.clone()
    parcels = [own[_goes(old[rank], new[peer])] for peer in range(world_size)]
    numbers = torch.cat([old[peer][_goes(old[peer], new[rank])] for peer in range(world_size)])
    values = torch.cat(exchange(parcels))
    return torch.stack([values[numbers == number].sum() for number in new[rank]]) if len(new[rank]) else torch.zeros(0)


@wrong("3.6", "one after the other")
def as_they_come(own, shapes, before, after, rank, world_size, exchange):
    old, new = _numbers(shapes, world_size, before), _numbers(shapes, world_size, after)
    arrived = torch.cat(exchange([own[_goes(old[rank], new[peer])] for peer in range(world_size)]))
    return torch.nn.functional.pad(arrived, (0, len(new[rank]) - len(arrived)))


# 03.w1 --------------------------------------------------------------------------------------------------------------

@wrong("03.w1", "start")
def where_it_starts(shapes, world_size):
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    total, before, owner = sum(sizes.values()), 0, {}
    for name, size in sizes.items():
        owner[name] = before * world_size // total
        before += size
    return owner


@wrong("03.w1", "by number")
def equally_many(shapes, world_size):
    names = list(shapes)
    return {name: place * world_size // len(names) for place, name in enumerate(names)}


@wrong("03.w1", "filled up")
def full_and_next(shapes, world_size):
    room = sum(math.prod(shape) for shape in shapes.values()) / world_size
    owner, rank, used = {}, 0, 0
    for name, shape in shapes.items():
        if used >= room and rank + 1 < world_size:
            rank, used = rank + 1, 0
        owner[name] = rank
        used += math.prod(shape)
    return owner


@wrong("03.w1", "list")
def owners_in_a_list(shapes, world_size):
    total, before, owner = sum(map(math.prod, shapes.values())), 0, []
    for shape in shapes.values():
        owner.append((2 * before + math.prod(shape)) * world_size // (2 * total))
        before += math.prod(shape)
    return owner


@wrong("03.w1", "raised")
def of_tensors(shapes, world_size):
    return {name: shape.numel() % world_size for name, shape in shapes.items()}


# 03.w2 --------------------------------------------------------------------------------------------------------------

@wrong("03.w2", "rounded down")
def floor_slices(numel, world_size, rank):
    size = numel // world_size
    return rank * size, rank * size + size, 0


@wrong("03.w2", "on the last")
def the_last_has_the_rest(numel, world_size, rank):
    size = math.ceil(numel / world_size)
    missing = size * world_size - numel if rank == world_size - 1 else 0
    return size * rank, size * (rank + 1) - missing, missing


@wrong("03.w2", "start behind the end")
def stop_alone_is_cut(numel, world_size, rank):
    size = (numel + world_size - 1) // world_size
    start, stop = size * rank, min(numel, size * (rank + 1))
    return start, stop, size - stop + start


@wrong("03.w2", "length")
def start_and_length(numel, world_size, rank):
    size = (numel + world_size - 1) // world_size
    start = min(numel, size * rank)
    real = min(numel, start + size) - start
    return start, real, size - real
