"""Claims about number formats, settled by the formats themselves."""

from math import isinf, log2

import torch

from .claim import FALSE, TRUE, Claim, Evidence, Judgement

GROUP = "numbers"
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
SCALE = 2.0**16  # at which DeepSpeed's dynamic loss scale begins


def fraction_bits(dtype: torch.dtype) -> int:
    """From the gap above 1, which is 2 to the power of minus so many."""
    return round(-log2(torch.finfo(dtype).eps))


def exponent_bits(dtype: torch.dtype) -> int:
    """From the largest and the smallest normal number. Two patterns of bits are left over, for 0 and for infinity."""
    limits = torch.finfo(dtype)
    powers = int(log2(limits.max)) - int(log2(limits.smallest_normal)) + 1
    return round(log2(powers + 2))


def largest_numbers() -> Evidence:
    def fits(dtype: torch.dtype) -> bool:
        return not isinf(torch.tensor(SCALE).to(dtype).item())

    return {"claimed_largest": 65504, "claimed_fraction_bits": 7, "largest_fp16": torch.finfo(torch.float16).max,
            "fraction_bits": {name: fraction_bits(dtype) for name, dtype in DTYPES.items()},
            "one_and_0.003_in_bf16": (torch.tensor(1.0, dtype=torch.bfloat16) + 0.003).item(),
            "loss_scale": SCALE, "loss_scale_is_finite_in": [name for name, dtype in DTYPES.items() if fits(dtype)]}


def judge_largest(e: Evidence) -> Judgement:
    right = e["largest_fp16"] == e["claimed_largest"] and e["fraction_bits"]["bf16"] == e["claimed_fraction_bits"]
    return Judgement(TRUE if right else FALSE, "{largest_fp16:,.0f} and {fraction_bits[bf16]} bits")


def exponents() -> Evidence:
    return {"exponent_bits": {name: exponent_bits(dtype) for name, dtype in DTYPES.items()},
            "largest": {name: torch.finfo(dtype).max for name, dtype in DTYPES.items()}}


def judge_exponents(e: Evidence) -> Judgement:
    bits = e["exponent_bits"]
    return Judgement(TRUE if bits["fp16"] == bits["bf16"] == 8 else FALSE,
                     "{exponent_bits[bf16]} bits in bf16, as in fp32, and {exponent_bits[fp16]} in fp16")


CLAIMS = (
    Claim("65504 and 7 bits", GROUP, "arithmetic", "fp16 ends at 65504, and bf16 has 7 bits of fraction.",
          largest_numbers, judge_largest,
          "All of it. A loss scale of {loss_scale:,.0f} is infinite in fp16, so the loss is scaled in fp32. And in "
          "bf16 a parameter of one does not notice a small update, so the master weights are fp32.",
          "Another format under the same name."),
    Claim("bf16's exponent", GROUP, "arithmetic", "bf16 has the 8 exponent bits of fp16.", exponents, judge_exponents,
          "bf16 has {exponent_bits[bf16]} exponent bits, and both formats have as many bits in all. It is fp32's "
          "exponent, and that is why bf16 needs no loss scale.",
          "Nothing: the bits of a format are a definition."),
)
