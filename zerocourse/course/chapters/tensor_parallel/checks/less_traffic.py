"""The check of 16.5: tensor parallelism or ZeRO-3, which sends less."""

from fractions import Fraction

from ....checks import Trial, exercise

EASY = [(1024, 768, 1, 2, 2), (8192, 768, 1, 4, 4)]


@exercise(
    "16.5", "Tensor parallelism or ZeRO-3?", minutes=20, difficulty=2, replaces=(
        "zerocourse.formulas.volumes:*",), cases=EASY,
    trials=[Trial([(8192, 768, 4, 2, 2), (3456, 768, 1, 4, 4), (4096, 1024, 1, 2, 8), (36864, 8192, 2, 8, 64),
                   (2000, 240, 2, 6, 1), (512, 240, 1, 1, 4), (7000, 768, 1, 8, 2), (1, 1, 1, 2, 2)])],
    mistakes={
        "six": {"times": 6},
        "an all-reduce once": {"times": 4},
        "sixteen": {"times": 16},
        "24": ({"passes": 2}, {"matrices": 8}),
        "four passes": {"passes": 4},
        "square": {"matrices": 1},
        "micro-batches forgotten": {"zero_passes": lambda passes, g: passes},
        "reduced once": {"zero_passes": lambda passes, g: (passes - 1) * g + 1},
        "micro-batches multiply both": {"tensor_g": 1},
        "micro-batches multiply the other": {"tensor_g": 1, "zero_passes": lambda passes, g: passes},
        "whole buffers": {"ring": lambda n: Fraction(1)},
        "sizes swapped": {"swapped": True},
        "t for both": {"of_zero": lambda t, n: t},
        "the one that sends more": {"less": lambda tensor, zero: "tensor" if tensor > zero else "zero3"},
        "a tie": {"less": lambda tensor, zero: "tensor" if tensor <= zero else "zero3"},
    })
def who_sends_less(tokens, width, accumulation, t, n, *, times=8, passes=3, matrices=12, tensor_g=0, zero_passes=lambda passes, g: passes * g,
                   ring=lambda n: Fraction(n - 1, n), swapped=False, of_zero=lambda t, n: n,
                   less=lambda tensor, zero: "tensor" if tensor < zero else "zero3"):
    """8 T C (t − 1)/t against 36 C² G (N − 1)/N."""
    t, n = (n, t) if swapped else (t, n)
    tensor = times * tokens * width * ring(t) * accumulation**tensor_g
    zero = zero_passes(passes, accumulation) * matrices * width**2 * ring(of_zero(t, n))
    return {"tensor": int(tensor), "zero3": int(zero), "less": less(tensor, zero)}
