"""Real ranks from a notebook: torchrun jobs, ranks that are kept alive, a link with a limited rate."""

from .launcher import launch
from .processes.failures import LaunchError, LaunchInterrupted, LaunchTimeout, RankDied, RankError
from .worker import progress, report

__all__ = ["launch", "progress", "report", "LaunchError", "LaunchInterrupted", "LaunchTimeout", "RankDied", "RankError"]
