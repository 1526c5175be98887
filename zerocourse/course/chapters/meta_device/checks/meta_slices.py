"""The check of 2.5: one rank's slices of a model that is on the meta device, module by module.

An answer sends nothing, so one process plays the ranks in turn.
"""

import math

import torch
from torch import nn

from .....measure.ledger import Ledger
from ....checks import Trial, When, Wrong, exercise
from ....checks.compare import same
from ....checks.words import a, value_text
from .meta_models import all_names, planned
from .meta_values import MATERIALISING, crc

WIDTH = 64  # large beside all that an answer needs for itself
SLACK = 8192  # bytes: small tensors that an answer may need for itself
SEED = 7


class Gain(nn.Module):
    """Two small parameters, one of another dtype, and a buffer that only `__init__` can fill."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.empty(())), nn.Parameter(torch.empty(5, dtype=torch.bfloat16))
        self.register_buffer("table", torch.arange(6.0) ** 2, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, 1.5)
        nn.init.normal_(self.shift)


def stack(words: int = WIDTH + 1) -> nn.Module:
    """A planned model: layers of one size, a tie, small parameters, and buffers that only `__init__` can fill."""
    model = nn.ModuleDict({"embed": nn.Embedding(words, WIDTH), "gain": Gain(),
                           "layers": nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6)),
                           "norm": nn.LayerNorm(WIDTH), "head": nn.Linear(WIDTH, words, bias=False)})
    model["head"].weight = model["embed"].weight
    model.register_buffer("positions", torch.arange(WIDTH) * 3, persistent=False)
    return planned(model)


def slices_of(answer, model, rank, world_size):
    """What the answer returns. Raises Wrong where that is no dictionary of real tensors."""
    torch.set_deterministic_debug_mode("error")  # memory without values is then full of NaN
    try:
        slices = answer(model, rank, world_size, SEED)
    finally:
        torch.set_deterministic_debug_mode("default")
    if not isinstance(slices, dict):
        raise Wrong(f"it returned {value_text(slices)}, {a(slices)}, where a dictionary of slices is right")
    for name, part in slices.items():
        if not torch.is_tensor(part) or part.is_meta:
            where = " on the meta device" if torch.is_tensor(part) else ""
            raise Wrong(f"the slice of `{name}` is {a(part)}{where}, where a real tensor is right")
    return slices


def what_values_follow(answer):
    """What the values of one layer depend on."""
    models_slices = []
    for state, words in ((100, WIDTH + 1), (101, WIDTH + 1), (100, WIDTH + 2)):
        model = stack(words)
        torch.manual_seed(state)
        models_slices.append(slices_of(answer, model, 0, 1))
    usual, late, wider = (slices.get("layers.0.weight") for slices in models_slices)
    return {"generator": not same(usual, late, nan=True), "before": not same(usual, wider, nan=True),
            "layers": usual is not None and same(models_slices[0].get("layers.1.weight"), usual)}


def slices_for_a_rank(answer, rank, world_size):
    """One rank's slices, what was held meanwhile, and what is left of the model."""
    model = stack()
    params, before = dict(model.named_parameters()), all_names(model)
    values = {name: buffer.clone() for name, buffer in model.named_buffers()}
    torch.manual_seed(100 + rank)
    state = torch.get_rng_state()
    with Ledger() as ledger:
        slices = slices_of(answer, model, rank, world_size)
        peak = ledger.peak
    state_after, after = torch.get_rng_state(), all_names(model)
    ours = {name: slices[name].detach() for name in params if name in slices}
    storages = {part.untyped_storage()._cdata: part.untyped_storage().nbytes() for part in slices.values()}
    share = sum(param.element_size() * -(-param.numel() // world_size) for param in params.values())
    limit = share + 2 * max(param.nbytes for param in params.values()) + SLACK
    whole = sum(param.nbytes for param in params.values())
    return {"second name": "head.weight" in slices, "missing": in_words(params, but=slices),
            "extra": in_words(slices, but=[*params, "head.weight"]),
            "dtypes": {name: str(part.dtype) for name, part in ours.items()},
            "shapes": {name: f"{tuple(part.shape)} for numel {params[name].numel()}" for name, part in ours.items()},
            "whole" if world_size == 1 else "slices": ours,
            "real": in_words(name for name in params if not after[name].is_meta),
            "others": in_words(before, but=[*values, *(name for name in before if after[name] is before[name])]),
            "buffers": in_words(name for name in values if not torch.equal(after[name], values[name])),
            "state": torch.equal(state, state_after), "held": max(share, sum(storages.values())),
            "over": (peak > limit) + (peak > max(limit, whole)), "_peak": peak, "_limit": limit}


def in_words(names, but=()):
    """The first two."""
    return ", ".join([f"`{name}`" for name in names if name not in but][:2])


def table(row, world_size, fill=0.0):
    """A row of elements, padded, with a row for each rank."""
    return nn.functional.pad(row, (0, -row.numel() % world_size), value=fill).view(world_size, -1)


def give_memory(module, planned):
    module._parameters.update({key: nn.Parameter(torch.empty_like(param, device="cpu"))
                               for key, param in planned.items()})


def run_of(row, rank, size):
    return row[rank * size:(rank + 1) * size].clone()


def padding_alone(got, want):
    """Is all as wanted where that is not 0, which padding is?"""
    return all(torch.equal(got[name][part != 0], part[part != 0]) for name, part in want.items())


@exercise(
    "2.5", "Only this rank's slice", minutes=60, difficulty=3, replaces=MATERIALISING,
    trials=[Trial(observe=what_values_follow), Trial([(0, 1), (1, 2), (2, 3)], slices_for_a_rank)],
    mistakes={
        "generator": {"number": lambda *_: None},
        "seeded once": {"number": lambda name, seed, *_: None if name else seed},
        "seeded alike": ({"number": lambda name, seed, *_: seed},
                         {"number": lambda name, seed, module, rank: crc(type(module), seed)}),
        "second name": ({"returns": lambda slices: {**slices, "head.weight": slices["embed.weight"].clone()}},
                        {"returns": lambda slices: {name.replace("embed", "head"): slices[name] for name in slices}}),
        "missing": ({"returns": lambda slices: {name: slices[name] for name in slices if "gain" not in name}},
                    When("missing")),
        "extra": ({"returns": lambda slices: {**slices, "positions": torch.zeros(1)}}, When("extra")),
        "dtype": ({"cut": lambda row, rank, ranks: table(row, ranks)[rank].float()}, When("dtypes")),
        "not cut": {"cut": lambda row, rank, ranks: row.clone()},
        "not padded": {"cut": lambda row, rank, ranks: run_of(row, rank, -(-row.numel() // ranks))},
        "chunk": {"cut": lambda row, rank, ranks: row.chunk(ranks)[rank].clone()},
        "rounded down": {"cut": lambda row, rank, ranks: run_of(row, rank, row.numel() // ranks)},
        "rest dealt out": {"cut": lambda row, rank, ranks: row.tensor_split(ranks)[rank].clone()},
        "not 1-D": ({"cut": lambda row, rank, ranks: table(row, ranks)[rank:rank + 1].clone()},
                    When("shapes", lambda got, want: not all(",) for" in shape for shape in got.values()))),
        "no values": ({"reset": lambda module: None},
                      When("whole", lambda got, want: all(bool(part.isnan().all()) for part in got.values()))),
        "some values": ({"reset": lambda module: None if isinstance(module, Gain) else module.reset_parameters()},
                        When("whole", lambda got, want: any(bool(part.isnan().any()) for part in got.values()))),
        "tied again": {"again": True},
        "other seed": ({"number": lambda name, seed, *_: crc(seed, name)},
                       {"number": lambda name, seed, *_: crc(f"{name}.weight", seed)}, When("whole")),
        "slice of rank 0": {"cut": lambda row, rank, ranks: table(row, ranks)[0].clone()},
        "dealt like cards": {"cut": lambda row, rank, ranks: table(row, ranks).view(-1, ranks)[:, rank].clone()},
        "padding": ({"cut": lambda row, rank, ranks: table(row, ranks, math.nan)[rank].clone()},
                    When("slices", padding_alone)),
        "rank in the seed": ({"number": lambda name, seed, module, rank: crc(name, seed + rank)}, When("slices")),
        "left real": ({"back": lambda planned, real: real}, When("real")),
        "other objects": ({"back": lambda planned, real: nn.Parameter(planned.detach().clone())}, When("others")),
        "buffers lost": ({"give": lambda module, planned: module.to_empty(device="cpu", recurse=False)},
                         When("buffers")),
        "state lost": ({"keep": False}, When("state")),
        "views": ({"cut": lambda row, rank, ranks: table(row, ranks)[rank]}, When("held")),
        "at once": (lambda model, rank, ranks, seed: {name: table(row, ranks)[rank].clone() for name, row
                                                      in my_slices(model, 0, 1, seed).items()},
                    When("over", lambda got, want: got == 2)),
    })
def my_slices(model, rank, world_size, seed, *, number=lambda name, seed, *_: crc(name, seed), give=give_memory,
              reset=lambda module: module.reset_parameters(), again=False, back=lambda planned, real: planned,
              cut=lambda row, rank, world_size: table(row, world_size)[rank].clone(), keep=True,
              returns=lambda slices: slices):
    """One rank's slices, module by module."""
    names, slices, state = {param: name for name, param in model.named_parameters()}, {}, torch.get_rng_state()
    for name, module in model.named_modules():
        if (drawn_from := number(name, seed, module, rank)) is not None:
            torch.manual_seed(drawn_from)
        planned = {key: param for key, param in module.named_parameters(recurse=False)
                   if again or names[param] not in slices}
        if planned:
            give(module, planned)
            reset(module)
        for key, param in planned.items():
            real = module._parameters[key]
            slices[names[param]] = cut(real.detach().flatten(), rank, world_size)
            module._parameters[key] = back(param, real)
    if keep:
        torch.set_rng_state(state)
    return returns(slices)
