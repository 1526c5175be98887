"""Wrong answers of chapter 03, the same mistakes by another hand."""

import functools
import heapq
import itertools
import operator
import statistics
from collections import Counter, defaultdict
from math import prod

import torch
from wrong_answers import wrong


# 3.1 ----------------------------------------------------------------------------------------------------------------

@wrong("3.1", "You counted tensors")
def counter_of_owners(shapes, owner, world_size):
    count = Counter(owner[name] for name in shapes)
    mean = len(shapes) / world_size
    return max(count.values(), default=1) / mean if mean > 0 else 1.0


@wrong("3.1", "divided by the smallest load")
def most_over_least(shapes, owner, world_size):
    load = dict.fromkeys(range(world_size), 0)
    for name in owner:
        load[owner[name]] += prod(shapes[name])
    most, least = max(load.values()), min(load.values())
    if least == 0:
        return 1.0
    return most / least


@wrong("3.1", "added up the lengths")
def sum_of_the_shape(shapes, owner, world_size):
    load = torch.zeros(world_size, dtype=torch.float64)
    for name, shape in shapes.items():
        load[owner[name]] += sum(list(shape))
    return float(load.max() / load.mean()) if load.any() else 1.0


@wrong("3.1", "mean over the ranks that own something")
def mean_of_a_counter(shapes, owner, world_size):
    load = Counter()
    for name, shape in shapes.items():
        load.update({owner[name]: prod(shape)})
    busy = [elements for elements in load.values() if elements]
    return max(busy) / statistics.mean(busy) if busy else 1.0


@wrong("3.1", "ranks as the owners tell of")
def bincount(shapes, owner, world_size):
    ranks = torch.tensor([owner[name] for name in shapes])
    elements = torch.tensor([float(prod(shape)) for shape in shapes.values()])
    load = torch.bincount(ranks, weights=elements)
    return (load.max() / load.mean()).item() if load.sum() else 1.0


@wrong("3.1", "share of all")
def fraction(shapes, owner, world_size):
    every = sum(map(prod, shapes.values()))
    biggest = 0
    for rank in range(world_size):
        biggest = max(biggest, sum(prod(shape) for name, shape in shapes.items() if owner[name] == rank))
    return biggest / every if every else 1.0


@wrong("3.1", "shape () has one element")
def reduced(shapes, owner, world_size):
    def size(shape):
        return functools.reduce(operator.mul, shape) if len(shape) > 0 else 0

    load = [0 for _ in range(world_size)]
    for name, rank in owner.items():
        load[rank] = load[rank] + size(shapes[name])
    return 1.0 if not any(load) else max(load) * world_size / sum(load)


@wrong("3.1", "when nobody owns anything")
def not_a_number(shapes, owner, world_size):
    load = torch.zeros(world_size, dtype=torch.float64)
    for name, shape in shapes.items():
        load[owner[name]] += prod(shape)
    return (load.max() / load.mean()).item()


# 3.2 ----------------------------------------------------------------------------------------------------------------

@wrong("3.2", "You dealt the tensors in turn")
def modulo(shapes, world_size):
    return {name: i % world_size for i, name in enumerate(shapes)}


@wrong("3.2", "and then dealt in turn")
def cycle(shapes, world_size):
    by_size = sorted(shapes.items(), key=lambda item: prod(item[1]), reverse=True)
    ranks = itertools.cycle(range(world_size))
    return {name: next(ranks) for name, _ in by_size}


@wrong("3.2", "in the order of the model")
def heap_without_sorting(shapes, world_size):
    heap = [(0, rank) for rank in range(world_size)]
    owner = {}
    for name in shapes:
        load, rank = heapq.heappop(heap)
        owner[name] = rank
        heapq.heappush(heap, (load + prod(shapes[name]), rank))
    return owner


@wrong("3.2", "You took the smallest first")
def ascending(shapes, world_size):
    waiting = [(prod(shape), place, name) for place, (name, shape) in enumerate(shapes.items())]
    heapq.heapify(waiting)
    owner, load = {}, torch.zeros(world_size, dtype=torch.int64)
    while waiting:
        size, _, name = heapq.heappop(waiting)
        rank = int((load == load.min()).nonzero()[0])
        owner[name] = rank
        load[rank] += size
    return owner


