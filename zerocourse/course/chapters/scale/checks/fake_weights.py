"""The check of 25.4: a step of a model that fits nowhere, on tensors without memory."""

import torch
from torch import nn

from .....comm.torch_private import FakeTensor, FakeTensorMode
from ....checks import Trial, Wrong, exercise

MOST = 1 << 28  # elements: a layer that is larger is not built for real


class TooLarge(Exception):
    """Somebody asked for memory."""


class Layers(nn.Module):
    """Linear layers one after the other. tied: the last one is the first.   idle: there is one more, which is not used."""

    def __init__(self, width, layers, dtype, tied, idle):
        super().__init__()
        probe = torch.empty(1)
        if not isinstance(probe, FakeTensor) and not probe.is_meta and width * width * layers > MOST:
            raise TooLarge(f"{width * width * layers:,} parameters are asked for in real memory")
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False, dtype=dtype) for _ in range(layers))
        if tied:
            self.layers[-1].weight = self.layers[0].weight
        self.idle = nn.Linear(width, 1, dtype=dtype) if idle else None

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x.float().mean()


class Words(nn.Module):
    """It takes whole numbers, has two dtypes and a buffer, and one of its parameters is frozen."""

    def __init__(self, width):
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, dtype=torch.bfloat16)
        self.head.bias.requires_grad_(False)
        self.register_buffer("counts", torch.zeros(100))

    def forward(self, tokens):
        return self.norm(self.head(self.embedding(tokens)).bfloat16()).float().mean()


def weighed(answer, width, layers, dtype, tied, idle):
    """What it says of a model."""
    kind = getattr(torch, dtype)

    def make():
        return Words(width) if kind == torch.int64 else Layers(width, layers, kind, tied, idle)

    try:
        found = answer(make, (3, width), kind)
    except TooLarge as error:
        raise Wrong(f"a model was built for real: {error}. Build it inside of FakeTensorMode", "real") from None
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise Wrong("it must return two numbers, the bytes of the parameters and those of the gradients")
    return {"parameters": found[0], "gradients": found[1], "fake mode": isinstance(torch.empty(1), FakeTensor)}


def every_parameter(model):
    """A parameter as often as modules have it."""
    return [param for module in model.modules() for param in module.parameters(recurse=False)]


@exercise(
    "25.4", "Weigh what fits nowhere", minutes=20, difficulty=2,
    trials=[Trial([(4, 2, "float32", False, False), (4, 3, "bfloat16", False, False), (4, 3, "float32", True, False),
                   (4, 2, "float32", False, True), (4, 1, "int64", False, False),
                   (100_000, 100, "bfloat16", False, False)], weighed)],
    mistakes={
        "elements": {"size": lambda tensor: tensor.numel()},
        "fp32 always": {"size": lambda tensor: 4 * tensor.numel()},
        "dtype of the input": lambda make, shape, dtype: weigh(make, shape, dtype, size=lambda tensor: tensor.numel() * dtype.itemsize),
        "buffers": {"params": lambda model: [*model.parameters(), *model.buffers()]},
        "tied twice": {"params": every_parameter},
        "no backward": {"backward": False},
        "as many gradients": {"grads": lambda params: params},
        "one layer": {"params": lambda model: list(model.parameters())[:1]},
        "real": {"mode": None},
    })
def weigh(make, shape, dtype, *, size=lambda tensor: tensor.nbytes, params=lambda model: list(model.parameters()), backward=True,
          grads=lambda params: [param.grad for param in params if param.grad is not None], mode=FakeTensorMode):
    """Bytes of parameters and of gradients after a backward."""
    if mode is None:
        model = make()
        return sum(map(size, model.parameters())), 0
    with mode():
        model = make()
        loss = model(torch.zeros(shape, dtype=dtype))
        if backward:
            loss.backward()
        found = params(model)
        return sum(map(size, found)), sum(map(size, grads(found)))
