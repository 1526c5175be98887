"""The check of 9.5: an instrument that tells which tensor of a training was the first that is not finite."""

from functools import partial

import torch
from torch import nn

from .....measure.not_finite import tensors_in
from ....checks import Trial, exercise


class Both(nn.Module):
    """Returns two tensors and something that is none, as layers with a cache do."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x):
        return {"hidden": (self.inner(x), x / 0), "cache": None}


class Spoiled(nn.Module):
    """Its parts are finite; what it makes of them need not be."""

    def __init__(self, make):
        super().__init__()
        self.body, self.make = nn.Linear(2, 2), make

    def forward(self, x):
        return self.make(self.body(x))


class Indices(nn.Module):
    def forward(self, x):
        return x.argmax(-1)


def infinitely_steep(x):
    """0, and its gradient is infinite or NaN."""
    return (x - x.detach()).abs().sqrt().sum()


def layers():
    return nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 1))


def with_value(value, place=1):
    """The model of layers() with one bad weight, in its middle or at its end."""
    model = layers()
    layer = model[1][0] if place == 1 else model[place]
    layer.weight.data[0, 0] = value
    return model


def with_old_gradient():
    model = layers()
    model[0].weight.grad = torch.full_like(model[0].weight, torch.nan)
    return model


def frozen():
    model = layers()
    model[0].requires_grad_(False)
    return model


MODELS = {  # by what it is, each of them run forward and, where that is possible, backward
    "a model in which all is finite": layers, "a weight that is NaN": lambda: with_value(torch.nan),
    "a weight that is infinite": lambda: with_value(torch.inf),
    "finite layers, and a model that divides by 0": lambda: Spoiled(lambda x: x / 0),
    "an infinite gradient of a finite output": lambda: Spoiled(infinitely_steep),
    "two layers with infinite gradients": lambda: nn.Sequential(nn.Linear(2, 2), Spoiled(infinitely_steep)),
    "a layer that returns a dictionary with a tuple in it": Both,
    "a layer that returns a tensor and None": lambda: Spoiled(lambda x: (x, None)),
    "a tuple in a tuple": lambda: Spoiled(lambda x: (x, (x / 0,))),
    "a dictionary in a list": lambda: Spoiled(lambda x: [x, {"more": x / 0}]),
    "a layer that returns a tensor of no elements": lambda: Spoiled(lambda x: x[:0]),
    "large finite numbers in fp16": lambda: Spoiled(lambda x: torch.full((4,), 6e4, dtype=torch.float16)),
    "a NaN that an earlier step has left in a gradient": with_old_gradient,
    "a layer that returns integers": lambda: nn.Sequential(nn.Linear(2, 2), Indices()),
    "a model with frozen parameters": frozen, "two steps, the second one with an earlier NaN": lambda: with_value(torch.nan, 2)}


def step(model):
    loss = model(torch.ones(3, 2))
    if torch.is_tensor(loss) and loss.requires_grad:
        loss.sum().backward()


def watched(answer, what):
    """What the instrument says during a training, and after it."""
    model = MODELS[what]()
    instrument = answer(model)
    early = hooks_on(model)
    with instrument:
        step(model)
        if what.startswith("two steps"):
            model[0].weight.data[:] = torch.nan
            step(model)
    first = instrument.first
    hooks = hooks_on(model)
    for param in model.parameters():
        param.data[:] = torch.nan
    step(model)
    afterwards = instrument.first == first
    with instrument:
        again = instrument.first == first
    return {"first": first, "early": early, "hooks": hooks, "afterwards": afterwards, "again": again} | after_an_error(answer)


def hooks_on(model):
    hooks = sum(len(module._forward_hooks) for module in model.modules())
    return hooks + sum(len(param._backward_hooks or ()) for param in model.parameters())


def after_an_error(answer):
    """What is left on a model when the block ends by an exception, and whether somebody learns of that."""
    model, told = layers(), False
    try:
        with answer(model):
            raise ArithmeticError
    except ArithmeticError:
        told = True
    return {"error": told, "hooks after it": hooks_on(model)}


class Instrument:
    """The package's `NotFinite`, with knobs."""

    def __init__(self, model, knobs):
        self.model, self.knobs, self.first, self.handles = model, knobs, None, []
        if knobs["begins"] == "early":
            self.watch()

    def __enter__(self):
        if self.knobs["forgets"]:
            self.first = None
        if self.knobs["begins"] == "entered":
            self.watch()
        return self

    def watch(self):
        knobs = self.knobs
        for name, module in knobs["modules"](self.model):
            look = partial(self.look, "output", name or knobs["root"])
            self.handles.append(module.register_forward_hook(lambda _, __, out, look=look: look(out)))
        for name, param in self.model.named_parameters():
            if param.requires_grad and knobs["gradients"] == "as they come":
                self.handles.append(param.register_hook(partial(self.look, "gradient", name)))
            if param.requires_grad and knobs["gradients"] == "added up":
                look = partial(self.look, "gradient", name)
                self.handles.append(param.register_post_accumulate_grad_hook(lambda param, look=look: look(param.grad)))

    def __exit__(self, *exception):
        if exception[0] and self.knobs["at an error"] != "removes":
            return self.knobs["at an error"] == "silent" and self.remove()
        if self.knobs["gradients"] == "at the end":
            for name, param in self.model.named_parameters():
                if param.grad is not None:
                    self.look("gradient", name, param.grad)
        return self.remove() and False

    def remove(self):
        for handle in self.handles if self.knobs["removes"] else []:
            handle.remove()
        return True

    def look(self, what, name, value):
        looks = self.first is None or self.knobs["overwrites"]
        if looks and not all(self.knobs["fine"](tensor.detach()).all() for tensor in self.knobs["tensors"](value)):
            self.first = what, name


@exercise(
    "9.5", "An instrument of your own: the first NaN", minutes=50, difficulty=3, answer="FirstNotFinite",
    replaces=("zerocourse.measure.not_finite:NotFinite.__init__",),
    trials=[Trial([(what,) for what in MODELS], watched)],
    mistakes={
        "NaN alone": {"fine": lambda tensor: ~torch.isnan(tensor)},
        "the last": {"overwrites": True},
        "no gradients": {"gradients": "never"},
        "at the end": {"gradients": "at the end"},
        "added up": {"gradients": "added up"},
        "hooks stay": {"removes": False},
        "tensors alone": {"tensors": lambda value: [value] if torch.is_tensor(value) else []},
        "hooks stay after an error": {"on_error": "stays"},
        "silent": {"on_error": "silent"},
        "forgets": {"forgets": True},
        "hooks from the beginning": {"begins": "early"},
        "no name": {"root": ""},
        "children alone": {"modules": lambda model: [("", model), *model.named_children()]},
        "parts alone": {"modules": lambda model: [each for each in model.named_modules() if each[0]]},
    })
def first_not_finite(model, *, modules=lambda model: model.named_modules(), root="the model", gradients="as they come",
                     removes=True, overwrites=False, fine=torch.isfinite, tensors=tensors_in, on_error="removes", begins="entered",
                     forgets=False):
    """The instrument, ready to be entered."""
    return Instrument(model, {"modules": modules, "root": root, "gradients": gradients, "removes": removes,
                              "overwrites": overwrites, "fine": fine, "tensors": tensors, "at an error": on_error, "begins": begins,
                              "forgets": forgets})
