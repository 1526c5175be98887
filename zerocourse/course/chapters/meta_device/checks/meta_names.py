"""The checks of chapter 02, the meta device: here 2.1 to 2.3, which look at small models; the others draw values."""

import operator
from itertools import combinations, pairwise

import torch
from torch import Tensor, nn

from ....checks import Trial, When, Wrong, exercise
from ....checks.words import value_text
from .meta_models import all_names, buffered, frozen, half_planned, planned, tables, three_names, twice, zeroed

# 2.1 ----------------------------------------------------------------------------------------------------------------

COUNTED = {
    "two linear layers in fp32 under deferred_init()": lambda: planned(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))),
    "a bf16 layer and an fp32 layer":
        lambda: planned(nn.Sequential(nn.Linear(3, 4, dtype=torch.bfloat16), nn.Linear(4, 2))),
    "a model whose head is tied to its embedding": lambda: planned(tables()),
    "a model with a frozen layer": lambda: planned(frozen()),
    "a model with three buffers under deferred_init()": lambda: planned(buffered()),
    "a model of which one layer is real and one is planned": half_planned,
    "a model that is on the meta device with its buffers": lambda: planned(buffered(), buffers=True),
}
ENTRIES = ("parameters", "buffers", "now")


def count_on_a_rank(answer, words):
    """What the answer says of a model."""
    counts = answer(COUNTED[words]())
    if not isinstance(counts, dict) or {*counts} != {*ENTRIES}:
        raise Wrong(f"it returned {value_text(counts)}, and a dictionary of {', '.join(map(repr, ENTRIES))} is right")
    return {entry: counts[entry] for entry in ENTRIES}


def by_address(tensors):
    """The last at each address."""
    return {tensor.data_ptr(): tensor for tensor in tensors}.values()


def persistent(model):
    """The buffers that are in the model's state_dict()."""
    return [buffer for name, buffer in model.named_buffers() if name in model.state_dict()]


@exercise(
    "2.1", "Bytes of a plan", minutes=10, difficulty=1,
    trials=[Trial([(words,) for words in COUNTED], count_on_a_rank)],
    mistakes={
        "elements": {"nbytes": lambda tensor, _: tensor.numel()},
        "four bytes": {"nbytes": lambda tensor, _: 4 * tensor.numel()},
        "first dtype": {"nbytes": lambda tensor, model: tensor.numel() * next(model.parameters()).element_size()},
        "by address": ({"params": lambda model: by_address(model.parameters())},
                       {"params": lambda model: by_address(reversed([*model.parameters()]))}),
        "top level": {"params": lambda model: model.parameters(recurse=False)},
        "planned alone": {"params": lambda model: [param for param in model.parameters() if param.is_meta]},
        "tied twice": {"params": lambda model: dict(model.named_parameters(remove_duplicate=False)).values()},
        "frozen": {"params": lambda model: [param for param in model.parameters() if param.requires_grad]},
        "buffers too": {"params": lambda model: [*model.parameters(), *model.buffers()]},
        "persistent": {"buffers": persistent},
        "no buffers": {"buffers": lambda model: []},
        "four bytes a buffer": {"nbytes": lambda tensor, _: (tensor.nbytes if isinstance(tensor, nn.Parameter)
                                                             else 4 * tensor.numel())},
        "meta in memory": {"taken": lambda tensor, *_: True},
        "model at once": ({"taken": lambda tensor, kind, model: not any(each.is_meta for each in model.parameters())},
                          {"taken": lambda tensor, kind, model: not all(each.is_meta for each in model.parameters())}),
        "parameters alone": {"taken": lambda tensor, *_: isinstance(tensor, nn.Parameter) and not tensor.is_meta},
        "parameters at once": ({"taken": lambda tensor, kind, _: not any(each.is_meta for each in kind)},
                               {"taken": lambda tensor, kind, _: not all(each.is_meta for each in kind)},
                               {"taken": lambda tensor, *_: not isinstance(tensor, nn.Parameter)}),
        "persistent now": {"taken": lambda tensor, kind, model: not tensor.is_meta and any(
            tensor is each for each in model.state_dict(keep_vars=True).values())},
        "buffers real": {"taken": lambda tensor, *_: not tensor.is_meta or not isinstance(tensor, nn.Parameter)},
    })
