"""The check of 6.3: the hook that lays a gradient into its bucket, and lets its memory go."""

import gc
import weakref

import torch
from torch import nn

from .....layout.rankmap import Layout
from ....checks.exercise import exercise
from ....checks.harness import When
from ....checks.observers.stage_probe import numbers
from ....checks.trace import Trial

WORLD_SIZE = 2
WATCHED = {"first": (2, 2), "second": (2, 2), "third": (2, 2)}  # alike, so that a wrong place raises nothing


def hooked_on_a_rank(answer):
    """The bucket and the parameters' gradients after each of two backwards.

    moved: after a backward the parameters {got} have other values.
    bucket after the *: the {what} backward is {got}, and {want} is right.
    kept: after the first backward {got} still have their `.grad`, so each gradient is there twice.
    alive: after the first backward the memory of {got} gradients is still alive, although their `.grad` is None.
    left: after the first backward the gradients that are left at the parameters are {got}.
    """
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
    "6.3", "The hook", minutes=20, difficulty=2, answer="watch",
    replaces=("zerocourse.zero.buffer:FlatBuffer.collect", "zerocourse.zero.hooks:*"),
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
    """Register the hooks.

    weights changed: you changed the weights. The hook is given the parameter, and what is wanted is in its `.grad`.
    nothing: Nothing came into the bucket: is each hook registered, and does it write in place?
    weights: You put the weights into the bucket: the hook is given the parameter, and the gradient is its `.grad`.
    not divided: You put in the gradient as it is: divided by the number of ranks, the sum over the ranks is the
        average.
    multiplied: You multiplied by the number of ranks: divided by it, the sum over the ranks is the average.
    loop's variable: Every hook wrote to the place of the last parameter: a function made in a loop reads the loop's
        variable when it is called. Bind it, as in `lambda param, name=name: ...`.
    own shape: Do the shapes agree? A place in the bucket is flat: lay the gradient in a row, with `reshape(-1)`, or
        view the place in the parameter's shape.
    front: Every hook wrote to the front of the bucket: the place of a parameter is `layout.param_slice(name)`.
    first alone: Only the first parameter has a hook: does the loop end after one turn?
    last alone: Only the last parameter has a hook: is it registered inside of the loop?
    tensor's hook: `register_hook` calls its function before the gradient is in `.grad`, which cannot be freed yet: use
        `register_post_accumulate_grad_hook`.
    not freed: Set it to None once it is in the bucket.
    overwritten: You overwrote what the first backward had left: a second micro-batch adds to it.
    bucket divided: You divided what was in the bucket already: divide the gradient alone, before it is added.
    gradients remembered: somebody keeps them, or a view of them. Keep nothing beyond the hook.
    right: each gradient is in its place as soon as it is complete, divided, added, and nowhere else.
    """
    for name, param in watched(params).items():
        def move(param, name=name):
            if remembered is not None:
                remembered.append(param.grad)
            add(bucket, place(layout, name), take(param).reshape(-1), world_size)
            free(param)

        param.register_post_accumulate_grad_hook(move)
