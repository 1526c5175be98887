"""The linear layer whose inputs are cut among the ranks: each rank computes one term of the output, and g adds them up.

There is no class for the other kind, a layer whose *outputs* are cut: that is an `nn.Linear` with fewer rows.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from ...comm import Comm
from .regions import reduce_out, scatter_out


class RowLinear(nn.Module):
    """weight (out, in/t): this rank's columns.   bias (out,): whole on every rank, added once, after the sum.

    scatter: each rank keeps T/t tokens of the sum (sequence parallelism); else all of it.
    """

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, comm: Comm, unit: str, scatter: bool):
        super().__init__()
        self.weight, self.bias, self.comm, self.unit, self.scatter = weight, bias, comm, unit, scatter

    def forward(self, x_BTi: Tensor) -> Tensor:
        complete = scatter_out if self.scatter else reduce_out
        y_BTC = complete(F.linear(x_BTi, self.weight), self.comm, self.unit)
        return y_BTC if self.bias is None else y_BTC + self.bias

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]} of the inputs, {self.weight.shape[0]} outputs"
