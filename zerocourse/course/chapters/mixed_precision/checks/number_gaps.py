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
              "power below": {"exponent": lambda value: math.ceil(math.log2(abs(value))) - 1 if value else -math.inf},
              "cut off": {"exponent": lambda value: exponent_of(value, math.trunc)},
              "proportional": lambda value, fraction, least: max(
                  abs(value) * 2.0**-fraction, 2.0 ** (least - fraction)),
              "at one": lambda value, fraction, least: 2.0**-fraction,
              "no subnormals": {"floor": lambda exponent, least: exponent if exponent > -math.inf else least},
              "smallest normal": lambda value, fraction, least: (
                  2.0 ** (exponent_of(value) - fraction) if abs(value) >= 2.0**least else 2.0**least),
              "zero below": {"floor": lambda exponent, least: exponent if exponent >= least else -math.inf},
              "zero at zero": {"floor": lambda exponent, least: max(exponent, least) if exponent > -math.inf else -math.inf},
              "subnormals halved": {"floor": lambda exponent, least: exponent if exponent >= least else least - 1},
              "negative is zero": {"exponent": lambda value: exponent_of(max(value, 0))},
              "leading one": ({"less": 1}, {"less": -1}),
              "frexp": {"exponent": lambda value: math.frexp(value)[1] if value else -math.inf},
          })
def gap(value, fraction, smallest_exponent, *, exponent=exponent_of, floor=max, less=0):
    """From |value| to the next larger number."""
    return 2.0 ** (floor(exponent(value), smallest_exponent) - fraction - less)
