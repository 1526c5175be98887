"""What a checkpoint holds: pieces of tensors, each known by its tensor's name and its place there. It communicates
nothing.

A piece says nothing of stages, ranks or buffers, and that is why a checkpoint travels: whoever reads needs some range
of some parameter, and takes it from whatever pieces there are. Parameters and the states of their optimizer are 1-D
here, in the order of their elements, because a cut may go through the middle of a row:

    model/NAME              the parameter, as exact as there is: the fp32 master weights, if it trains in half precision
    optimizer/NAME/KEY      a state that has an element for each of the parameter's (Adam's averages, momentum)
    buffer/NAME             a persistent buffer of the model, in its own shape, as rank 0 has it
"""

from collections.abc import Iterator, Set
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from ...layout.rankmap import ShardRange
from ...zero.buffers.buffer import FlatBuffer
from ...zero.ddp import DataParallel
from ...zero.optimizer import elementwise_states
from ...zero.whole.consolidate import names
from ...zero.whole.expert_rows import first_element, whole_shape


@dataclass
class Piece:
    """`values` are what `tensor`, of shape `size`, has at `offset`: inside of `flat.at_hand()`, if it is a buffer's."""

    tensor: str
    size: tuple[int, ...]
    offset: tuple[int, ...]
    values: torch.Tensor
    flat: FlatBuffer | None = None

    def copied(self) -> torch.Tensor:
        """The values, on the CPU, in memory that nobody else writes."""
        with self.flat.at_hand() if self.flat is not None else nullcontext():
            return self.values.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def model_piece(flat: FlatBuffer, part: ShardRange) -> Piece:
    """A part of a parameter that lies in this rank's slice."""
    return Piece(f"model/{part.name}", *place_of(flat.params[part.name], part), flat.master_of(part), flat)


def place_of(param: nn.Parameter, part: ShardRange) -> tuple[tuple[int], tuple[int]]:
    """Size of the whole parameter, experts of other ranks included, and where in it this part begins."""
    return (whole_shape(param).numel(),), (first_element(param) + part.start,)


def frozen(model: nn.Module) -> set[str]:
    """Names of the parameters that do not require gradients, as those of a base model under LoRA."""
    return {name for name, param in model.named_parameters() if not param.requires_grad}


def pieces_to_write(stage: DataParallel, optimizer: Optimizer | None, without: Set[str] = frozenset()) -> Iterator[Piece]:
    """This rank's share of everything, each element of which one rank alone writes.   without: these parameters."""
    replicate = stage.groups.replicate
    if replicate is not None and replicate.rank:
        return
    if rank_of(stage) == 0:
        for name, buffer in buffers(stage.model).items():
            yield Piece(f"buffer/{name}", tuple(buffer.shape), (0,) * buffer.dim(), buffer.detach())
    for flat in [flat for flat in stage.flats if flat.params.keys() - without]:
        share = flat.reduce_slice  # also where every rank holds everything
        with flat.at_hand():  # what has no memory cannot be cut
            for part in [part for part in flat.ranges(share) if part.name not in without]:
                yield model_piece(flat, part)
                for key, state in elementwise(flat, part, optimizer).items():
                    first = part.start - stepped_range(flat, part).start
                    yield Piece(state_name(part.name, key), *place_of(flat.params[part.name], part),
                                state[first : first + part.stop - part.start], flat)


def pieces_to_read(flat: FlatBuffer, without: Set[str] = frozenset()) -> Iterator[Piece]:
    """What this rank holds of a buffer's parameters, without those."""
    for part in [part for part in flat.ranges() if part.name not in without]:
        yield model_piece(flat, part)


def state_name(param: str, key: str) -> str:
    return f"optimizer/{param}/{key}"


def stepped_range(flat: FlatBuffer, part: ShardRange) -> ShardRange | None:
    """That of the optimizer's parameter in which this part lies: itself, unless every rank steps everything."""
    return next((where for where in flat.shard_params
                 if where.name == part.name and where.start <= part.start and part.stop <= where.stop), None)


def elementwise(flat: FlatBuffer, where: ShardRange, optimizer: Optimizer | None) -> dict[str, torch.Tensor]:
    """The optimizer's states of this rank's part of a parameter (1-D) that have an element for each of its elements."""
    states = elementwise_states(optimizer, flat.shard_params.get(stepped_range(flat, where)))
    return {key: state.view(-1) for key, state in states.items()}


def buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """The model's persistent buffers."""
    return {name: kept for name, kept in names(model).items()
            if isinstance(kept, torch.Tensor) and not isinstance(kept, nn.Parameter)}


def rank_of(stage: DataParallel) -> int:
    """This rank's number among all ranks of the stage, replicas included."""
    groups = stage.groups
    return groups.shard.rank + (groups.replicate.rank * groups.shard.world_size if groups.replicate else 0)


def aliases(model: nn.Module) -> dict[str, str]:
    """Further names of tied parameters, with the name under which each is kept."""
    first = {param: name for name, param in model.named_parameters()}
    return {name: first[param] for name, param in model.named_parameters(remove_duplicate=False) if first[param] != name}
