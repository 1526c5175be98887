"""Bugs in when things happen: everything is right, and slow."""

from .bug import Bug, Change
from .proof import gathers_run_ahead
from .scene import Scene

GATHER = "comm.all_gather(flat.full, flat.layout, flat.name)"
REDUCE = "comm.reduce_scatter(bucket, flat.layout, flat.name, done=flat.accumulate)"
AT_ONCE = "handle = {}\n    handle.wait()\n    return handle"

BUGS = (
    Bug("wait_at_once", "an asynchronous collective is waited for where it is started",
        symptom="The code looks asynchronous, and a step takes as long as computing and communication together.",
        instrument="the timeline: no block computes while another is being gathered",
        source="common", test="test_stages.py::test_overlap",
        scene=Scene(stage=3, layers=4), proof=gathers_run_ahead,
        changes=(Change("zero.stage3:unshard", f"return {GATHER}", AT_ONCE.format(GATHER)),
                 Change("zero.stage2:reduce_scatter_and_free", f"return {REDUCE}", AT_ONCE.format(REDUCE)))),
)
