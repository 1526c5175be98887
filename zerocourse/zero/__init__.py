"""The stages of ZeRO, each a small step over the one before: `ddp`, `stage1`, `stage2`, `stage3`, with `overlap`."""

from .build import shard
from .consolidate import load_state_dict, state_dict

__all__ = ["load_state_dict", "shard", "state_dict"]
