"""Checkpoints that travel: written by all ranks, read at any number of ranks, stage, rank map and precision."""

from .loading import load_checkpoint
from .saving import Saving, save_checkpoint

__all__ = ["Saving", "load_checkpoint", "save_checkpoint"]
