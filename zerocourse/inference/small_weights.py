"""Weights in 8 or 4 bits, for a model that only writes.

A step that decodes waits for its weights, so half or a quarter of the bytes can be twice or four times the speed, where a kernel
reads them as they are. On a GPU one does, `kernels.int8_product`: for weights of 8 bits, while one token of one request is computed. In all other
forwards a layer makes its weights anew: that saves memory and shows what the rounding does to the text, and it saves no time.

256 neighbours share a scale, as in `parallel.plusplus.blocks`, so a weight takes 1 + 1/64 or 1/2 + 1/64 bytes, and is off by half a
scale at most. Embeddings, norms, biases and a head that is the embedding stay as they are.
Sources: Dettmers et al. 2022, arXiv 2208.07339; Frantar et al. 2022, arXiv 2210.17323, who also choose the rounding by data.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import BadInput
from ..parallel.plusplus.blocks import BLOCK, LARGEST, Quantized, dequantize, has_kernels, quantize


class SmallLinear(nn.Module):
    """A linear layer with weights in `bits` bits. x (..., in) -> (..., out), in the dtype of x. It cannot be trained.

    kernel: may `kernels.int8_product` read weights of 8 bits as they are, for a single row x whose gradient nobody wants? None: on a GPU,
        where triton is. It takes layers whose inputs are a multiple of 256, so that each row has scales of its own.
    """

    payload: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, bits: int, kernel: bool | None = None):
        super().__init__()
        self.bits, self.kernel, self.shape, self.out_features = bits, kernel, linear.weight.shape, linear.out_features
        kept = quantize(linear.weight.detach().reshape(1, -1), bits)
        self.register_buffer("payload", kept.payload)
        self.register_buffer("scales", kept.scales)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    def weight(self) -> Tensor:
        """(out, in) in fp32, as it is computed with."""
        return dequantize(Quantized(self.payload, self.scales), self.shape.numel(), self.bits).view(self.shape)

    def by_kernel(self, x: Tensor) -> bool:
        wanted = has_kernels(x) if self.kernel is None else self.kernel
        one_row = x.numel() == self.shape[1] and self.shape[1] % BLOCK == 0
        return wanted and self.bits == 8 and one_row and not (x.requires_grad and torch.is_grad_enabled())

    def forward(self, x: Tensor) -> Tensor:
        if self.by_kernel(x):
            from ..kernels.int8_product import int8_product

            out_O = int8_product(self.payload, self.scales, x)
            return (out_O if self.bias is None else out_O + self.bias).to(x.dtype).view(*x.shape[:-1], -1)
        return F.linear(x, self.weight().to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


@torch.no_grad()
def shrink_weights(model: nn.Module, bits: int = 8, kernel: bool | None = None) -> nn.Module:
    """Put a `SmallLinear` in the place of each linear layer, in place. Returns the model.   kernel: as there.

    Raises BadInput for other numbers of bits, for a kernel where the weights have not 8, for a model that is sharded, and for one without
    linear layers.
    """
    if bits not in LARGEST:
        raise BadInput(f"bits is {bits}: weights can be kept in {' or '.join(map(str, LARGEST))}")
    if kernel and bits != 8:
        raise BadInput(f"kernel is True and bits is {bits}: the kernel reads weights of 8 bits")
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
