"""The check of 12.6: find the bug in a snapshot that a background thread is to write."""

import copy

import torch
from torch import nn

from ....checks import Trial, When, exercise

STEPS, AT = 6, 3


def trained():
    """A small model with dropout and a buffer, its optimizer, and a scheduler, before the first step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def steps(model, optimizer, scheduler, first, last):
    losses = []
    for step in range(first, last):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def types_in(model, states):
    tensors = [*model.values(), *(value for entry in states.values() for value in entry.values())]
    return sorted({str(getattr(each, "dtype", type(each).__name__)) for each in tensors})


def taken_and_restored(answer):
    """A snapshot is taken, training goes on, and a new run starts from the snapshot."""
    model, optimizer, scheduler = trained()
    steps(model, optimizer, scheduler, 0, AT)
    right = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                           "scheduler": scheduler.state_dict()}) | {"random": torch.get_rng_state()}
    taken = answer(model, optimizer, scheduler)
    want = steps(model, optimizer, scheduler, AT, STEPS)
    answer(model, optimizer, scheduler)  # a second snapshot must leave the first as it is
    if not isinstance(taken, dict) or not right.keys() <= taken.keys():
        return {"entries": sorted(taken) if isinstance(taken, dict) else type(taken).__name__}
    kinds = [type(taken[name]).__name__ for name in ("model", "optimizer", "scheduler") if not isinstance(taken[name], dict)]
    if kinds:
        return {"entries": sorted(taken), "kinds": kinds}
    seen = {"entries": sorted(taken), "kinds": []}
    params = [name for name, _ in model.named_parameters()]

    def alike(names):
        return all(name in taken["model"] and torch.equal(taken["model"][name], right["model"][name]) for name in names)

    state, states = taken["optimizer"].get("state", {}), right["optimizer"]["state"]
    seen |= {"types": types_in(taken["model"], state), "states": sum(map(len, state.values()))}
    if seen["states"] != sum(map(len, states.values())):
        return seen
    seen |= {"weights": alike(params), "buffers": alike(name for name in right["model"] if name not in params)}
    seen["averages"] = state.keys() == states.keys() and all(torch.equal(state[key][name], states[key][name])
                                                            for key in states for name in states[key] if name != "step")
    seen["counters"] = all(torch.equal(state[key]["step"], states[key]["step"]) for key in states.keys() & state.keys())
    seen["settings"] = (taken["optimizer"].get("param_groups") == right["optimizer"]["param_groups"]
                        and taken["scheduler"] == right["scheduler"])
    seen["random"] = isinstance(taken["random"], torch.Tensor) and torch.equal(taken["random"], right["random"])
    if not seen["random"]:
        return seen
    model, optimizer, scheduler = trained()
    model.load_state_dict(taken["model"])
    optimizer.load_state_dict(taken["optimizer"])
    scheduler.load_state_dict(taken["scheduler"])
    torch.set_rng_state(taken["random"])
    return seen | {"losses": steps(model, optimizer, scheduler, AT, STEPS), "untouched": want}


def only_model(state):
    return {name: value if name == "optimizer" else copy.deepcopy(value) for name, value in state.items()}


def only_optimizer(state):
    return {name: value if name == "model" else copy.deepcopy(value) for name, value in state.items()}


def parameters_alone(state):
    found = copy.deepcopy(state)
    found["model"] = dict(state["model"])
    for name in state["model"]:
        if not name.startswith("1.r") and not name.startswith("1.num"):
            found["model"][name] = state["model"][name].clone()
    return found


def rounded(state):
    found = copy.deepcopy(state)
    found["model"] = {name: value.bfloat16() if value.is_floating_point() else value for name, value in found["model"].items()}
    return found


def all_but_counters(state):
    found = copy.deepcopy(state)
    for key, entry in state["optimizer"]["state"].items():
        found["optimizer"]["state"][key]["step"] = entry["step"]
    return found


@exercise(
    "12.6", "Find the bug: a snapshot for a thread", minutes=25, difficulty=2,
    trials=[Trial(observe=taken_and_restored)],
    mistakes={
        "the bug": ({"copied": lambda state: state}, {"copied": dict},
                    {"copied": lambda state: {name: copy.copy(value) for name, value in state.items()}}),
        "rounded": ({"copied": rounded}, When("types", lambda got, want: "16" in str(got))),
        "no states": {"copied": lambda state: copy.deepcopy(state | {"optimizer": state["optimizer"] | {"state": {}}})},
        "optimizer shared": {"copied": only_model},
        "counters shared": {"copied": all_but_counters},
        "model shared": {"copied": only_optimizer},
        "buffers shared": {"copied": parameters_alone},
        "no random state": ({"random": lambda: torch.Generator().manual_seed(0).get_state()}, {"random": torch.initial_seed}),
        "seeded": {"after": lambda: torch.manual_seed(0)},
        "drawn": {"after": lambda: torch.rand(1)},
        "entry missing": {"leave": "scheduler"},
        "objects": {"state_of": lambda each: each},
    })
def snapshot(model, optimizer, scheduler, *, copied=copy.deepcopy, random=torch.get_rng_state, after=lambda: None, leave="",
             state_of=lambda each: each.state_dict()):
    """A state that does not change any more."""
    state = {"model": state_of(model), "optimizer": state_of(optimizer), "scheduler": state_of(scheduler), "random": random()}
    found = copied(state)
    after()
    found.pop(leave, None)
    return found
