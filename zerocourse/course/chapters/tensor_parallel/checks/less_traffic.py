"""The check of 16.5: tensor parallelism or ZeRO-3, which sends less."""

from fractions import Fraction

from ....checks import Trial, exercise

EASY = [(1024, 768, 1, 2, 2), (8192, 768, 1, 4, 4)]


@exercise(
    "16.5", "Tensor parallelism or ZeRO-3?", minutes=20, difficulty=2, replaces=(
        "zerocourse.formulas.volumes:*",), cases=EASY,
    trials=[Trial([(8192, 768, 4, 2, 2), (3456, 768, 1, 4, 4), (4096, 1024, 1, 2, 8), (36864, 8192, 2, 8, 64),
                   (2000, 240, 2, 6, 1), (512, 240, 1, 1, 4), (7000, 768, 1, 8, 2)])],
    mistakes={
        "six": {"times": 6},
        "an all-reduce once": {"times": 4},
        "sixteen": {"times": 16},
        "24": ({"passes": 2}, {"matrices": 8}),
        "four passes": {"passes": 4},
        "square": {"matrices": 1},
        "micro-batches forgotten": {"zero_g": 0},
        "micro-batches multiply both": {"tensor_g": 1},
        "micro-batches multiply the other": {"tensor_g": 1, "zero_g": 0},
        "whole buffers": {"ring": lambda n: Fraction(1)},
        "sizes swapped": {"swapped": True},
        "t for both": {"of_zero": lambda t, n: t},
        "the one that sends more": {"less": lambda tensor, zero: "tensor" if tensor > zero else "zero3"},
        "a tie": {"less": lambda tensor, zero: "tensor" if tensor <= zero else "zero3"},
    })
def who_sends_less(tokens, width, accumulation, t, n, *, times=8, passes=3, matrices=12, tensor_g=0, zero_g=1,
                   ring=lambda n: Fraction(n - 1, n), swapped=False, of_zero=lambda t, n: n,
                   less=lambda tensor, zero: "tensor" if tensor < zero else "zero3"):
    """8 T C (t − 1)/t against 36 C² G (N − 1)/N.

    six: You counted 3 all-reduces: a block has two regions, each with one g in the forward and one f in the backward.
    an all-reduce once: You counted half: there are 4 all-reduces, two in the forward and two in the backward, and each of them
        sends its tensor twice, in a reduce-scatter and an all-gather.
    sixteen: You counted twice: 4 all-reduces per block send 8·T·C·(t − 1)/t.
    24: You counted 24·C² for ZeRO-3: there are three passes (it gathers the parameters in the forward and again in the backward,
        and reduce-scatters the gradients), and 12·C² parameters, 4·C² in the attention and 8·C² in the MLP.
    four passes: You counted 4 passes of ZeRO-3: a reduce-scatter is half an all-reduce, so there are three.
    square: You counted one matrix of C × C: a block has 4 in its attention and 8 in its MLP.
    micro-batches forgotten: You forgot that ZeRO-3 gathers and reduces in every micro-batch.
    micro-batches multiply both: You multiplied both by G: `tokens` is the number in the whole step, and what tensor
        parallelism sends for them does not depend on how they are divided.
    micro-batches multiply the other: You multiplied the wrong one by G: `tokens` is the number in the whole step, so only
        ZeRO-3, which sends parameters in every micro-batch, sends more.
    whole buffers: You counted whole buffers: in a ring a rank sends (N − 1)/N of them.
    sizes swapped: You took t for the ranks of ZeRO-3, and N for those of tensor parallelism.
    t for both: ZeRO-3 has N ranks, and tensor parallelism t.
    the one that sends more: Your numbers are right, but you chose the one that sends more.
    a tie: Where both send the same, ZeRO-3 is wanted: it can send while a rank computes.
    right: ZeRO-3's traffic depends on the model and tensor parallelism's on the tokens, and they meet at 4.5·C·G tokens.
    """
    t, n = (n, t) if swapped else (t, n)
    tensor = times * tokens * width * ring(t) * accumulation**tensor_g
    zero = passes * matrices * width**2 * ring(of_zero(t, n)) * accumulation**zero_g
    return {"tensor": int(tensor), "zero3": int(zero), "less": less(tensor, zero)}
