"""One rank of many, simulated: the package's own stages on tensors without memory, in a world that is not there."""

from .clusters import find_cluster
from .one_rank import SimulatedJob, run_job, simulate, simulate_time

__all__ = ["SimulatedJob", "find_cluster", "run_job", "simulate", "simulate_time"]
