"""The check of 10.2: the gap between a number and the next one of its format."""

import math

from ....checks import exercise

FP32, FP16, BF16, E4M3 = (23, -126), (10, -14), (7, -126), (3, -6)  # bits of fraction; exponent of the smallest normal
CASES = [(1.0, *FP16), (1.0, *BF16), (2.0, *FP16), (1.5, *FP16), (3.0, *BF16), (0.75, *FP16), (0.3, *BF16),
         (1000.0, *FP16),
         (1000.0, *BF16), (448.0, *E4M3), (0.02, *BF16), (-3.0, *FP16), (-0.3, *BF16), (2.0**-14, *FP16),
         (2.0**-15, *FP16),
         (2.0**-24, *FP16), (0.001, *E4M3), (0.1, *FP32), (0.0, *FP16), (0.0, *E4M3)]


def exponent_of(value, whole=math.floor):
    return whole(math.log2(abs(value))) if value else -math.inf


def unsigned(value, fraction, least):
    return 2.0 ** (max(math.floor(math.log2(value)), least) - fraction)


@exercise("10.2", "The gap to the next number", minutes=10, difficulty=1, cases=CASES,
          replaces=("zerocourse.course.chapters.mixed_precision.number_formats:NumberFormat.gap",),
          mistakes={
              "sign": unsigned,
              "zero": lambda value, fraction, least: unsigned(abs(value), fraction, least),
              "rounded": {"exponent": lambda value: exponent_of(value, round)},
              "rounded up": {"exponent": lambda value: exponent_of(value, math.ceil)},
              "cut off": {"exponent": lambda value: exponent_of(value, math.trunc)},
              "proportional": lambda value, fraction, least: max(
                  abs(value) * 2.0**-fraction, 2.0 ** (least - fraction)),
              "at one": lambda value, fraction, least: 2.0**-fraction,
              "no subnormals": {"floor": lambda exponent, least: exponent if exponent > -math.inf else least},
              "smallest normal": lambda value, fraction, least: (
                  2.0 ** (exponent_of(value) - fraction) if abs(value) >= 2.0**least else 2.0**least),
              "zero below": {"floor": lambda exponent, least: exponent if exponent >= least else -math.inf},
              "leading one": ({"less": 1}, {"less": -1}),
              "frexp": {"exponent": lambda value: math.frexp(value)[1] if value else -math.inf},
          })
def gap(value, fraction, smallest_exponent, *, exponent=exponent_of, floor=max, less=0):
    """From |value| to the next larger number.

    sign: You took the logarithm of a number that may be negative or 0: the gap depends on its size alone.
    zero: You took the logarithm of 0: next to it lies the smallest number of all.
    rounded: You rounded the exponent to the nearest: all numbers from 2^e up to 2^(e+1) have the exponent e, so round
        down.
    rounded up: You rounded the exponent up: all numbers from 2^e up to 2^(e+1) have the exponent e, so round down.
    cut off: You cut the logarithm off towards 0, as int() does: it is negative for numbers below 1, and down is wanted,
        as math.floor does.
    proportional: You made the gap proportional to the value: it is the same for all numbers from 2^e up to 2^(e+1).
    at one: That is the gap at 1: it doubles with every power of two.
    no subnormals: You let gaps become smaller and smaller: below the smallest exponent they stay as they are at it.
    smallest normal: That is the smallest normal number: the gap below it is the gap just above it, so the bits of the
        fraction are missing.
    zero below: You let the gap be 0 below the smallest exponent: there the numbers are subnormal, as far apart as at
        it.
    leading one: You are off by a factor of two: the 1 before the point is not stored, so all bits of the fraction lie
        behind it.
    frexp: You took the exponent of math.frexp as it is: its mantissa lies between 1/2 and 1, so its exponent is one
        larger.
    right: for normal and subnormal numbers, for negative ones and for 0.
    """
    return 2.0 ** (floor(exponent(value), smallest_exponent) - fraction - less)
