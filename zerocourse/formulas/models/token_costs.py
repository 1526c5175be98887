"""What one token costs in a GPT-2, a Llama and a mixture of experts: bytes that are kept, and bytes that operations move. No torch.

These are counts of the course's GPT-2 and of Hugging Face's Llama as they run operation by operation, with fused
attention and without dropout. Norms of a Llama compute in fp32, whatever the parameters are. What is kept is counted
from the operations; TRAFFIC was fitted to simulations of shapes from 64 to 256 in width. tests/planning/test_planning.py holds
both beside the simulation.
"""

from dataclasses import dataclass, replace

# Bytes that operations other than matrix products read and write, forward and backward together, by (family, bytes of
# an element, recompute): in each layer per unit of width, of the feed-forward part, and of the width of keys; outside
# of layers per word of the vocabulary, and per unit of width.
TRAFFIC = {("gpt2", 2, False): (143, 0, 0, 50, 0), ("gpt2", 2, True): (173, 0, 0, 50, 0),
           ("gpt2", 4, False): (287, 0, 0, 43.5, 0), ("gpt2", 4, True): (347, 0, 0, 43.5, 0),
           ("llama", 2, False): (376, 36, 65, 48.3, 131), ("llama", 2, True): (482, 54, 93, 48.3, 131),
           ("llama", 4, False): (472, 72, 130, 40.7, 121), ("llama", 4, True): (596, 108, 186, 40.7, 121)}


@dataclass(frozen=True)
class TokenCosts:
    """Bytes of one token.

    layer: what a layer keeps for its backward.   input: of the layer's input alone, which is kept with recomputation.
    passing: the most that is there for a moment while a layer computes its backward.   loss: what is there at the loss.
    moved_layer, moved_loss: what operations other than matrix products read and write, in a layer and outside.
    """

    layer: int
    input: int
    passing: int
    loss: int
    moved_layer: float
    moved_loss: float


def gpt2_token(width: int, heads: int, vocabulary: int, element: int, recompute: bool) -> TokenCosts:
    """element: bytes of a number, 2 or 4."""
    per_width, _, _, per_word, _ = TRAFFIC["gpt2", element, recompute]
    return TokenCosts(16 * element * width + 4 * heads, element * width, 10 * element * width,
                      12 * vocabulary + 2 * element * width, per_width * width, per_word * vocabulary)


def llama_token(width: int, inner: int, heads: int, kv_width: int, vocabulary: int, element: int,
                recompute: bool, q_width: int | None = None, qk_norm: bool = False) -> TokenCosts:
    """inner: the width of the feed-forward part.   kv_width: that of the keys, and of the values, of all their heads.
    q_width: that of the queries; None: `width`.   qk_norm: queries and keys pass norms of their own."""
    q_width = q_width or width
    norm = (4 + 2 * element) * width  # the input in fp32, the quotient and the product
    per_width, per_inner, per_kv, per_word, outside = TRAFFIC["llama", element, recompute]
    norms = 2 * norm + (qk_norm and (4 + 2 * element) * (q_width + kv_width))
    return TokenCosts(norms + 2 * element * (q_width + kv_width + 2 * inner) + 4 * heads + 8, element * width,
                      2 * element * inner + 4 * width + 8, 12 * vocabulary + norm + 12,
                      per_width * width + per_inner * inner + per_kv * kv_width, per_word * vocabulary + outside * width)


def mixture_token(width: int, inner: int, heads: int, kv_width: int, vocabulary: int, element: int, recompute: bool, q_width: int,
                  qk_norm: bool, experts: int, k: int, travels: bool) -> TokenCosts:
    """A Llama's, whose feed-forward part is that of k experts, each on a copy of the token.   travels: experts are on other ranks, too."""
    llama = llama_token(width, inner, heads, kv_width, vocabulary, element, recompute, q_width, qk_norm)
    # Of a pair of a token and its expert: two products and their parts, the token before and after, its weight and its places.
    pair = 4 * element * inner + (3 + travels) * element * width + 28 + element + travels * (16 + element)
    layer = llama.layer - 4 * element * inner + k * pair + 4 * experts + 4
    _, per_inner, *_ = TRAFFIC["llama", element, recompute]
    moved = llama.moved_layer + (k - 1) * per_inner * inner + k * element * width * (34 + 8 * travels) * (4 if recompute else 3) / 3
    return replace(llama, layer=layer, moved_layer=moved)
