"""Weights in 8 or 4 bits, for a model that only writes.

A step that decodes waits for its weights, so half or a quarter of the bytes can be twice or four times the speed, where a kernel
reads them as they are. Here a layer makes its weights anew in each forward: that saves memory and shows what the rounding does to the
text, and it saves no time.

256 neighbours share a scale, as in `parallel.plusplus.blocks`, so a weight takes 1 + 1/64 or 1/2 + 1/64 bytes, and is off by half a
scale at most. Embeddings, norms, biases and a head that is the embedding stay as they are.
Sources: Dettmers et al. 2022, arXiv 2208.07339; Frantar et al. 2022, arXiv 2210.17323, who also choose the rounding by data.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import BadInput
from ..parallel.plusplus.blocks import LARGEST, Quantized, dequantize, quantize


class SmallLinear(nn.Module):
    """A linear layer with weights in `bits` bits. x (..., in) -> (..., out), in the dtype of x. It cannot be trained."""

    payload: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, bits: int):
        super().__init__()
        self.bits, self.shape, self.out_features = bits, linear.weight.shape, linear.out_features
        kept = quantize(linear.weight.detach().reshape(1, -1), bits)
        self.register_buffer("payload", kept.payload)
        self.register_buffer("scales", kept.scales)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    def weight(self) -> Tensor:
        """(out, in) in fp32, as it is computed with."""
        return dequantize(Quantized(self.payload, self.scales), self.shape.numel(), self.bits).view(self.shape)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight().to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


@torch.no_grad()
def shrink_weights(model: nn.Module, bits: int = 8) -> nn.Module:
    """Put a `SmallLinear` in the place of each linear layer, in place. Returns the model.

    Raises BadInput for other numbers of bits, for a model that is sharded, and for one without linear layers.
    """
    if bits not in LARGEST:
        raise BadInput(f"bits is {bits}: weights can be kept in {' or '.join(map(str, LARGEST))}")
    if hasattr(model, "zero"):
        raise BadInput("this model is sharded, and its weights are being trained: shrink a copy that is whole")
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    found = {name: module for name, module in model.named_modules() if type(module) is nn.Linear and module.weight not in tables}
    if not found:
        raise BadInput(f"{type(model).__name__} has no linear layer whose weights are its own")
    for name, linear in found.items():
        model.set_submodule(name, SmallLinear(linear, bits))
    return model


def weights_bytes(model: nn.Module) -> int:
    """Bytes of the parameters and buffers of a model, each counted once."""
    return sum(tensor.nbytes for tensor in {*model.parameters(), *model.buffers()})
