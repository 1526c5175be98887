"""DeepSpeed's training loop and its ds_config.json over the stages, and checkpoints."""

__all__ = ["Engine", "initialize"]


def __getattr__(name: str):
    if name in __all__:  # imported when asked for, because torch takes seconds
        from . import engine
        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
