"""Pipeline parallelism: one list of actions per rank is a schedule, a picture, a proof, a simulation and a real run."""

from .actions import Action, Schedule, plan, problems, with_transfers
from .cutting import cut
from .deadlock import deadlock
from .makespan import Costs, Timing, simulate
from .pipedream import pipedream, pipedream_2bw
from .pipeline import Pipeline
from .synchronous import gpipe, interleaved, one_f_one_b
from .zero_bubble import zb_h1

__all__ = ["Action", "Costs", "Pipeline", "Schedule", "Timing", "cut", "deadlock", "gpipe", "interleaved", "one_f_one_b", "pipedream",
           "pipedream_2bw", "plan", "problems", "simulate", "with_transfers", "zb_h1"]
