"""Bugs in when things happen: everything is right, and slow."""

from .bug import Bug, Change
from .proof import gathers_run_ahead
from .scene import Scene

BUGS = (
    Bug("wait_at_once", "an asynchronous collective is waited for where it is started",
        symptom="The code looks asynchronous, the losses are right, and a step takes as long as compute and communication together.",
        instrument="the timeline: no block computes while another is being gathered",
        source="common", test="test_stages.py::test_overlap",
        scene=Scene(stage=3, layers=4), proof=gathers_run_ahead,
        changes=(Change("zero.stage3:unshard", "return comm.all_gather(flat.full, flat.layout, flat.name)",
                        "handle = comm.all_gather(flat.full, flat.layout, flat.name)\n    handle.wait()\n    return handle"),
                 Change("zero.stage2:reduce_scatter_and_free",
                        "return comm.reduce_scatter(bucket, flat.layout, flat.name, done=flat.accumulate)",
                        "handle = comm.reduce_scatter(bucket, flat.layout, flat.name, done=flat.accumulate)\n    handle.wait()\n    return handle"))),
)
