"""The checks of what chapter 02 asks for itself: 02.w1, a rank's rows of random numbers, and 02.w2, memory for a deferred model."""

import torch
from torch import nn

from .....init.deferred import deferred_init
from ....checks import Trial, exercise

# 02.w1 ----------------------------------------------------------------------------------------------------------------

def my_rows(rows, rank, world_size, seed):
    """This rank's rows of a matrix of random numbers (rows, 2): the same matrix, on
    however many ranks.

    Rank 0 has the first rows // world_size of them, rank 1 the next, and so on. The
    rows are the rank's own: it keeps no memory for those of the others.
    """
    torch.manual_seed(seed)
    each = rows // world_size
    return torch.randn(rows, 2)[rank * each:(rank + 1) * each].clone()


def matrix_of(answer, rows, world_size):
    """The rows of all ranks, one after the other, and the memory that they keep."""
    parts = [answer(rows, rank, world_size, 7) for rank in range(world_size)]
    if not all(isinstance(part, torch.Tensor) for part in parts):
        return {"kinds": [type(part).__name__ for part in parts]}
    torch.manual_seed(7)
    return {"kinds": [], "shapes": [list(part.shape) for part in parts], "same": world_size > 1 and torch.equal(parts[0], parts[1]),
            "matrix": torch.cat(parts) if len({part.shape[1:] for part in parts}) == 1 else None,
            "bytes": [part.untyped_storage().nbytes() for part in parts]}


@exercise(
    "02.w1", "The same matrix on any number of ranks", minutes=8, difficulty=1, answer="my_rows", own=my_rows,
    trials=[Trial([(4, 1), (4, 2), (6, 3), (12, 4)], matrix_of)],
    mistakes={
        "copies": {"draws": lambda rows, each: each},
        "seed by rank": {"draws": lambda rows, each: each, "seeded": lambda seed, rank: seed + rank},
        "other matrix": {"seeded": lambda seed, rank: seed + rank},
        "rank alone": ({"seeded": lambda seed, rank: rank}, {"draws": lambda rows, each: each, "seeded": lambda seed, rank: rank}),
        "no seed": {"seeded": lambda seed, rank: 0},
        "in turn": {"cut": lambda matrix, rank, each: matrix[rank::len(matrix) // each]},
        "first rows": {"cut": lambda matrix, rank, each: matrix[:each]},
        "one row on": {"cut": lambda matrix, rank, each: matrix[rank:rank + each]},
        "whole": {"cut": lambda matrix, rank, each: matrix},
        "view": {"own": lambda part: part},
    })
def rows_of(rows, rank, world_size, seed, *, draws=lambda rows, each: rows, seeded=lambda seed, rank: seed,
            cut=lambda matrix, rank, each: matrix[rank * each:(rank + 1) * each] if len(matrix) > each else matrix,
            own=lambda part: part.clone()):
    """The right rows."""
    torch.manual_seed(seeded(seed, rank))
    each = rows // world_size
    return own(cut(torch.randn(draws(rows, each), 2), rank, each))


# 02.w2 ----------------------------------------------------------------------------------------------------------------

def give_memory(model):
    """Give every parameter of a deferred model memory on the CPU, filled with zeros, in
    place.

    A parameter that has two names is still one parameter with two names. Buffers stay
    as they are, and what was frozen (`requires_grad` is False) stays frozen. All
    modules of the model are looked through, and those inside of them.
    """
    made = {}
    for module in model.modules():
        for name, param in list(module.named_parameters(recurse=False)):
            if param not in made:
                made[param] = nn.Parameter(torch.zeros_like(param, device="cpu"),
                                           param.requires_grad)
            setattr(module, name, made[param])


class TiedModel(nn.Module):
    """A model with a tie, a buffer, a frozen parameter and a module inside of another."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.inner = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64))
        self.inner[0].bias.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("positions", torch.arange(4.0), persistent=False)


def filled(answer):
    """What has become of a deferred model."""
    with deferred_init():
        model = TiedModel()
    answer(model)
    named = dict(model.named_parameters(remove_duplicate=False))
    return {"without": [name for name, param in named.items() if param.is_meta], "plain": sorted(set(NAMES) - set(named)),
            "tied": model.head.weight is model.embed.weight, "buffer": model.positions,
            "frozen": [name for name, param in named.items() if not param.requires_grad],
            "dtypes": [str(param.dtype) for param in named.values()],
            "values": [name for name, param in named.items() if not param.is_meta and param.count_nonzero()]}


NAMES = [name for name, _ in TiedModel().named_parameters(remove_duplicate=False)]


def to_empty(model):
    model.to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.zero_()


@exercise(
    "02.w2", "Memory for a deferred model", minutes=12, difficulty=2, answer="give_memory", own=give_memory, trials=[Trial(observe=filled)],
    mistakes={
        "to_empty": to_empty,
        "untied": {"remember": False},
        "top alone": {"modules": lambda model: [model]},
        "one level": {"modules": lambda model: [model, *model.children()]},
        "never set": {"put": lambda module, name, param: None},
        "thawed": {"frozen": lambda param: True},
        "all frozen": {"frozen": lambda param: False},
        "one dtype": {"make": lambda param: torch.zeros(param.shape)},
        "ones": {"make": lambda param: torch.ones_like(param, device="cpu")},
        "buffers too": {"buffers": lambda model: [buffer.zero_() for buffer in model.buffers()]},
    })
def memory_for(model, *, remember=True, modules=lambda model: list(model.modules()), put=setattr,
               frozen=lambda param: param.requires_grad, make=lambda param: torch.zeros_like(param, device="cpu"),
               buffers=lambda model: None):
    """remember: parameters by the one that they replace.   frozen: what `requires_grad` becomes."""
    made = {}
    for module in modules(model):
        for name, param in list(module.named_parameters(recurse=False)):
            if param not in made or not remember:
                made[param] = nn.Parameter(make(param), frozen(param))
            put(module, name, made[param])
    buffers(model)
