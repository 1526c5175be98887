"""The stages: from `mini`, the whole idea in one file, to stages 0 to 3 and what unusual models need."""

import importlib

# DeepSpeed's names for what this package has. They are imported when asked for, because this room is imported without torch.
def __getattr__(name: str):
    if name in ("Init", "GatheredParameters"):
        return getattr(importlib.import_module(".whole.familiar_zero", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
