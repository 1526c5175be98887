"""The check of 18.2: from the digits of a squared norm to the axes over which a parameter was counted too often."""

import itertools
import math
import operator

from ....checks import exercise

SIZES = {"pp": 3, "dp": 5, "tp": 2}
NORMS = {"ln.weight": ("dp", "tp"), "qkv.weight": ("dp",), "wte.weight": ("pp", "dp"), "bias": ("pp", "dp", "tp")}


def square_of(counts, replicated, sizes):
    """The squared norm in which parameter i is counted counts[i] times, base**i each."""
    base = math.prod(sizes.values()) + 1
    return sum(count * base**place for place, count in enumerate(counts))


def case(*counts, replicated=NORMS, sizes=SIZES):
    return square_of(counts, replicated, sizes), replicated, sizes


def chosen(count, axes, sizes):
    """The axes, of these, whose sizes multiply to the count."""
    for number in range(len(axes) + 1):
        for some in itertools.combinations(axes, number):
            if math.prod(sizes[axis] for axis in some) == count:
                return some


def one_axis(count, axes, sizes):
    return next(((axis,) for axis in axes if sizes[axis] == count), ())


def greedily(count, axes, sizes):
    """Every axis that divides what is left of the count."""
    found = []
    for axis in axes:
        if count % sizes[axis] == 0:
            count //= sizes[axis]
            found.append(axis)
    return tuple(found)


@exercise(
    "18.2", "Counted along which axes?", minutes=30, difficulty=2,
    replaces=("zerocourse.measure.norm_audit:*", "zerocourse.parallel.norms:audit"),
    cases=[case(2, 1, 1, 1), case(1, 5, 1, 1), case(1, 1, 3, 2), case(10, 1, 15, 30), case(0, 1, 1, 6), case(1, 1, 1, 1),
           case(5, 1, 1, 2), case(6, 1, replicated={"a": ("dp", "tp"), "b": ("dp",)}, sizes={"dp": 2, "tp": 6, "pp": 3}),
           case(6, 6, replicated={"a": ("dp", "pp"), "b": ("tp",)}, sizes={"dp": 2, "tp": 6, "pp": 3}),
           case(1, 0, replicated={"a": ("dp",), "b": ("dp",)}, sizes={"dp": 2}),
           case(6, replicated={"a": ("tp", "dp")}, sizes={"dp": 3, "tp": 2}),
           case(*[1] * 15, 5, replicated={f"h.{number}": ("dp",) for number in range(16)})],  # above 2**53
    mistakes={
        "base 4": {"base": lambda sizes: 4},
        "the product": {"base": lambda sizes: math.prod(sizes.values())},
        "from the wrong end": {"places": lambda names: list(names)[::-1]},
        "one axis": ({"axes_of": one_axis}, {"axes_of": lambda *some: one_axis(*some) or None}),
        "in floats": {"left": lambda square, base: int(square / base)},
        "any axes": {"among": lambda axes, sizes: tuple(sizes)},
        "order of sizes": {"among": lambda axes, sizes: tuple(axis for axis in sizes if axis in axes)},
        "all that replicate": {"axes_of": lambda count, axes, sizes: axes},
        "each that divides": {"axes_of": lambda count, axes, sizes: tuple(axis for axis in axes if count % sizes[axis] == 0)},
        "divided greedily": {"axes_of": greedily},
        "never counted": {"missing": ()},
        "stopped early": {"stops": True},
        "those that are right": {"tell_right": True},
    })
def counted_over(square, replicated, sizes, *, base=lambda sizes: math.prod(sizes.values()) + 1, places=list, axes_of=chosen,
                 among=lambda axes, sizes: axes, missing=None, tell_right=False, stops=False,
                 left=operator.floordiv):
    """Digits in a base that is larger than any count, then the axes whose sizes multiply to the digit."""
    found = {}
    for name in places(replicated):
        if stops and not square:
            break
        count, square = square % base(sizes), left(square, base(sizes))
        if count != 1 or tell_right:
            found[name] = missing if count == 0 else axes_of(count, among(replicated[name], sizes), sizes)
    return found
