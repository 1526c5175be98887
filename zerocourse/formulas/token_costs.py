"""What one token costs in a GPT-2 and in a Llama: bytes that are kept, and bytes that operations move. No torch.

These are counts of the course's GPT-2 and of Hugging Face's Llama as they run operation by operation, with fused
attention and without dropout. Norms of a Llama compute in fp32, whatever the parameters are. What is kept is counted
from the operations; TRAFFIC was fitted to simulations of shapes from 64 to 128 in width. tests/test_planning.py holds
both beside the simulation.
"""

from dataclasses import dataclass

# Bytes that operations other than matrix products read and write, forward and backward together, by (family, bytes of
# an element, recompute): per unit of width, per unit of the feed-forward part (both in each layer), and per word of the
# vocabulary.
TRAFFIC = {("gpt2", 2, False): (143, 0, 50), ("gpt2", 2, True): (173, 0, 50),
           ("gpt2", 4, False): (287, 0, 43.5), ("gpt2", 4, True): (347, 0, 43.5),
           ("llama", 2, False): (497, 38, 52), ("llama", 2, True): (636, 57, 52),
           ("llama", 4, False): (657, 74, 44), ("llama", 4, True): (844, 111, 44)}


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
    per_width, _, per_word = TRAFFIC["gpt2", element, recompute]
    return TokenCosts(16 * element * width + 4 * heads, element * width, 10 * element * width,
                      12 * vocabulary + 2 * element * width, per_width * width, per_word * vocabulary)


def llama_token(width: int, inner: int, heads: int, vocabulary: int, element: int, recompute: bool) -> TokenCosts:
    """inner: the width of the feed-forward part. Keys and values are repeated for all heads, so that their number does
    not count.
    """
    norm = (4 + 2 * element) * width  # the input in fp32, the quotient and the product
    per_width, per_inner, per_word = TRAFFIC["llama", element, recompute]
    return TokenCosts(2 * norm + 4 * element * (width + inner) + 4 * heads + 8, element * width,
                      3 * element * inner + (6 + element) * width, (12 + 2 * element) * vocabulary + norm + 12,
                      per_width * width + per_inner * inner, per_word * vocabulary)
