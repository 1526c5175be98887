"""Context parallelism: one sequence over several ranks, by exchanging heads (Ulysses) or by a ring of keys and values."""

from .context_parallel import context_parallel
from .ring_attention import RingAttention
from .token_cut import TokenCut, cut_tokens, parts_of, positions_of, rejoin, shifted
from .token_loss import token_loss
from .ulysses import Ulysses

__all__ = ["RingAttention", "TokenCut", "Ulysses", "context_parallel", "cut_tokens", "parts_of", "positions_of", "rejoin",
           "shifted", "token_loss"]
