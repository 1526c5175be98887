"""One rank of many, simulated: the package's own stages on tensors without memory, in a world that is not there."""

from .one_rank import SimulatedJob, run_job, simulate

__all__ = ["SimulatedJob", "run_job", "simulate"]