def planned_bytes(model, *, nbytes=lambda tensor, model: tensor.nbytes, params=nn.Module.parameters,
                  buffers=nn.Module.buffers, taken=lambda tensor, kind, model: not tensor.is_meta):
    """The bytes of a model that may be planned, real, or both. kind: all parameters, or all buffers."""
    kinds = [*params(model)], [*buffers(model)]
    now = [tensor for kind in kinds for tensor in kind if taken(tensor, kind, model)]
    return {entry: sum(nbytes(tensor, model) for tensor in tensors)
            for entry, tensors in zip(ENTRIES, (*kinds, now), strict=True)}


# 2.2 ----------------------------------------------------------------------------------------------------------------

TIES = {
    "a real model in which nothing is tied": lambda: tables(tied=False),
    "a real model full of zeros, in which nothing is tied": lambda: zeroed(tables(tied=False)),
    "a model on the meta device in which nothing is tied": lambda: planned(tables(tied=False)),
    "a head tied to the embedding": lambda: planned(tables()),
    "one tensor with three names and one with two": lambda: planned(three_names()),
    "a model that has one module in two places": lambda: planned(twice()),
    "a real model whose head is tied": tables,
}


def ties_on_a_rank(answer, words):
    """What the answer says of a model."""
    return {"returned": answer(TIES[words]())}


def every_name(model):
    return model.named_parameters(remove_duplicate=False)


def names_by_module(model):
    return [(f"{prefix}.{key}", param) for prefix, module in model.named_modules()
            for key, param in module._parameters.items() if param is not None]


def in_pairs(choose):
    """Groups of more than two names become pairs."""
    return {"keep": lambda groups: [[*pair] for group in groups for pair in choose(group)]}


def other_order(got, want):
    return got != want and sorted(str(got)) == sorted(str(want))


@exercise(
    "2.2", "One tensor, several names", minutes=15, difficulty=1,
    trials=[Trial([(words,) for words in [*TIES][:2]], ties_on_a_rank),  # real: here values can be compared
            Trial([(words,) for words in [*TIES][2:]], ties_on_a_rank)],
    mistakes={
        "shapes": {"key": lambda param: param.shape},
        "values": ({"key": lambda param: (param.shape, *param.flatten().tolist())},
                   {"key": lambda param: float(param.sum())}),
        "single names": {"least": 1},
        "addresses": {"key": Tensor.data_ptr},
        "no duplicates": {"names": nn.Module.named_parameters},
        "modules": {"names": lambda model: [(name.rpartition(".")[0], param) for name, param in every_name(model)]},
        "pairs": (in_pairs(lambda group: combinations(group, 2)), in_pairs(pairwise),
                  in_pairs(lambda group: [(group[0], name) for name in group[1:]]),
                  {"keep": lambda groups: [[group[0], group[at]] for at in (1, 2) for group in groups[:3 - at]
                                           if len(group) > at]}),
        "one list": {"keep": lambda groups: sum(groups, [])},
        "later names": {"keep": lambda groups: [group[1:] for group in groups]},
        "weights": {"names": lambda model: [pair for pair in every_name(model) if pair[0].endswith("weight")]},
        "two names": {"keep": lambda groups: [group[:2] for group in groups]},
        "first tie": {"keep": lambda groups: groups[:1]},
        "sorted": ({"keep": lambda groups: [*map(sorted, groups)]},
                   {"keep": lambda groups: sorted(map(sorted, groups))}),
        "groups sorted": {"keep": sorted},
        "set": ({"keep": lambda groups: [group[::-1] for group in groups]}, When("returned", other_order)),
        "module twice": {"names": names_by_module},
    })
