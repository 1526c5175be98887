"""Real ranks from a notebook: torchrun jobs, ranks that are kept alive, a link with a limited rate."""

import importlib

# Where each public name lives. It is imported on first use, because a rank, which starts with `.worker`, does not need
# what only the launching process uses.
_HOME = {
    "launch": "launcher", "Results": "processes.jobs", "Ranks": "ranks", "progress": "worker", "report": "worker",
    "LaunchError": "processes.failures", "LaunchInterrupted": "processes.failures",
    "LaunchTimeout": "processes.failures", "RankDied": "processes.failures", "RankError": "processes.failures",
}
__all__ = [*_HOME]


def __getattr__(name: str):
    if name in _HOME:
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
