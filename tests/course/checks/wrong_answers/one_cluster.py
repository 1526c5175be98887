"""Wrong answers of chapter 18."""

import itertools
import math
from fractions import Fraction

import torch

from wrong_answers import wrong


@wrong("18.1", "reversed")
def first_axis_counts_first(rank, axis, order, sizes):
    stride = 1
    for name in order:
        if name == axis:
            break
        stride *= sizes[name]
    mine = rank // stride % sizes[axis]
    return [rank + (at - mine) * stride for at in range(sizes[axis])]


@wrong("18.1", "neighbours")
def blocks_of_ranks(rank, axis, order, sizes):
    start = rank // sizes[axis] * sizes[axis]
    return list(range(start, start + sizes[axis]))


@wrong("18.2", "base 4")
def as_the_chapter_says(square, replicated, sizes):
    wrong = {}
    for name, axes in replicated.items():
        count, square = square % 4, square // 4
        if count == 0:
            wrong[name] = None
        elif count > 1:
            for n in range(1, len(axes) + 1):
                for some in itertools.combinations(axes, n):
                    if math.prod(sizes[a] for a in some) == count:
                        wrong.setdefault(name, some)
            wrong.setdefault(name, None)
    return wrong


@wrong("18.2", "one axis")
def a_single_culprit(square, replicated, sizes):
    b, wrong = math.prod(sizes.values()) + 1, {}
    for name, axes in replicated.items():
        square, count = divmod(square, b)
        if count == 0:
            wrong[name] = None
        if count > 1:
            wrong[name] = tuple(axis for axis in axes if sizes[axis] == count)
    return wrong


@wrong("18.3", "a rank's share")
def still_by_all_ranks(batch, rank, order, sizes):
    share = len(batch) // math.prod(sizes.values())
    coordinates = {}
    for axis in reversed(order):
        rank, coordinates[axis] = divmod(rank, sizes[axis])
    return batch[share * coordinates["dp"]:share * (coordinates["dp"] + 1)]


@wrong("18.3", "dropped")
def whole_shares_alone(batch, rank, order, sizes):
    for axis in reversed(order):
        rank, at = divmod(rank, sizes[axis])
        if axis == "dp":
            share = len(batch) // sizes["dp"]
            return batch[share * at:share * (at + 1)]


@wrong("18.3", "rest for one")
def the_first_one_takes_the_rest(batch, rank, order, sizes):
    for axis in reversed(order):
        rank, at = divmod(rank, sizes[axis])
        if axis == "dp":
            share, rest = divmod(len(batch), sizes["dp"])
            return batch[(share * at + rest if at else 0):share * (at + 1) + rest]


@wrong("18.4", "a factor of 1")
def without_replicas(measure):
    ratio = measure(1, 1, 3, 5)[0]
    return {name for name, size in (("sum over tp", 3), ("sum over micro-batches", 5)) if ratio.numerator % size == 0}


@wrong("18.4", "one stage")
def without_a_pipeline(measure):
    ratio = measure(1, 2, 3, 5)[0]
    found = {name for name, size in (("sum over dp", 2), ("sum over tp", 3), ("sum over micro-batches", 5)) if ratio.numerator % size == 0}
    return found | ({"divided twice"} if ratio.denominator % 5 == 0 else set())


@wrong("18.4", "two measurements")
def one_question_each(measure):
    found = set()
    if measure(1, 2, 1, 1)[0] == 2:
        found.add("sum over dp")
    if measure(1, 1, 2, 1)[0] == 2:
        found.add("sum over tp")
    first, last = measure(2, 1, 1, 3)
    if first != last:
        found.add("each boundary")
    if last == 3:
        found.add("sum over micro-batches")
    if last * 3 == 1:
        found.add("divided twice")
    return found