def tied_names(model, *, names=every_name, key=id, least=2, keep=lambda groups: groups):
    """The groups of names of one parameter."""
    groups = {}
    for name, param in names(model):
        groups.setdefault(key(param), []).append(name)
    return keep([group for group in groups.values() if len(group) >= least])


# 2.3 ----------------------------------------------------------------------------------------------------------------

LAYER, REST = ["layer.weight", "layer.bias"], ["mean", "seen"]
LOST = {  # model, and the names of the checkpoint's tensors
    "a checkpoint that has every tensor":
        (lambda: planned(tables(tied=False)), ["embed.weight", "norm.weight", "norm.bias", "head.weight"]),
    "a checkpoint with all that state_dict() has": (lambda: planned(buffered(), buffers=True), [*LAYER, *REST]),
    "a checkpoint without a bias and a flag": (lambda: planned(buffered(), buffers=True), ["mean", "layer.weight"]),
    "a deferred model with real buffers": (lambda: planned(buffered()), LAYER),
    "a checkpoint that also has the buffer that is not persistent":
        (lambda: planned(buffered(), buffers=True), [*LAYER, *REST, "positions"]),
    "a tied model and a checkpoint with the first of the two names":
        (lambda: planned(tables()), ["embed.weight", "norm.weight", "norm.bias"]),
}


def loss_on_a_rank(answer, words):
    """What the answer says of a model and a checkpoint."""
    make, names = LOST[words]
    model = make()
    before = all_names(model)
    returned = answer(model, {name: torch.ones(before[name].shape) for name in names})
    after = all_names(model)
    return {"replaced": not all(map(operator.is_, before.values(), after.values())), "returned": returned}


def loadable(model, checkpoint):
    """What load_state_dict() fills."""
    return checkpoint.keys() & model.state_dict().keys()


def of_parameters(model):
    return [name for name, _ in every_name(model)]


def of_buffers(model):
    return [name for name, _ in model.named_buffers()]


@exercise(
    "2.3", "What to_empty() loses", minutes=15, difficulty=2,
    trials=[Trial([(words,) for words in LOST], loss_on_a_rank)],
    mistakes={
        "changed": ({"look": lambda model, checkpoint: model.to_empty(device="cpu")},
                    {"look": lambda model, checkpoint: model.load_state_dict(checkpoint, strict=False, assign=True)}),
        "state_dict": ({"names": lambda model: [*model.state_dict()]},
                       {"names": lambda model: sorted(model.state_dict(), key=of_buffers(model).__contains__)}),
        "parameters": {"names": of_parameters},
        "every buffer": {"filled": lambda model, checkpoint: checkpoint.keys() & {*of_parameters(model)}},
        "persistence": ({"filled": lambda model, checkpoint: model.state_dict()},
                        {"filled": lambda model, checkpoint: [name for name in model.state_dict()
                                                              if name in checkpoint or name in of_buffers(model)]}),
        "buffers": {"names": of_buffers},
        "order": ({"names": lambda model: of_buffers(model) + of_parameters(model)},
                  {"names": lambda model: sorted(all_names(model))}, When("returned", other_order)),
        "spared": {"names": lambda model: [name for name, tensor in all_names(model).items() if tensor.is_meta]},
        "by name": {"filled": lambda model, checkpoint: checkpoint},
        "second name": {"names": lambda model: [name for name, _ in model.named_parameters()] + of_buffers(model)},
        "what is filled": lambda model, checkpoint: [name for name in all_names(model) if name in checkpoint],
        "too many": lambda model, checkpoint: [name for name in checkpoint if name not in model.state_dict()],
    })
def lost_names(model, checkpoint, *, names=all_names, filled=loadable, look=lambda model, checkpoint: None):
    """The names that are not filled."""
    lost = [name for name in names(model) if name not in filled(model, checkpoint)]
    look(model, checkpoint)
    return lost
