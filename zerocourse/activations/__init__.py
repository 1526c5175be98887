"""What forward keeps for backward, and how to keep less of it."""

from .checkpointing import checkpoint_blocks

__all__ = ["checkpoint_blocks"]