@wrong("3.2", "fewest tensors")
def shortest_list(shapes, world_size):
    owner = {}
    for name in sorted(shapes, key=lambda name: -prod(shapes[name])):
        count, load = Counter(owner.values()), Counter()
        for other, rank in owner.items():
            load[rank] += prod(shapes[other])
        fewest = min(count[rank] for rank in range(world_size))
        candidates = [rank for rank in range(world_size) if count[rank] == fewest]
        owner[name] = min(candidates, key=lambda rank: load[rank])
    return owner


@wrong("3.2", "tensor goes to the lower rank")
def less_or_equal(shapes, world_size):
    load, owner = [0] * world_size, {}
    for name in sorted(shapes, key=lambda name: -prod(shapes[name])):
        best = 0
        for rank in range(1, world_size):
            if load[rank] <= load[best]:
                best = rank
        owner[name] = best
        load[best] += prod(shapes[name])
    return owner


@wrong("3.2", "yours goes by its name")
def reversed_pairs(shapes, world_size):
    load, owner = dict.fromkeys(range(world_size), 0), {}
    pairs = [(prod(shape), name) for name, shape in shapes.items()]
    pairs.sort(reverse=True)
    for size, name in pairs:
        rank = min(load, key=lambda rank: (load[rank], rank))
        owner[name], load[rank] = rank, load[rank] + size
    return owner


# 3.3 ----------------------------------------------------------------------------------------------------------------

@wrong("3.3", "as many tensors as the others")
def chunks_of_names(shapes, world_size):
    names, owner = list(shapes), {}
    each, left = divmod(len(names), world_size)
    for rank in range(world_size):
        for _ in range(each + (rank < left)):
            owner[names.pop(0)] = rank
    return owner


@wrong("3.3", "as soon as it reached the mean")
def until_the_mean(shapes, world_size):
    mean = sum(prod(shape) for shape in shapes.values()) / world_size
    names, owner = list(shapes), {}
    for rank in range(world_size):
        load = 0
        while names and (load < mean or rank == world_size - 1):
            name = names.pop(0)
            owner[name] = rank
            load += prod(shapes[name])
    return owner


@wrong("3.3", "the mean is only the least that it can be")
def not_above_the_mean(shapes, world_size):
    mean = sum(map(prod, shapes.values())) / world_size
    runs = [[]]
    for name in shapes:
        load = sum(prod(shapes[other]) for other in runs[-1])
        if runs[-1] and load + prod(shapes[name]) > mean and len(runs) < world_size:
            runs.append([])
        runs[-1].append(name)
    return {name: rank for rank, run in enumerate(runs) for name in run}


@wrong("3.3", "these are no runs")
def heap_of_ranks(shapes, world_size):
    heap, owner = [(0, rank) for rank in range(world_size)], {}
    for name, shape in sorted(shapes.items(), key=lambda item: prod(item[1]), reverse=True):
        load, owner[name] = heap[0]
        heapq.heapreplace(heap, (load + prod(shape), owner[name]))
    return owner


@wrong("3.3", "where a tensor's middle passes")
def nearest_cuts(shapes, world_size):
    ends = [0, *itertools.accumulate(map(prod, shapes.values()))]
    cuts = [min(range(len(ends)), key=lambda i: abs(ends[i] - ends[-1] * rank / world_size))
            for rank in range(1, world_size)]
    return {name: sum(cut <= i for cut in cuts) for i, name in enumerate(shapes)}


@wrong("3.3", "it gives a tensor to rank")
def searched_with_one_more(shapes, world_size):
    sizes = {name: prod(shape) for name, shape in shapes.items()}

    def owners(limit):
        result, rank, room = {}, 0, limit
        for name, size in sizes.items():
            if size > room:
                rank += 1
                room = limit
            room -= size
            result[name] = rank
        return result

    limit = max(sizes.values())
    while max(owners(limit).values()) > world_size:
        limit += 1
    return owners(limit)


@wrong("3.3", "it did not end within")
def all_combinations(shapes, world_size):
    ends = [0, *itertools.accumulate(prod(shape) for shape in shapes.values())]
    best, best_cuts = float("inf"), ()
    for cuts in itertools.combinations_with_replacement(range(len(ends)), world_size - 1):
        edges = (0, *cuts, len(ends) - 1)
        largest = max(ends[b] - ends[a] for a, b in itertools.pairwise(edges))
        if largest < best:
            best, best_cuts = largest, cuts
    return {name: sum(cut <= i for cut in best_cuts) for i, name in enumerate(shapes)}


# 3.4 ----------------------------------------------------------------------------------------------------------------

def _begin(shapes, names):
    ends = itertools.accumulate((prod(shapes[name]) for name in names), initial=0)
    return dict(zip(names, ends, strict=False))


