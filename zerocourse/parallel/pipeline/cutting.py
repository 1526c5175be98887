"""Cuts a model, given as a list of layers, into stages of neighbours, and finds the weights that two stages share."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from ...activations.checkpointing import checkpointed
from ...errors import BadInput


def cut(costs: Sequence[float], stages: int) -> list[range]:
    """The layers of each stage: neighbours, at least one, such that the dearest stage is as cheap as it can be.

    costs: of each layer, in any unit, such as its parameters or its seconds; all 1 gives stages of equal length.
    Raises BadInput for more stages than layers.
    """
    layers = len(costs)
    if not 1 <= stages <= layers:
        raise BadInput(f"{layers} layers cannot be cut into {stages} stages: each stage needs at least one layer")
    until = [0.0]
    for cost in costs:
        until.append(until[-1] + cost)
    # best[end]: (the dearest stage, where the last of them begins) of the first `end` layers in so many stages
    best = [[(cost, 0) for cost in until]]
    for count in range(2, stages + 1):
        best.append([min(((max(best[-1][start][0], until[end] - until[start]), start)
                          for start in range(count - 1, end)), default=(float("inf"), 0)) for end in range(layers + 1)])
    cuts, end = [], layers
    for row in reversed(best):
        start = row[end][1]
        cuts.append(range(start, end))
        end = start
    return cuts[::-1]


class PipelineStage(nn.Module):
    """Neighbouring layers of a model, one after the other. Each layer takes what the one before returned: a tensor, or
    a tuple of tensors, which become its arguments.

    numbers: of its layers in the model.   recompute: each layer keeps only its input for the backward; its
    forward is replaced.
    seed: if not None, each layer of each micro-batch draws its dropout from a seed of its own, so that the masks depend
    neither on the cut nor on the order of the schedule.
    """

    def __init__(self, layers: Sequence[nn.Module], numbers: range, recompute: bool = False, seed: int | None = None):
        super().__init__()
        self.layers, self.numbers, self.seed = nn.ModuleList(layers[number] for number in numbers), numbers, seed
        for layer in self.layers if recompute else ():  # in its place, so that what tensor parallelism and ZeRO hook to it is run
            layer.forward = checkpointed(layer)

    def forward(self, *values: torch.Tensor, micro_batch: int = 0, step: int = 0) -> torch.Tensor | tuple:
        if self.seed is None:
            return self.through(values, lambda number: None)
        device = values[0].device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            return self.through(values, lambda number: torch.manual_seed(hash((self.seed, step, micro_batch, number))))

    def through(self, values: tuple, before_layer) -> torch.Tensor | tuple:
        for number, layer in zip(self.numbers, self.layers, strict=True):
            before_layer(number)
            out = layer(*values)
            values = out if isinstance(out, tuple) else (out,)
        return out


class Tied(NamedTuple):
    """A weight that layers of several ranks share.   name: in its first stage.   stages: that have it, in order."""

    name: str
    param: nn.Parameter
    stages: list[int]


def tied_weights(stages: Sequence[nn.Module], owner: Sequence[int]) -> list[Tied]:
    """The weights that stages of different ranks share, such as an embedding and a head. All stages must still share
    them as objects here, as they do in the model that was built in one process. owner[stage]: its rank."""
    places: dict[nn.Parameter, list[tuple[int, str]]] = defaultdict(list)
    for number, stage in enumerate(stages):
        for name, param in stage.named_parameters():
            places[param].append((number, name))
    return [Tied(f"{where[0][1]} of stage {where[0][0]}", param, [stage for stage, _ in where])
            for param, where in places.items() if len({owner[stage] for stage, _ in where}) > 1]
