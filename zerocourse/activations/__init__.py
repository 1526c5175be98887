"""What forward keeps for backward, and how to keep less of it."""

from .arena import AllocationLog, Arena, replay, smallest_arena
from .checkpointing import checkpoint_blocks
from .keeping import keeping
from .packings import Int8, Partitioned
from .placement import Placement, place_checkpoints
from .selective import saving

__all__ = ["AllocationLog", "Arena", "Int8", "Partitioned", "Placement", "checkpoint_blocks", "keeping",
           "place_checkpoints", "replay", "saving", "smallest_arena"]
