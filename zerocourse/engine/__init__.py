"""DeepSpeed's training loop and its ds_config.json over the stages."""

from .engine import Engine, initialize

__all__ = ["Engine", "initialize"]
