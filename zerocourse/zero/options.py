"""What one may choose about a stage, in frozen dataclasses. `shard` takes three of them whole, or their fields as keywords."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path

import torch
from torch import nn

from ..errors import BadInput
from ..formulas.units import integer

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # between which one may choose


@dataclass(frozen=True)
class ZeroOptions:
    """How a stage trades memory for speed.

    bucket_size: the most elements reduced at once (a longer parameter goes alone); None: a unit at once.
    prefetch: units gathered ahead of the one that computes (stage 3).
    in_flight: units whose reductions may be under way while the backward computes. 0: it waits for each, so nothing
        overlaps; 1: it waits for the last reduction before it starts the next one, and at stage 3 before the next gather, too
        (least memory with overlap); n: it waits for the oldest when there are n.
    reshard_after_forward: False keeps parameters from forward to backward (stage 3): 2Ψ sent instead of 3Ψ.
    agreement: at the end of each backward the ranks tell each other, in one small message, what only some of them know
        (who has a gradient, what was written or left over, which of the model's buffers changed). False saves the message,
        assumes that all ranks would say the same, and leaves the model's buffers, such as batch statistics, to each rank.
    aligned: parameters and slices begin at multiples of 16 bytes, where a GPU reads four fp32 numbers at once; what that takes is
        padding, and counted as such. None: where the model trains on a GPU.
    """

    bucket_size: int | None = None
    prefetch: int = 1
    in_flight: int = 1
    reshard_after_forward: bool = True
    agreement: bool = True
    aligned: bool | None = None

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
        have fp32 master weights, which the optimizer steps. Of the model's buffers the running statistics of a BatchNorm
        follow its weights, and no others.
    reduce_dtype: in which gradients are sent, and on NCCL added up over the ranks (on gloo half precision is added in
        fp32, and the sum rounded). None: that of the parameters.
    accumulate_dtype: in which the gradients of micro-batches are added up, and kept until the step. torch.float32 for
        half-precision parameters costs 4 bytes an element instead of 2: in the whole bucket at stages 0 and 1, in this
        rank's slice from stage 2 on. None: the wider of the parameters' and reduce_dtype.
        Stages 0 and 1 send the sum of a step's micro-batches, rounded to reduce_dtype; stages 2 and 3 send each by itself,
        and do not round their sum. On one rank, or with reduce_dtype=torch.float32, too, no stage rounds anything.
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    accumulate_dtype: torch.dtype | None = None

    def __post_init__(self):
        for name, dtype in vars(self).items():
            if dtype is not None and dtype not in DTYPES:
                raise BadInput(f"{name} is {dtype!r}: it must be torch.bfloat16, torch.float16, torch.float32 or None")

    def of(self, param: torch.Tensor) -> torch.dtype:
        """The dtype in which this parameter trains."""
        return self.param_dtype if self.param_dtype is not None and param.dtype is torch.float32 else param.dtype

    def of_gradients(self, dtype: torch.dtype) -> tuple[torch.dtype, torch.dtype]:
        """(sent in, added up in) for the gradients of parameters that train in `dtype`. Raises BadInput."""
        if dtype not in DTYPES:
            return dtype, dtype
        sent = self.reduce_dtype or dtype
        added = self.accumulate_dtype or torch.promote_types(dtype, sent)
        if torch.promote_types(dtype, added) is not added:
            raise BadInput(f"accumulate_dtype is {added}, and parameters train in {dtype}: gradients must be added up "
                           f"in {'that or in ' * (dtype is not torch.float32)}torch.float32")
        return sent, added


def refuse_emulated_bf16(dtypes: Iterable[torch.dtype], device: torch.device) -> None:
    """Raise BadInput for bf16 on a GPU that has none, where torch.cuda.is_bf16_supported() is true by emulation."""
    if torch.bfloat16 in dtypes and device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        major, minor = torch.cuda.get_device_capability(device)
        raise BadInput(f"bfloat16 on {torch.cuda.get_device_name(device)}, whose compute capability is {major}.{minor} "
                       "and not 8.0, would be emulated, slowly: train in float16 with a loss scale, by fp16.enabled of "
                       "a config")


@dataclass(frozen=True)
class BackwardOptions:
    """What the next backwards do, as a pipeline needs it for its micro-batches.

    reduces: reduce the gradients; False: only add them to the local ones, and the next backward that reduces sends the
        sum (stages 0 and 1; from stage 2 on every backward reduces, so that no full gradient survives it, and only the
        sum over the replicas of hybrid sharding waits).
    reshards: free the parameters that were gathered (stage 3); False: keep them for the next micro-batch.
    is_last: let the ranks agree, and give the optimizer its gradients; False: leave that to the step. True also says
        that the step comes next, so that gradients that are offloaded go down as soon as they are reduced.
    """

    reduces: bool = True
    reshards: bool = True
    is_last: bool | None = None


@dataclass(frozen=True)
class Values:
    """Where the parameters' values come from. Those that the model has already stay, unless `weights` has others.

    init_fn: what draws the values of a module whose parameters are on the meta device. None: the model's `_init_weights`, else the
        module's `reset_parameters`.
    seed: with the parameter's name it decides what is drawn, so that any number of ranks begins alike.
    weights: a local folder of safetensors, from which each rank reads the slices that it owns; or by parameter a function that
        reads its elements [start, stop), where the parameters without one keep their values.
    """

    init_fn: Callable[[nn.Module], None] | None = None
    seed: int = 0
    weights: str | Path | dict[str, Callable[[int, int], torch.Tensor]] | None = None


def with_fields(chosen: Sequence, given: dict[str, object]) -> list:
    """The dataclasses, with those fields that were given (and are not None) in place of their own. Raises TypeError for a name
    that none of them has."""
    names = [field.name for each in chosen for field in fields(each)]
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            raise TypeError(f"shard() has no parameter {name!r}{f': did you mean {near[0]!r}?' if near else ''}")
    return [replace(each, **{field.name: given[field.name] for field in fields(each) if given.get(field.name) is not None})
            for each in chosen]