def _owned(shapes, world_size, owner):
    """The right one for owners."""
    names = [name for rank in range(world_size) for name in shapes if owner[name] == rank]
    bounds = [sum(prod(shapes[name]) for name in names if owner[name] < rank) for rank in range(world_size + 1)]
    return _begin(shapes, names), bounds


def _equal(shapes, world_size):
    """The right one for flat slices."""
    total = sum(map(prod, shapes.values()))
    while total % world_size:
        total += 1
    return _begin(shapes, list(shapes)), [total * rank // world_size for rank in range(world_size + 1)]


@wrong("3.4", "let the last rank have the rest")
def last_takes_more(shapes, world_size, owner):
    if owner is not None:
        return _owned(shapes, world_size, owner)
    total = sum(map(prod, shapes.values()))
    bounds = [rank * (total // world_size) for rank in range(world_size + 1)]
    bounds[-1] = total
    return _begin(shapes, list(shapes)), bounds


@wrong("3.4", "belong to nobody")
def integer_division(shapes, world_size, owner):
    if owner is not None:
        return _owned(shapes, world_size, owner)
    size = int(sum(map(prod, shapes.values())) / world_size)
    bounds = [0]
    while len(bounds) <= world_size:
        bounds.append(bounds[-1] + size)
    return _begin(shapes, list(shapes)), bounds


@wrong("3.4", "stopped at the last parameter")
def split_without_padding(shapes, world_size, owner):
    if owner is not None:
        return _owned(shapes, world_size, owner)
    offsets, bounds = _equal(shapes, world_size)
    total = sum(map(prod, shapes.values()))
    return offsets, [total if bound > total else bound for bound in bounds]


@wrong("3.4", "padded every parameter")
def each_to_a_multiple(shapes, world_size, owner):
    if owner is not None:
        return _owned(shapes, world_size, owner)
    sizes = {name: prod(shape) + -prod(shape) % world_size for name, shape in shapes.items()}
    ends = list(itertools.accumulate(sizes.values(), initial=0))
    return dict(zip(sizes, ends, strict=False)), [ends[-1] * rank // world_size for rank in range(world_size + 1)]


@wrong("3.4", "You left out the owners")
def always_flat(shapes, world_size, owner):
    return _equal(shapes, world_size)


@wrong("3.4", "kept the model's order")
def right_bounds_only(shapes, world_size, owner):
    if owner is None:
        return _equal(shapes, world_size)
    load, bounds = Counter({rank: 0 for rank in range(world_size)}), [0]
    offsets, end = {}, 0
    for name, shape in shapes.items():
        offsets[name] = end
        end += prod(shape)
        load[owner[name]] += prod(shape)
    for rank in range(world_size):
        bounds.append(bounds[-1] + load[rank])
    return offsets, bounds


@wrong("3.4", "left out the ranks that own nothing")
def grouped(shapes, world_size, owner):
    if owner is None:
        return _equal(shapes, world_size)
    names = sorted(shapes, key=lambda name: owner[name])
    bounds, end, offsets = [0], 0, {}
    for _, group in itertools.groupby(names, key=lambda name: owner[name]):
        for name in group:
            offsets[name] = end
            end += prod(shapes[name])
        bounds.append(end)
    return offsets, bounds


@wrong("3.4", "its bound is not 0")
def ends_by_rank(shapes, world_size, owner):
    if owner is None:
        return _equal(shapes, world_size)
    end, offsets, ends = 0, {}, {}
    for name in sorted(shapes, key=owner.__getitem__):
        offsets[name] = end
        end += prod(shapes[name])
        ends[owner[name]] = end
    return offsets, [0] + [ends.get(rank, 0) for rank in range(world_size)]


@wrong("3.4", "stay in the order of the model")
def key_with_the_name(shapes, world_size, owner):
    if owner is None:
        return _equal(shapes, world_size)
    names = sorted(shapes, key=lambda name: (owner[name], name))
    return _begin(shapes, names), _owned(shapes, world_size, owner)[1]


# 3.5 ----------------------------------------------------------------------------------------------------------------

@wrong("3.5", "that a cut goes through")
def only_complete_ones(shapes, offsets, bounds, rank):
    slice_ = range(bounds[rank], bounds[rank + 1])
    result = []
    for name in offsets:
        size = prod(shapes[name])
        if size == 0:
            continue
        if offsets[name] in slice_ and offsets[name] + size - 1 in slice_:
            result.append((name, 0, size, slice_.index(offsets[name])))
    return result


@wrong("3.5", "that began in an earlier slice")
def from_the_beginning(shapes, offsets, bounds, rank):
    low, high = bounds[rank], bounds[rank + 1]
    result = []
    for name, offset in offsets.items():
        if offset < low or offset >= high or not prod(shapes[name]):
            continue
        stop = prod(shapes[name]) if offset + prod(shapes[name]) < high else high - offset
        result.append((name, 0, stop, offset - low))
    return result


def _elements(shapes, offsets, bounds, rank):
    """Element by element: for each name its numbers and its places in the slice."""
    row = {}
    for name, offset in offsets.items():
        for number in range(prod(shapes[name])):
            row[offset + number] = name, number
    found = defaultdict(list)
    for at, place in enumerate(range(bounds[rank], bounds[rank + 1])):
        if place in row:
            name, number = row[place]
            found[name].append((number, at, place))
    return found


@wrong("3.5", "start and stop count from")
def places_in_the_row(shapes, offsets, bounds, rank):
    found = _elements(shapes, offsets, bounds, rank)
    return [(name, hits[0][2], hits[-1][2] + 1, hits[0][1]) for name, hits in found.items()]


@wrong("3.5", "`at` counts from the beginning of the slice")
def at_is_the_place(shapes, offsets, bounds, rank):
    found = _elements(shapes, offsets, bounds, rank)
    return [(name, hits[0][0], hits[-1][0] + 1, hits[0][2]) for name, hits in found.items()]


@wrong("3.5", "no longer in the range")
def first_and_last(shapes, offsets, bounds, rank):
    result = []
    for name, hits in _elements(shapes, offsets, bounds, rank).items():
        numbers = [number for number, _, _ in hits]
        result.append((name, min(numbers), max(numbers), hits[0][1]))
    return result


@wrong("3.5", "beyond both ends")
def three_cases(shapes, offsets, bounds, rank):
    low, high = bounds[rank], bounds[rank + 1]
    result = []
    for name, begin in offsets.items():
        size = prod(shapes[name])
        end = begin + size
        if size == 0:
            continue
        if low <= begin and end <= high:
            result.append((name, 0, size, begin - low))
        elif begin < low < end <= high:
            result.append((name, low - begin, size, 0))
        elif low <= begin < high < end:
            result.append((name, 0, high - begin, begin - low))
    return result


@wrong("3.5", "order in which they lie")
def alphabetical(shapes, offsets, bounds, rank):
    result = []
    for name, shape in shapes.items():
        overlap = range(max(offsets[name], bounds[rank]), min(offsets[name] + prod(shape), bounds[rank + 1]))
        if overlap:
            result.append((name, overlap.start - offsets[name], overlap.stop - offsets[name],
                           overlap.start - bounds[rank]))
    return result


@wrong("3.5", "without elements has no range")
def beginning_in_the_slice(shapes, offsets, bounds, rank):
    low, high = bounds[rank], bounds[rank + 1]
    result = []
    for name, begin in offsets.items():
        end = begin + prod(shapes[name])
        if low <= begin < high or begin < low < end:
            result.append((name, max(low - begin, 0), min(high, end) - begin, max(begin - low, 0)))
    return result


@wrong("3.5", "only touches the slice")
def not_disjoint(shapes, offsets, bounds, rank):
    low, high = bounds[rank], bounds[rank + 1]
    result = []
    for name, begin in offsets.items():
        end = begin + prod(shapes[name])
        if end < low or begin > high:
            continue
        result.append((name, max(low, begin) - begin, min(high, end) - begin, max(low, begin) - low))
    return result


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
    """Which elements of a slice go to a new slice."""
    return torch.isin(source, target) & (source >= 0)


def _put(new, target, numbers, values):
    for number, value in zip(numbers.tolist(), values.tolist(), strict=True):
        new[target == number] = value


@wrong("3.6", "every rank must call it")
def leaves_early(own, shapes, before, after, rank, world_size, exchange):
    old, new = _numbers(shapes, world_size, before), _numbers(shapes, world_size, after)
    result = torch.zeros(len(new[rank]))
    stays = _goes(old[rank], new[rank])
    _put(result, new[rank], old[rank][stays], own[stays])
    if stays.sum() == (old[rank] >= 0).sum() and stays.sum() == (new[rank] >= 0).sum():
        return result
    arrived = exchange([own[_goes(old[rank], new[r])] if r != rank else own.new_empty(0) for r in range(world_size)])
    for r in range(world_size):
        if r != rank:
            _put(result, new[rank], old[r][_goes(old[r], new[rank])], arrived[r])
    return result


@wrong("3.6", "whole slice to everybody")
def to_all_but_oneself(own, shapes, before, after, rank, world_size, exchange):
    old, new = _numbers(shapes, world_size, before), _numbers(shapes, world_size, after)
    parcels = [own.clone() if r != rank else torch.empty(0) for r in range(world_size)]
    arrived = exchange(parcels)
    arrived[rank] = own
    everything = torch.zeros(sum(map(prod, shapes.values())))
    for r in range(world_size):
        real = old[r] >= 0
        everything[old[r][real]] = arrived[r][real]
    return torch.where(new[rank] >= 0, everything[new[rank]], 0.0)


@wrong("3.6", "What stays on the rank was forgotten")
def from_others_only(own, shapes, before, after, rank, world_size, exchange):
    old, new = _numbers(shapes, world_size, before), _numbers(shapes, world_size, after)
    parcels = []
    for target in range(world_size):
        parcels.append(own[:0] if target == rank else own[_goes(old[rank], new[target])])
    result = torch.zeros(len(new[rank]))
    for source, values in enumerate(exchange(parcels)):
        if source != rank:
            _put(result, new[rank], old[source][_goes(old[source], new[rank])], values)
    return result


@wrong("3.6", "sent was not put in")
def result_dropped(own, shapes, before, after, rank, world_size, exchange):
    old, new = _numbers(shapes, world_size, before), _numbers(shapes, world_size, after)
    exchange([own[_goes(old[rank], new[r]) & (r != rank)] for r in range(world_size)])
    result = torch.zeros(len(new[rank]))
    stays = _goes(old[rank], new[rank])
    _put(result, new[rank], old[rank][stays], own[stays])
    return result


@wrong("3.6", "in another order")
def as_they_come(own, shapes, before, after, rank, world_size, exchange):
    old, new = _numbers(shapes, world_size, before), _numbers(shapes, world_size, after)
    arrived = exchange([own[_goes(old[rank], new[r]) & (r != rank)] for r in range(world_size)])
    result, at = torch.zeros(len(new[rank])), 0
    for r, values in enumerate(arrived):
        if r == rank:
            values = own[_goes(old[rank], new[rank])]
        for value in values:
            result[at] = value
            at += 1
    return result


@wrong("3.6", "You sent padding")
def the_rest_of_the_slice(own, shapes, before, after, rank, world_size, exchange):
    old, new = _numbers(shapes, world_size, before), _numbers(shapes, world_size, after)
    last = sum(map(prod, shapes.values())) - 1

    def goes(source, target):
        with_last = bool((new[target] == last).any())
        return torch.isin(old[source], new[target]) & (old[source] >= 0) | (old[source] < 0) & with_last

    arrived = exchange([own[goes(rank, r)] if r != rank else own[:0] for r in range(world_size)])
    result = torch.zeros(len(new[rank]))
    for r in range(world_size):
        numbers, values = old[r][goes(r, rank)], own[goes(r, rank)] if r == rank else arrived[r]
        _put(result, new[rank], numbers[numbers >= 0], values[numbers >= 0])
    return result


@wrong("3.6", "The padding is missing")
def as_long_as_its_elements(own, shapes, before, after, rank, world_size, exchange):
    old, new = _numbers(shapes, world_size, before), _numbers(shapes, world_size, after)
    arrived = exchange([own[_goes(old[rank], new[r]) & (r != rank)] for r in range(world_size)])
    known = {}
    for r in range(world_size):
        goes = _goes(old[r], new[rank])
        values = own[goes] if r == rank else arrived[r]
        known |= dict(zip(old[r][goes].tolist(), values, strict=True))
    wanted = [known[number] for number in new[rank].tolist() if number in known]
    return torch.stack(wanted) if wanted else torch.zeros(0)


@wrong("3.6", "size of the old slice")
def zeros_like_the_old(own, shapes, before, after, rank, world_size, exchange):
    old, new = _numbers(shapes, world_size, before), _numbers(shapes, world_size, after)
    arrived = exchange([own[_goes(old[rank], new[r]) & (r != rank)] for r in range(world_size)])
    arrived[rank] = own[_goes(old[rank], new[rank])]
    result = torch.zeros_like(own)
    for r, values in enumerate(arrived):
        for number, value in zip(old[r][_goes(old[r], new[rank])].tolist(), values, strict=True):
            at = int((new[rank] == number).nonzero())
            if at < len(result):
                result[at] = value
    return result
