"""The stages of ZeRO, each a small step over the one before: `ddp`, `stage1`, `stage2`, `stage3`, with `overlap`."""
