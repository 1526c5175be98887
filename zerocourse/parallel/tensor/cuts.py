"""Which part of a parameter a rank has, and what follows: who counts it in a norm, and how it becomes whole again.

A parameter that was cut carries its `Cut` as `param.tensor_cut`. One without it is replicated: all ranks of the group
have the same values.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...comm import Comm
from ...errors import BadInput
from ...layout.rankmap import Layout
from .regions import all_reduce


@dataclass(frozen=True)
class Cut:
    """Along dimension `dim`, of `size` rows (or columns), rank r has the ranges by_rank[r], one after the other.

    Usually every row is on one rank. Where a row is on several (key-value heads that are fewer than ranks), the first of
    them counts it.
    """

    dim: int
    size: int
    by_rank: tuple[tuple[range, ...], ...]

    @classmethod
    def even(cls, dim: int, size: int, ranks: int, parts: int = 1, groups: int | None = None) -> "Cut":
        """Cut each of `parts` equal parts (queries, keys and values in one matrix) among the ranks.

        groups: what may not be cut through, such as heads: so many per part, which the ranks divide; where they are
        fewer than ranks, several ranks have the same one. None: rows alone, whose number the ranks need not divide.
        Raises BadInput.
        """
        rows = size // parts
        if groups is None:
            if rows < ranks:
                raise BadInput(f"{rows} rows cannot be cut among {ranks} ranks: each rank needs at least one")
            bounds = Layout.split(rows, ranks).bounds
            spans = [range(bounds[rank], bounds[rank + 1]) for rank in range(ranks)]
        else:
            if groups % ranks and ranks % groups:
                raise BadInput(f"{groups} heads cannot be divided among {ranks} ranks: the one number must divide the other")
            width, per_rank, copies = rows // groups, max(groups // ranks, 1), max(ranks // groups, 1)
            starts = [rank // copies * per_rank * width for rank in range(ranks)]
            spans = [range(start, start + per_rank * width) for start in starts]
        return cls(dim, size, tuple(tuple(range(part * rows + span.start, part * rows + span.stop) for part in range(parts))
                                    for span in spans))

    def take(self, whole: Tensor, rank: int) -> Tensor:
        """Rank r's part of a whole tensor, in memory of its own."""
        return torch.cat([whole.narrow(self.dim, rows.start, len(rows)) for rows in self.by_rank[rank]], self.dim)

    def put(self, part: Tensor, whole: Tensor, rank: int) -> None:
        """Write rank r's part to where it belongs in a whole tensor."""
        for rows, values in zip(self.by_rank[rank], part.split([len(rows) for rows in self.by_rank[rank]], self.dim), strict=True):
            whole.narrow(self.dim, rows.start, len(rows)).copy_(values)

    def shape(self, part: Tensor, rank: int | None = None) -> list[int]:
        """Of the whole tensor, or of a rank's part, when `part` is some rank's."""
        rows = self.size if rank is None else sum(map(len, self.by_rank[rank]))
        return [*part.shape[:self.dim], rows, *part.shape[self.dim + 1:]]

    def is_first(self, rank: int) -> bool:
        """Does no rank before this one have the same part?"""
        return self.by_rank[rank] not in self.by_rank[:rank]

    @property
    def has_copies(self) -> bool:
        return len(set(self.by_rank)) < len(self.by_rank)


def counts_here(param: Tensor, comm: Comm) -> bool:
    """Whether a norm counts this parameter on this rank: each part once, and what is replicated on rank 0 alone."""
    cut = getattr(param, "tensor_cut", None)
    return comm.rank == 0 if cut is None else cut.is_first(comm.rank)


def sum_over_copies(gradient: Tensor, cut: Cut, comm: Comm, unit: str) -> Tensor:
    """The sum of the gradients of all ranks that have the same part."""
    whole = gradient.new_zeros(cut.shape(gradient))
    cut.put(gradient, whole, comm.rank)
    return cut.take(all_reduce(whole, comm, unit), comm.rank)


@torch.no_grad()
def whole_state_dict(model: nn.Module, comm: Comm, state: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The state dict of the model as it was before it was cut, in new memory, on every rank. Collective.

    state: this rank's, where the model's own does not have the values, as under ZeRO (`zerocourse.state_dict`).
    """
    return {name: value.clone() if cut is None else gathered(value, cut, comm, name)
            for name, value, cut in entries(model, model.state_dict() if state is None else state)}


def gathered(part: Tensor, cut: Cut, comm: Comm, name: str) -> Tensor:
    """The whole tensor of which this rank has a part."""
    shapes = {str(rank): cut.shape(part, rank) for rank in range(comm.world_size)}
    layout = Layout.build(shapes, comm.world_size, {rank: int(rank) for rank in shapes})
    flat = part.new_empty(layout.padded)
    flat[layout.slice(comm.rank)] = part.reshape(-1)
    comm.all_gather(flat, layout, name).wait()
    whole = part.new_empty(cut.shape(part))
    for rank, shape in shapes.items():
        cut.put(flat[layout.slice(int(rank))].view(shape), whole, int(rank))
    return whole


@torch.no_grad()
def load_whole_state_dict(model: nn.Module, state: Mapping[str, Tensor], comm: Comm) -> None:
    """Each rank takes its parts of whole tensors, such as `whole_state_dict` returned on any number of ranks.

    Raises BadInput, before anything is changed, for a tensor that is missing, unknown, or of another shape.
    """
    values = {name: (value, cut) for name, value, cut in entries(model, model.state_dict())}
    wrong = [f"{name} is missing" for name in values.keys() - state.keys()]
    wrong += [f"{name} is not in the model" for name in state.keys() - values.keys()]
    for name in values.keys() & state.keys():
        value, cut = values[name]
        needed = list(value.shape) if cut is None else cut.shape(value)
        if list(state[name].shape) != needed:
            wrong.append(f"{name} has the shape {list(state[name].shape)}, not {needed}")
    if wrong:
        raise BadInput(f"the state does not fit the model: {'; '.join(sorted(wrong)[:3])}")
    for name, (value, cut) in values.items():
        value.copy_(state[name] if cut is None else cut.take(state[name], comm.rank))


def entries(model: nn.Module, state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Cut | None]]:
    """Name, this rank's values, and cut of everything in a state dict of the model."""
    params = dict(model.named_parameters(remove_duplicate=False))
    for name, value in state.items():
        yield name, value, getattr(params.get(name), "tensor_cut", None)
