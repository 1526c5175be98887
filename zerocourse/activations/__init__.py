"""What forward keeps for backward, and how to keep less of it."""

from .arena import AllocationLog, Arena, replay, smallest_arena
from .checkpointing import checkpoint_blocks
from .keeping import keeping
from .packings import Int8, Partitioned
from .selective import saving
from .spacing import Spacing, place_checkpoints

__all__ = ["AllocationLog", "Arena", "Int8", "Partitioned", "Spacing", "checkpoint_blocks", "keeping",
           "place_checkpoints", "replay", "saving", "smallest_arena"]
