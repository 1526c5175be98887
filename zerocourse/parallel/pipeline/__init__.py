"""Pipeline parallelism: one list of actions per rank is a schedule, a picture, a proof, a simulation and a real run."""

from .cutting import cut
from .pipeline import Pipeline
from .schedules.actions import Action, Schedule, plan, problems, with_transfers
from .schedules.deadlock import deadlock
from .schedules.makespan import Costs, Timing, simulate
from .schedules.pipedream import pipedream, pipedream_2bw
from .schedules.synchronous import gpipe, interleaved, one_f_one_b
from .schedules.zero_bubble import zb_h1

__all__ = ["Action", "Costs", "Pipeline", "Schedule", "Timing", "cut", "deadlock", "gpipe", "interleaved", "one_f_one_b", "pipedream",
           "pipedream_2bw", "plan", "problems", "simulate", "with_transfers", "zb_h1"]
