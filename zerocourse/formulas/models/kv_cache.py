"""What generation keeps and reads: keys and values of each request, and the weights once for all requests of a step. No torch.

A step makes one token for each of R requests. It reads every weight that a product needs once, and all keys and values of each request.
There are about two operations for each weight and request, so while R is far below the ridge of a card (some 200 to 300 in half precision),
bytes are seconds: R tokens take at least (weights + R · keys and values) / bandwidth. Sources: Pope et al. 2022 (arXiv 2211.05102),
section 2; Kwon et al. 2023 (arXiv 2309.06180), section 3.
"""

from dataclasses import dataclass

from ..gpt2_config import GPTConfig
from .llama_shape import LlamaShape
from .mixture_shape import MixtureShape


def kv_bytes(shape: GPTConfig | LlamaShape | MixtureShape, tokens: int = 1, element: int = 2) -> int:
    """Bytes of the keys and values of so many tokens, in all layers.   element: bytes of a number."""
    if isinstance(shape, GPTConfig):
        return 2 * shape.n_layer * shape.n_embd * element * tokens
    if isinstance(shape, MixtureShape):
        return kv_bytes(shape.dense, tokens, element)
    return 2 * shape.layers * shape.kv_heads * shape.head_features * element * tokens


def weights_read(shape: GPTConfig | LlamaShape | MixtureShape, element: int = 2, requests: int = 1) -> int:
    """Bytes of the weights that a step reads: all but tables of which it takes a few rows (positions, and tokens where the head is another).

    Of a mixture it reads the experts that one of the requests takes. Where all are equally likely, these are E (1 - (1 - k/E)^R) in the
    mean, rounded here to whole bytes.
    """
    if isinstance(shape, GPTConfig):
        rows = shape.block_size + (not shape.tied) * shape.vocab_size
        return element * (shape.params - rows * shape.n_embd)
    if isinstance(shape, MixtureShape):
        asleep = (1 - shape.k / shape.experts) ** requests * shape.experts
        rest = shape.with_experts(shape.experts) - (not shape.dense.tied) * shape.dense.vocabulary * shape.dense.width
        return round(element * (rest - asleep * shape.expert * shape.dense.layers))
    return element * (shape.params - (not shape.tied) * shape.vocabulary * shape.width)


@dataclass(frozen=True)
class Decoding:
    """Generation on one card.   tokens: of each request, prompt and what is generated together."""

    shape: GPTConfig | LlamaShape | MixtureShape
    tokens: int
    element: int = 2

    @property
    def weights(self) -> int:
        """Bytes."""
        return self.element * self.shape.params

    @property
    def request(self) -> int:
        """Bytes of keys and values of a request that is at its end."""
        return kv_bytes(self.shape, self.tokens, self.element)

    def fitting(self, card: int) -> int:
        """Requests whose keys and values fit beside the weights on a card of so many bytes."""
        return max(0, (card - self.weights) // self.request)

    def bytes_of_step(self, requests: int) -> int:
        """Read for one token of each request, at its end."""
        return weights_read(self.shape, self.element, requests) + requests * self.request

    def tokens_a_second(self, requests: int, bandwidth: float) -> float:
        """Of all requests, at most.   bandwidth: bytes a second."""
        return requests * bandwidth / self.bytes_of_step(requests)
