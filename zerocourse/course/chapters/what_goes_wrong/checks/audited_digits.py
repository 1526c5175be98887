"""The check of 9.2: from one norm to how often each parameter was counted."""

from functools import partial

import numpy

from ....checks import Trial, exercise


def norm_of(counts, dtype=numpy.float32):
    """The norm that counts parameter i as often as `counts` says, where its gradient is 2**i in one element."""
    return float(dtype(sum(count * 4**place for place, count in enumerate(counts)) ** 0.5))


def names(number):
    return [f"h.{i}.weight" for i in range(number)]


def case(*counts):
    return norm_of(counts), names(len(counts))


def digits(square, names, base=4):
    return {name: square // base**place % base for place, name in enumerate(names)}


def without_leading_zeros(square, names):
    written = ""
    while square:
        written, square = written + str(square % 4), square // 4
    return {name: int(digit) for name, digit in zip(names, written)}


@exercise(
    "9.2", "The norm auditor's digits", minutes=20, difficulty=2,
    replaces=("zerocourse.measure.norm_audit:*",),
    cases=[case(1, 1), case(1, 1, 1, 1), case(1), case(1, 0, 1), case(0, 1, 1)],
    trials=[Trial([case(1, 2, 1), case(3, 1, 0, 2, 1), case(1, 1, 0), case(0, 0, 0), case(1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
                   case(0, 2, 0, 3, 1, 1, 0, 1, 2, 1)])],
    mistakes={
        "not squared": {"square": lambda norm: round(norm)},
        "cut off": {"square": lambda norm: int(norm**2)},
        "base 2": {"read": partial(digits, base=2)},
        "base 10": {"read": partial(digits, base=10)},
        "turned over": {"read": lambda square, names: digits(square, names[::-1])},
        "zeros lost": {"read": without_leading_zeros},
        "yes or no": {"read": lambda square, names: {name: min(1, n) for name, n in digits(square, names).items()}},
    })
def how_often(norm, names, *, square=lambda norm: round(norm**2), read=digits):
    """How often each parameter was counted."""
    return read(square(norm), names)
