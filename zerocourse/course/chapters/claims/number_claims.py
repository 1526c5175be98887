"""Claims about number formats, settled by the formats themselves."""

from math import isinf, log2

import torch

from .claim import Evidence, judges

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
SCALE = 2.0**16  # at which DeepSpeed's dynamic loss scale begins


def fraction_bits(dtype: torch.dtype) -> int:
    """From the gap above 1, which is 2 to the power of minus so many."""
    return round(-log2(torch.finfo(dtype).eps))


def largest_numbers() -> Evidence:
    def fits(dtype: torch.dtype) -> bool:
        return not isinf(torch.tensor(SCALE).to(dtype).item())

    return {"claimed_largest": 65504, "claimed_fraction_bits": 7, "largest_fp16": torch.finfo(torch.float16).max,
            "fraction_bits": {name: fraction_bits(dtype) for name, dtype in DTYPES.items()},
            "one_and_0.003_in_bf16": (torch.tensor(1.0, dtype=torch.bfloat16) + 0.003).item(),
            "loss_scale": SCALE, "loss_scale_is_finite_in": [name for name, dtype in DTYPES.items() if fits(dtype)]}


@judges("65504 and 7 bits", largest_numbers)
def both_are_so(e):
    return e["largest_fp16"] == e["claimed_largest"] and e["fraction_bits"]["bf16"] == e["claimed_fraction_bits"]
