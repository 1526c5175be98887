"""The checks of what chapter 05 asks for itself: 05.w1, the step of a slice, and 05.w2, what stage 1 saves."""

import torch

from .....layout.rankmap import Layout
from ....checks import FORMULAS, Trial, When, exercise
from ....checks.observers.stage_runs import WatchedComm

# 05.w1 ----------------------------------------------------------------------------------------------------------------

def slice_step(parameters, gradients, own, speed, gather, lr=0.1):
    """A step of SGD with momentum, of which this rank does its part.

    Afterwards every rank has all new parameters.

    parameters: (n,), the same on every rank.
    gradients: (n,), of which this rank's slice is summed over the ranks.
    own: that slice.
    speed: (length of the slice,), the momentum of this rank's parameters. It becomes
        0.9 times itself plus the gradient, and the parameters move against it, by
        `lr` times the speed.
    gather(tensor): every rank's slice of the tensor (n,) comes to all ranks. Collective.
    """
    speed.mul_(0.9).add_(gradients[own])
    parameters[own] -= lr * speed
    gather(parameters)


def stepped(answer, n):
    """Two steps on slices of n parameters."""
    comm = WatchedComm()
    rank, layout = comm.rank, Layout.build({"weight": (n,)}, comm.world_size)
    own, parameters = layout.slice(comm.rank), torch.arange(1.0, layout.padded + 1)
    speed, gathered, seen = torch.zeros(own.stop - own.start), [], {}

    def gather(tensor):
        gathered.append("parameters" if tensor is parameters else "another tensor")
        comm.all_gather(tensor, layout, "weight").wait()

    for step in (1, 2):
        gradients = torch.arange(1.0, layout.padded + 1) * step + 100.0 * rank
        gradients[own] = torch.arange(float(own.start), own.stop) * step + 1
        answer(parameters, gradients, own, speed, gather)
        mine, others = parameters[own].clone(), torch.cat([parameters[:own.start], parameters[own.stop:]])
        seen |= {f"gathers {step}": gathered.count("parameters"), f"others {step}": len(gathered) - gathered.count("parameters"),
                 f"mine {step}": mine, f"speed {step}": speed.clone(), f"all {step}": others}
    return seen


def gathered_first(parameters, gradients, own, speed, gather):
    gather(parameters)
    step_of(parameters, gradients, own, speed, lambda tensor: None)


def all_moved(parameters, gradients, own, speed, gather):
    whole = torch.zeros_like(parameters)
    whole[own] = speed
    whole = 0.9 * whole + gradients
    parameters -= 0.1 * whole
    speed.copy_(whole[own])


@exercise(
    "05.w1", "The step of a slice", minutes=10, difficulty=1, answer="slice_step", own=slice_step, timeout=15,
    trials=[Trial([(12,), (7,)], stepped, worlds=(2, 3), close=1e-5)],
    mistakes={
        "no gather": {"gathers": lambda gather, parameters, gradients: None},
        "gathered first": gathered_first,
        "gradients gathered": {"gathers": lambda gather, parameters, gradients: gather(gradients)},
        "both gathered": ({"gathers": lambda gather, parameters, gradients: (gather(gradients), gather(parameters))},
                          When("others 1", lambda got, want: got > want)),
        "everything moved": all_moved,
        "speed of before": {"before": True},
        "speed lost": {"keep": lambda speed, new: new},
        "no momentum": {"faster": lambda speed, gradient: gradient},
        "never slower": {"faster": lambda speed, gradient: speed + gradient},
        "averaged": {"faster": lambda speed, gradient: 0.9 * speed + 0.1 * gradient},
        "uphill": {"sign": -1},
        "first slice": {"place": lambda own: slice(0, own.stop - own.start)},
        "stuck": {"gathers": lambda gather, parameters, gradients: gather(parameters) if parameters[0] < 1 else None},
    })
def step_of(parameters, gradients, own, speed, gather, *, gathers=lambda gather, parameters, gradients: gather(parameters),
            faster=lambda speed, gradient: 0.9 * speed + gradient, keep=torch.Tensor.copy_, before=False, sign=1, place=lambda own: own):
    """before: the parameters move by the speed of the step before."""
    old = speed.clone()
    new = keep(speed, faster(speed, gradients[place(own)]))
    parameters[place(own)] -= sign * 0.1 * (old if before else new)
    gathers(gather, parameters, gradients)


# 05.w2 ----------------------------------------------------------------------------------------------------------------

def saved_percent(ranks, parameter, gradient, optimizer):
    """What percentage of a rank's model states stage 1 saves.

    It is compared with data parallel training.

    parameter, gradient, optimizer: the bytes of each for one parameter of the model.
    """
    whole = parameter + gradient + optimizer
    return 100 * (optimizer - optimizer / ranks) / whole


@exercise(
    "05.w2", "What stage 1 saves", minutes=6, difficulty=1, answer="saved_percent", own=saved_percent, replaces=FORMULAS,
    trials=[Trial([(2, 2, 2, 12), (4, 2, 2, 12), (64, 2, 2, 12), (2, 4, 4, 8), (8, 4, 4, 4), (1, 2, 2, 12), (8, 4, 4, 0)], close=1e-6)],
    mistakes={
        "kept": {"saved": lambda kept, whole: kept / whole},
        "share of 1": {"times": 1},
        "of the optimizer": {"whole": lambda p, g, o: o or 1},
        "all cut": {"kept": lambda n, p, g, o: (p + g + o) / n},
        "gradients too": {"kept": lambda n, p, g, o: p + (g + o) / n},
        "never more than all": {"kept": lambda n, p, g, o: p + g},
        "one rank's part": {"saved": lambda kept, whole: 1 - kept / whole, "kept": lambda n, p, g, o: p + g + o - o / n},
        "bytes": {"saved": lambda kept, whole: whole - kept, "times": 1},
        "always 16": {"whole": lambda p, g, o: 16, "kept": lambda n, p, g, o: 16 - (o - o / n)},
    })
def saved(ranks, parameter, gradient, optimizer, *, whole=lambda p, g, o: p + g + o, kept=lambda n, p, g, o: p + g + o / n,
          saved=lambda kept, whole: 1 - kept / whole, times=100):
    """The right share."""
    sizes = parameter, gradient, optimizer
    total = whole(*sizes)
    if whole(1, 1, 1) == 1:  # of the optimizer alone
        return times * (optimizer - optimizer / ranks) / total
    return float(times * saved(kept(ranks, *sizes), total))
