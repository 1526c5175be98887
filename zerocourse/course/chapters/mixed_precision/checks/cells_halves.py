"""The checks of what chapter 10 asks for itself: 10.w1, the life of a loss scale, and 10.w2, an update of a master weight."""

import torch

from ....checks import Trial, exercise

# 10.w1 ----------------------------------------------------------------------------------------------------------------

def scale_after(scale, good, overflow, window):
    """The loss scale of the next step, and the good steps since it changed.

    scale: of the step that is over.   good: how many steps before this one were good, in
        a row, since the scale changed last.
    overflow: was a gradient of this step infinite or NaN?
    window: so many good steps in a row double the scale; an overflow halves it.
    Returns (scale, good).
    """
    if overflow:
        return scale / 2, 0
    if good + 1 == window:
        return 2 * scale, 0
    return scale, good + 1


RUNS = [("....", 8.0, 2), ("x..x.", 8.0, 2), (".x..x....", 16.0, 3), ("xxx.", 64.0, 4), ("...", 1.0, 1)]


def life_of(answer, steps, scale, window):
    """The scale and the count after each step of a script."""
    state, states = (scale, 0), []
    for step in steps:
        state = answer(*state, step == "x", window)
        is_pair = isinstance(state, (tuple, list)) and len(state) == 2
        states.append(tuple(state) if is_pair else state)
        if not is_pair:
            break
    return {"kind": "two numbers" if is_pair else f"a {type(state).__name__}", "scales": [each[0] for each in states if is_pair],
            "good": [each[1] for each in states if is_pair]}


@exercise(
    "10.w1", "The life of a loss scale", minutes=8, difficulty=1, answer="scale_after", own=scale_after,
    trials=[Trial(RUNS, life_of)],
    mistakes={
        "good kept": {"interrupted": lambda good: good},
        "rises on": {"after_rise": lambda good: good, "rises": lambda good, window: good >= window},
        "late": {"rises": lambda good, window: good > window},
        "early": {"rises": lambda good, window: good >= window - 1},
        "every good step": {"rises": lambda good, window: True},
        "never rises": {"rises": lambda good, window: False},
        "doubled on overflow": {"falls": lambda scale: 2 * scale},
        "never falls": {"falls": lambda scale: scale},
        "overflow counted": {"interrupted": lambda good: 1},
        "scale alone": {"returns": lambda scale, good: scale},
    })
def living(scale, good, overflow, window, *, falls=lambda scale: scale / 2, interrupted=lambda good: 0,
           rises=lambda good, window: good == window, after_rise=lambda good: 0, returns=lambda scale, good: (scale, good)):
    """The right pair."""
    if overflow:
        return returns(falls(scale), interrupted(good))
    good += 1
    return returns(2 * scale, after_rise(good)) if rises(good, window) else returns(scale, good)


# 10.w2 ----------------------------------------------------------------------------------------------------------------

def apply_update(weight, master, update):
    """Move a weight by an update, in place, and lose nothing of it.

    weight: (n,) bf16, with which the model computes. The model holds this tensor.
    master: (n,) fp32, the same weight with all of its digits.
    update: (n,) fp32, what the optimizer subtracts in this step.
    """
    master -= update
    weight.copy_(master)


STEPS = 24


def moved_by(answer, size):
    """A weight and its master after one update, and after many."""
    seed = torch.Generator().manual_seed(7)
    master = torch.tensor([1.0, 1.003, -0.7, 0.1])
    weight, seen = master.bfloat16(), {}
    spoiled = False
    for number in range(1, STEPS + 1):
        update = size * torch.rand(4, generator=seed)
        before = update.clone()
        answer(weight, master, update)
        spoiled |= not torch.equal(update, before)
        if number in (1, STEPS):
            what = f"{number} updates" if number > 1 else "the first update"
            seen[f"master {what}"], seen[f"weight {what}"] = master.double().clone(), weight.double().clone()
    return {**seen, "spoiled": spoiled}


def rounded_back(weight, master):
    weight.copy_(master)
    master.copy_(weight)


def shown_before(weight, master, update):
    weight.copy_(master)
    master -= update


@exercise(
    "10.w2", "An update of a master weight", minutes=8, difficulty=1, answer="apply_update", own=apply_update,
    trials=[Trial([(0.002,), (0.03,)], moved_by, close=1e-6)],
    mistakes={
        "weight alone": lambda weight, master, update: weight.sub_(update),
        "both apart": lambda weight, master, update: (master.sub_(update), weight.sub_(update)),
        "not shown": {"show": lambda weight, master: None},
        "rounded back": {"show": rounded_back},
        "update in bf16": {"move": lambda master, update: master.sub_(update.bfloat16())},
        "uphill": {"move": lambda master, update: master.add_(update)},
        "one step late": shown_before,
        "from the weight": lambda weight, master, update: weight.copy_(master.copy_(weight.float() - update)),
    })
def applying(weight, master, update, *, move=lambda master, update: master.sub_(update),
             show=lambda weight, master: weight.copy_(master)):
    """The right update."""
    move(master, update)
    show(weight, master)