def mesh_by_rules(model, cluster, batch, tp_of, bytes_of):
    ranks, best = cluster["nodes"] * cluster["per_node"], None
    for tp in tp_of(cluster, ranks):
        for pp in range(1, ranks // tp + 1):
            if ranks % (tp * pp) or model["heads"] % tp or model["layers"] % pp or batch % (ranks // (tp * pp)):
                continue
            dp = ranks // (tp * pp)
            m = batch // dp
            key = ((pp - 1) / (m + pp - 1), tp)
            if bytes_of(model, pp, dp, tp, m) <= cluster["memory"] and (best is None or key < best[0]):
                best = key, {"pp": pp, "dp": dp, "tp": tp}
    return best and best[1]


def bytes_by_rules(model, pp, dp, tp, m, kept=min):
    own = -(-12 * model["layers"] * model["width"] ** 2 // (pp * tp))
    return 4 * own + math.ceil(12 * own / dp) + 34 * model["tokens"] * model["width"] * model["layers"] * kept(pp, m) // (pp * tp)


@wrong("18.5", "tp between nodes")
def any_tp(model, cluster, batch):
    return mesh_by_rules(model, cluster, batch, lambda cluster, ranks: range(1, ranks + 1), bytes_by_rules)


@wrong("18.5", "fewest stages")
def as_few_stages_as_fit(model, cluster, batch):
    ranks = cluster["nodes"] * cluster["per_node"]
    for pp, tp in itertools.product(range(1, ranks + 1), range(1, cluster["per_node"] + 1)):
        if ranks % (pp * tp) or model["layers"] % pp or cluster["per_node"] % tp or model["heads"] % tp or batch % (ranks // (pp * tp)):
            continue
        dp = ranks // (pp * tp)
        if bytes_by_rules(model, pp, dp, tp, batch // dp) <= cluster["memory"]:
            return {"pp": pp, "dp": dp, "tp": tp}


@wrong("18.5", "all in flight")
def as_gpipe_does(model, cluster, batch):
    inside = lambda cluster, ranks: [t for t in range(1, cluster["per_node"] + 1) if cluster["per_node"] % t == 0]  # noqa: E731
    return mesh_by_rules(model, cluster, batch, inside, lambda *mesh: bytes_by_rules(*mesh, kept=lambda pp, m: m))


def read_by_trying(measure, *sizes):
    """Whatever set makes the ratios of this mesh, the largest first."""
    pp, dp, tp, m = sizes
    ratios = measure(*sizes)
    names = {"sum over dp": dp, "sum over tp": tp, "sum over micro-batches": m, "divided twice": Fraction(1, m), "each boundary": 1}
    for number in reversed(range(len(names) + 1)):
        for some in itertools.combinations(names, number):
            factor = math.prod((names[name] for name in some), start=Fraction(1))
            stages = [factor / (m ** (pp - 1 - stage) if "each boundary" in some else 1) for stage in range(pp)]
            if stages == ratios and not {"divided twice", "sum over micro-batches"} <= set(some):
                return set(some)
    return set()


@wrong("18.4", "equal sizes")
def two_of_everything(measure):
    return read_by_trying(measure, 2, 2, 2, 2)


@wrong("18.4", "a product")
def six_is_two_times_three(measure):
    return read_by_trying(measure, 2, 3, 2, 6)


@wrong("18.4", "no boundary")
def the_last_stage_alone(measure):
    ratio = measure(2, 2, 3, 5)[-1]
    sizes = {"sum over dp": 2, "sum over tp": 3, "sum over micro-batches": 5}
    return {name for name, size in sizes.items() if ratio.numerator % size == 0} | (
        {"divided twice"} if ratio.denominator % 5 == 0 else set())


@wrong("18.5", "as many as stages")
def a_full_pipeline(model, cluster, batch):
    ranks, fitting = cluster["nodes"] * cluster["per_node"], []
    for pp, tp in itertools.product(range(1, ranks + 1), range(1, cluster["per_node"] + 1)):
        if ranks % (pp * tp) or model["layers"] % pp or cluster["per_node"] % tp or model["heads"] % tp:
            continue
        dp = ranks // (pp * tp)
        own = -(-12 * model["layers"] * model["width"] ** 2 // (pp * tp))
        kept = 34 * model["tokens"] * model["width"] * model["layers"] // tp
        if batch % dp == 0 and 4 * own - (-12 * own // dp) + kept <= cluster["memory"]:
            fitting.append(((pp - 1) / (batch // dp + pp - 1), tp, pp, dp))
    if fitting:
        _, tp, pp, dp = min(fitting)
        return {"pp": pp, "dp": dp, "tp": tp}


# 18.w1 --------------------------------------------------------------------------------------------------------------

@wrong("18.w1", "first one fastest")
class GrowingStrides:
    def rank_of(place, sizes):
        rank, stride = 0, 1
        for axis in sizes:
            rank += place[axis] * stride
            stride *= sizes[axis]
        return rank


@wrong("18.w1", "order of the place")
class PairsOfTheTwo:
    def rank_of(place, sizes):
        rank = 0
        for axis, at in place.items():
            rank = rank * sizes[axis] + at
        return rank


@wrong("18.w1", "always two")
class ReadAsBits:
    def rank_of(place, sizes):
        return sum(place[axis] << number for number, axis in enumerate(reversed(list(sizes))))


@wrong("18.w1", "added up")
class StepsFromTheCorner:
    def rank_of(place, sizes):
        return sum(place.values())
