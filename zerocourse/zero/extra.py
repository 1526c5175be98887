"""The moments of a training at which something beside the stage may have to do: what unusual models and habits need.

A stage calls its extras and imports none: `shard` is handed them (see `extras`).
"""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.optim import Optimizer

from .buffers.buffer import FlatBuffer


class Extra:
    """One mechanism beside a stage. Every method does nothing until a subclass says otherwise.

    An extra that must know what only some ranks know asks a question: a name, and a list of flags in an order that all
    ranks share. The answer has a flag for whatever is true on any of them (see `passes.agreement`).
    """

    @classmethod
    def check(cls, model: nn.Module, optimizer: Optimizer | None, has_whole: bool) -> None:
        """Nothing has changed yet. Raise BadInput here for what cannot be sharded.   has_whole: has a rank whole parameters?"""

    def __init__(self, stage):
        """The stage is made, its buffers are filled, and the optimizer has not been handed over."""

    def before_take_over(self, optimizer: Optimizer) -> None:
        """The optimizer has the model's parameters."""

    def after_take_over(self, optimizer: Optimizer, shards: Mapping[nn.Parameter, list[nn.Parameter]]) -> None:
        """It has shards in their place; shards: by parameter, those of this rank."""

    def before_forward(self) -> None:
        """The model is about to compute."""

    def after_unshard(self, flat: FlatBuffer) -> None:
        """Stage 3 has gathered the buffer's parameters."""

    def before_reshard(self, flat: FlatBuffer) -> None:
        """Stage 3 is about to free them."""

    def after_reshard(self, flat: FlatBuffer) -> None:
        """It has freed them."""

    def before_backward(self) -> None:
        """A backward begins: no gradient has come yet."""

    def after_backward(self) -> None:
        """Autograd has brought all gradients of this backward; not all are reduced."""

    def tensors(self) -> dict[str, list[Tensor]]:
        """What it holds beside the buffers, by the ledger's kinds."""
        return {}

    def questions(self) -> dict[str, list[bool]]:
        """For the agreement at the end of a backward."""
        return {}

    def answered(self, answers: dict[str, list[bool]]) -> None:
        """What is true on any rank."""

    def check_step(self) -> None:
        """A step is asked for. Raise BadInput here for what must not be stepped: nothing has changed yet."""

    def before_step(self) -> None:
        """The gradients are reduced."""

    def after_step(self) -> None:
        """The parameters are new."""
