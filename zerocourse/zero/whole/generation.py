"""Running a sharded model many times without training it: gathers all parameters once, frees them at the end."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from ...errors import BadInput
from ..ddp import DataParallel
from .consolidate import whole


@contextmanager
def generating(model: nn.Module) -> Iterator[nn.Module]:
    """Inside, the parameters of a sharded model stay whole on every rank, however often it is run. Collective.

    At stage 3 every forward gathers every unit; a text of 100 tokens takes 100 forwards. Inside, the parameters travel once,
    Ψ(N-1)/N elements per rank, which `communication()` counts, and each rank holds all of them meanwhile. Ranks may run
    different numbers of forwards. Below stage 3 parameters are always whole.
    model: what `shard` or `initialize` returned. Yields the model.
    Raises BadInput for a model that is not sharded, and for a backward or an optimizer's step inside.
    """
    stage = getattr(model, "zero", None)
    if not isinstance(stage, DataParallel):
        raise BadInput(f"generating() takes a sharded model or its engine, and this {type(model).__name__} is none: "
                       "call zerocourse.shard(model, optimizer) first")
    if stage.root.forward_depth or stage.backward is not None:
        raise BadInput("generating() was called while the model computes: call it between two training steps")
    stage.settle()
    outer = vars(stage).get("begin_backward")  # of a generating() around this one
    stage.begin_backward = refuse_backward
    try:
        with whole(stage, *stage.units):
            yield stage.model
    finally:
        if outer is None:
            del stage.begin_backward


def refuse_backward() -> None:
    raise BadInput("a backward was called inside zerocourse.generating(), which is for running the model alone: "
                   "train when the context has ended")
