"""The check of 6.3: the hook that lays a gradient into its bucket, and lets its memory go."""

import gc
import weakref

import torch
from torch import nn

from .....layout.rankmap import Layout
from ....checks import Trial, When, exercise
from ....checks.observers.stage_probe import numbers

WORLD_SIZE = 2
WATCHED = {"first": (2, 2), "second": (2, 2), "third": (2, 2)}  # alike, so that a wrong place raises nothing


def hooked_on_a_rank(answer):
    """The bucket and the parameters' gradients after each of two backwards."""
    params = {name: nn.Parameter(torch.full(shape, 7.0 + i)) for i, (name, shape) in enumerate(WATCHED.items())}
    layout, fresh, after = Layout.build(WATCHED, WORLD_SIZE), [], []
    bucket, before = torch.zeros(layout.padded), {name: param.detach().clone() for name, param in params.items()}
    for param in params.values():  # before the answer's hook, while the gradient is there
        param.register_post_accumulate_grad_hook(lambda param: fresh.append(weakref.ref(param.grad)))
    answer(params, bucket, layout, WORLD_SIZE)
    for micro in range(2):
        slopes = {name: numbers(layout.padded, micro)[layout.param_slice(name)] for name in WATCHED}
        sum((param * slopes[name].view(param.shape)).sum() for name, param in params.items()).backward()
        gc.collect()
        left = {name: param.grad.sum().item() for name, param in params.items() if param.grad is not None}
        after.append({"bucket": bucket.clone(), "left": left,
                      "alive": sum(gradient() is not None for gradient in fresh)})
    return {"moved": ", ".join(name for name, param in params.items() if not torch.equal(param, before[name])),
            "bucket after the first": after[0]["bucket"], "kept": ", ".join(after[0]["left"]),
            "bucket after the second": after[1]["bucket"], "alive": after[0]["alive"], "left": after[0]["left"]}


def divided_later(of):
    """Gradients as they are, and then a division of what is in the bucket."""
    def add(bucket, place, gradient, world_size):
        bucket[place] += gradient
        of(bucket, place).div_(world_size)
    return {"add": add}


def hook_on_the_tensor(params, bucket, layout, world_size):
    for name, param in params.items():
        def move(gradient, param=param, name=name):
            bucket[layout.param_slice(name)] += gradient.flatten() / world_size
            param.grad = None
        param.register_hook(move)


@exercise(
    "6.3", "The hook", minutes=20, difficulty=2,
    replaces=("zerocourse.zero.buffers.buffer:FlatBuffer.*", "zerocourse.zero.buffers.gradients:GradientBuffer.*", "zerocourse.zero.hooks:*"),
    trials=[Trial(observe=hooked_on_a_rank)],
    mistakes={
        "weights changed": ({"free": lambda param: param.data.zero_()}, When("moved")),
        "nothing": {"add": lambda bucket, place, gradient, world_size: bucket[place] + gradient / world_size},
        "weights": ({"take": lambda param: param.detach()}, {"take": lambda param: param.detach() * WORLD_SIZE}),
        "not divided": {"take": lambda param: param.grad * WORLD_SIZE},
        "multiplied": {"take": lambda param: param.grad * WORLD_SIZE**2},
        "loop's variable": {"place": lambda layout, name: layout.param_slice("third")},
        "own shape": {"add": lambda bucket, place, gradient, world_size: bucket[place].add_(gradient.view(2, 2))},
        "front": {"place": lambda layout, name: slice(0, 4)},
        "first alone": {"watched": lambda params: dict([*params.items()][:1])},
        "last alone": {"watched": lambda params: dict([*params.items()][-1:])},
        "tensor's hook": hook_on_the_tensor,
        "not freed": ({"free": lambda param: None}, {"free": lambda param: param.grad.zero_()}),
        "overwritten": {"add": lambda bucket, place, gradient, world_size: bucket[place].copy_(gradient / world_size)},
        "bucket divided": (divided_later(lambda bucket, place: bucket[place]),
                           divided_later(lambda bucket, place: bucket)),
        "gradients remembered": {"remembered": []},
    })
def watch(params, bucket, layout, world_size, *, watched=dict, take=lambda param: param.grad,
          place=lambda layout, name: layout.param_slice(name),
          add=lambda bucket, place, gradient, world_size: bucket[place].add_(gradient / world_size),
          free=lambda param: setattr(param, "grad", None), remembered=None):
    """Register the hooks."""
    for name, param in watched(params).items():
        def move(param, name=name):
            if remembered is not None:
                remembered.append(param.grad)
            add(bucket, place(layout, name), take(param).reshape(-1), world_size)
            free(param)

        param.register_post_accumulate_grad_hook(move)
