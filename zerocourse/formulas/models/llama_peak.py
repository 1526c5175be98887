"""The peak of a step with a Llama or one of its relatives, from what its layers keep. No torch."""

from ...errors import BadInput
from ..peak import decoder_peaks
from ..shares import positive
from ..states import ZERO, Convention
from .llama_shape import LlamaShape
from .token_costs import llama_token


def llama_peak_bytes(shape: LlamaShape, stage: int, ranks: int, micro_batch: int, seq: int, convention: Convention = ZERO,
                     recompute: str = "selective", accumulated: bool = False, offloaded: bool = False,
                     offloaded_parameters: bool = False) -> int:
    """`states_peak` with the activations of `token_costs`: attention is fused and keeps no scores.

    recompute: "selective", which is that, or "full", of every block.   The others are those of `states_peak`.
    Raises BadInput for "none".
    """
    if recompute == "none":
        raise BadInput("a Llama's attention is fused and keeps no scores here: recompute can be selective or full")
    again, ranks = recompute == "full", positive("ranks", ranks)
    token = llama_token(shape.width, shape.inner, shape.heads, shape.kv_heads * shape.head_features, shape.vocabulary,
                        convention.parameter, again, shape.heads * shape.head_features, shape.qk_norm)
    tokens, embedding = micro_batch * seq, shape.vocabulary * shape.width
    kept = token.input if again else token.layer
    # A tied embedding's gradient is there twice, and their sum.
    return max(decoder_peaks((embedding, shape.width + (0 if shape.tied else embedding)), shape.block, shape.layers, stage, ranks, convention,
                             kept * tokens, (token.layer + token.passing - kept) * tokens, token.loss * tokens,
                             convention.gradient * embedding * (3 if shape.tied else 1), accumulated, offloaded, offloaded_parameters))
