"""The check of 13.3: hooks that keep activations in bf16."""

import torch
from torch import nn

from .....activations.keeping import storage_of
from .....measure.ledger import Ledger
from ....checks import Trial, Wrong, exercise

WIDE = 96


class Small(nn.Module):
    """Tokens, a LayerNorm that is frozen, two linear layers and a tanh, and two of 8 and 64 numbers at the end. The first layer's weight is
    detached, and the second's is a slice."""

    def __init__(self, dtype):
        super().__init__()
        self.embed = nn.Embedding(600, WIDE, dtype=dtype)
        self.norm = nn.LayerNorm(WIDE, dtype=dtype).requires_grad_(False)
        self.up, self.both = nn.Linear(WIDE, WIDE, dtype=dtype), nn.Linear(WIDE, 2 * WIDE, dtype=dtype)

    def forward(self, tokens):
        x = torch.tanh(nn.functional.linear(self.norm(self.embed(tokens)), self.up.weight.detach(), self.up.bias))
        x = nn.functional.linear(x, self.both.weight[WIDE:], self.both.bias[WIDE:])
        return sum(torch.tanh(part).square().sum() for part in x.mean((0, 1)).split([8, 64, 24])[:2])


def kept_and_back(answer, dtype):
    """A forward under the hooks, and its backward."""
    torch.manual_seed(0)
    model, tokens = Small(getattr(torch, dtype)), torch.arange(500, 500 + WIDE).view(6, 16)  # so many that activations are like weights in shape
    before = [param.detach().clone() for param in model.parameters()]
    made = answer(model)
    if not isinstance(made, tuple) or len(made) != 2 or not all(map(callable, made)):
        raise Wrong(f"it returned {type(made).__name__}, and (pack, unpack) is wanted, two functions", "no hooks")
    with Ledger(model) as ledger:
        ledger.track(tokens)
        empty = ledger.now().rest
        with torch.autograd.graph.saved_tensors_hooks(*made):
            loss = model(tokens)
        kept = ledger.now().rest - empty - loss.nbytes
        seen = {"kept": 0 if dtype == "bfloat16" else kept, "backward": "ends"}  # a copy in bf16 is in bf16, too
        try:
            loss.backward()
        except RuntimeError as error:
            return seen | {"backward": "raises " + type(error).__name__}
        seen["gradients"] = torch.cat([param.grad.flatten() for param in model.parameters() if param.grad is not None])
        model.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(*made):
            loss = model(tokens)
        del loss
        seen["left"] = ledger.now().rest - empty - seen["gradients"].nbytes
    return seen | {"weights": all(map(torch.equal, before, model.parameters()))}


def shares_memory(tensor, model):
    return storage_of(tensor) in {storage_of(param) for param in model.parameters()}


@exercise(
    "13.3", "Keep it in half", minutes=30, difficulty=2,
    replaces=("zerocourse.activations.keeping:keeping",),
    trials=[Trial([("float32",), ("float64",), ("bfloat16",)], kept_and_back, close={"gradients": 1e-9})],
    mistakes={
        "weights": {"is_weight": lambda tensor, model: False},
        "views of weights": ({"is_weight": lambda tensor, model: any(tensor is param for param in model.parameters())},
                             {"is_weight": lambda tensor, model: any(each is param for param in model.parameters()
                                                                     for each in (tensor, tensor._base))}),
        "frozen ones": {"is_weight": lambda tensor, model: storage_of(tensor) in {
            storage_of(param) for param in model.parameters() if param.requires_grad}},
        "slices of weights": {"is_weight": lambda tensor, model: tensor.data_ptr() in {param.data_ptr() for param in model.parameters()}},
        "not inverse": ({"back": lambda packed, dtype: packed}, {"back": lambda packed, dtype: packed.flatten().to(dtype)}),
        "always fp32": {"back": lambda packed, dtype: packed.float()},
        "own input": ({"as_it_is": lambda tensor: tensor}, {"apart": lambda tensor: tensor}),
        "copies": {"as_it_is": lambda tensor: tensor.clone()},
        "small ones too": {"least": 0},
        "64 as well": {"least": 65},
        "integers": {"kind": lambda tensor: True},
        "fp32 alone": {"kind": lambda tensor: tensor.dtype == torch.float32},
        "nothing": {"least": 1 << 40},
        "fp16": {"half": torch.float16},
    })
def half_hooks(model, *, is_weight=shares_memory, back=lambda packed, dtype: packed.to(dtype), as_it_is=torch.Tensor.detach,
               least=64, kind=torch.Tensor.is_floating_point, half=torch.bfloat16, apart=torch.Tensor.detach):
    """(pack, unpack)."""
    def pack(tensor):
        if not kind(tensor) or tensor.numel() < least or is_weight(tensor, model):
            return as_it_is(tensor), None
        return apart(tensor).to(half), tensor.dtype

    def unpack(packed):
        tensor, dtype = packed
        return tensor if dtype is None else back(tensor, dtype)

    return pack, unpack
