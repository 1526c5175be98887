"""The stages: from `mini`, the whole idea in one file, to stages 0 to 3 and what unusual models need."""

import importlib

# DeepSpeed's names for what this package has. They are imported when asked for, because this room is imported without torch.
_FAMILIAR = {"Init": "whole.familiar_zero", "GatheredParameters": "whole.familiar_zero"}


def __getattr__(name: str):
    if name in _FAMILIAR:
        return getattr(importlib.import_module(f".{_FAMILIAR[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
