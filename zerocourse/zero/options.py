"""What one may choose about a stage, in two frozen dataclasses. `shard` takes them whole, or the fields as keywords."""

from dataclasses import dataclass

import torch

from ..errors import BadInput
from ..formulas.units import integer


@dataclass(frozen=True)
class ZeroOptions:
    """How a stage trades memory for speed.

    bucket_size: the most elements reduced at once (a longer parameter goes alone); None: a unit at once.
    prefetch: units gathered ahead of the one that computes (stage 3).
    in_flight: units whose reductions may be under way while the backward computes. 0: it waits for each, so nothing
        overlaps; 1: before the next reduction, and at stage 3 before the next gather, it waits for the last one (least
        memory with overlap); n: it waits for the oldest when there are n.
    reshard_after_forward: False keeps parameters from forward to backward (stage 3): 2Ψ sent instead of 3Ψ.
    agreement: at the end of each backward the ranks tell each other, in one small message, what only some of them know
        (who has a gradient, what was written or left over, which of the model's buffers changed). False saves the message,
        trusts that all are alike, and leaves the model's buffers, such as batch statistics, to each rank.
    """

    bucket_size: int | None = None
    prefetch: int = 1
    in_flight: int = 1
    reshard_after_forward: bool = True
    agreement: bool = True

    def __post_init__(self):
        integer(self.prefetch, "prefetch", 0)
        integer(self.in_flight, "in_flight", 0)
        if self.bucket_size is not None:
            integer(self.bucket_size, "bucket_size, in elements,", 1)


@dataclass(frozen=True)
class Precision:
    """What is computed in which dtype.

    param_dtype: what fp32 parameters and their gradients become, torch.bfloat16 or torch.float16. None: they keep their
        dtype, as parameters of any other dtype always do. Parameters in half precision, whether they came so or became so,
        have fp32 master weights, which the optimizer steps.
    """

    param_dtype: torch.dtype | None = None

    def __post_init__(self):
        if self.param_dtype not in (None, torch.float32, torch.bfloat16, torch.float16):
            raise BadInput(f"param_dtype is {self.param_dtype!r}: it must be torch.bfloat16 or torch.float16, or None")

    def of(self, param: torch.Tensor) -> torch.dtype:
        """The dtype in which this parameter trains."""
        return self.param_dtype if self.param_dtype is not None and param.dtype is torch.float32 else param.dtype
