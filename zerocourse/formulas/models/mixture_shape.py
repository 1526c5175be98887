"""The shape of a mixture of experts (Mixtral, Qwen 3 MoE), and what its ranks hold and send. Numbers alone: nothing here imports torch.

It is a Llama whose feed-forward part is there E times in each layer, behind a router. With `over` ranks that have different
experts of a layer, N/over ranks have the same ones, and ZeRO cuts their states among these; all else it cuts among N.
"""

from typing import NamedTuple

from ...errors import BadInput
from ..states import ZERO, Convention, ModelStates, model_states
from ..volumes import sent_bytes
from .llama_shape import LlamaShape

TRIPS = 4  # of a row: to its expert and back, and the same for the gradients


class MixtureShape(NamedTuple):
    """dense: with one expert in each layer.   experts: of a layer, E.   k: of these, how many a token takes."""

    dense: LlamaShape
    experts: int
    k: int

    @property
    def tokens(self) -> int:
        """Of a sample, by default."""
        return self.dense.tokens

    @property
    def expert(self) -> int:
        """Parameters of one expert: three matrices."""
        return 3 * self.dense.width * self.dense.inner

    @property
    def expert_params(self) -> int:
        """Of all experts of all layers."""
        return self.dense.layers * self.experts * self.expert

    @property
    def params(self) -> int:
        """Parameters of the model."""
        return self.with_experts(self.experts)

    @property
    def used(self) -> int:
        """Parameters that one token uses."""
        return self.with_experts(self.k)

    def with_experts(self, count: int) -> int:
        """Parameters with so many experts in each layer; the router is that of all."""
        return self.dense.params + self.dense.layers * ((count - 1) * self.expert + self.experts * self.dense.width)


def mixture_states(shape: MixtureShape, stage: int, ranks: int, over: int = 1, convention: Convention = ZERO) -> ModelStates:
    """Bytes on the rank that holds most. Raises BadInput where `over` does not divide the experts, and the ranks."""
    check_over(shape, ranks, over)
    rest = model_states(shape.params - shape.expert_params, stage, ranks, convention)
    return rest + model_states(shape.expert_params // over, stage, ranks // over, convention)


def mixture_sent_bytes(shape: MixtureShape, stage: int, ranks: int, over: int, tokens: int, accumulation: int = 1,
                       convention: Convention = ZERO) -> int:
    """Bytes that a rank sends in a step, where all experts are equally busy.   tokens: of a micro-batch, on a rank."""
    check_over(shape, ranks, over)
    states = (sent_bytes(shape.params - shape.expert_params, stage, ranks, accumulation, convention=convention)
              + sent_bytes(shape.expert_params // over, stage, ranks // over, accumulation, convention=convention))
    rows = TRIPS * shape.dense.layers * shape.k * tokens * accumulation * (over - 1) // over
    return states + rows * shape.dense.width * convention.parameter


def check_over(shape: MixtureShape, ranks: int, over: int) -> None:
    if shape.experts % over or ranks % over:
        raise BadInput(f"{over} ranks cannot share {shape.experts} experts among {ranks} ranks: their number must divide both")
