"""Bugs in when things happen: everything is right, and slow."""

from ..breaks import Break
from ..bug import Bug
from ..proof import gathers_run_ahead
from ..scene import Scene

AT_ONCE = "handle = {value}\nhandle.wait()\nreturn handle"

BUGS = (
    Bug("wait_at_once", "an asynchronous collective is waited for where it is started",
        symptom="The code looks asynchronous, and a step takes as long as computing and communication together.",
        instrument="the timeline: no block computes while another is being gathered",
        source="common", test="zero/test_stages.py::test_overlap",
        scene=Scene(stage=3, layers=4), proof=gathers_run_ahead,
        changes=(Break("zero.stage3", "all_gather() ^return", AT_ONCE),
                 Break("zero.stage2", "reduce_scatter() ^return", AT_ONCE))),
)
