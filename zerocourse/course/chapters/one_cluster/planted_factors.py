"""Wrong factors on a mesh, each as one or two changed lines: what the chapter plants and finds by the norms of stages.

`FACTORS` has those of the detective, by the names that the chapter gives them; `COUNTED_TWICE` is the one that it audits.
"""

from ...museum import BUGS
from ...museum.breaks import Break, drop
from ...museum.bug import Bug

COUNTS_ALONG_TP = Break("parallel.tensor.apply:tensor_parallel", "counts_here()", "True")
COUNTS_ALONG_PP = Break("parallel.pipeline.ties:Ties.__init__", "counts_in_norm=", drop)
ONE_PROCESS = "parallel/test_mesh_parallel.py::test_equals_one_process"
NORM = "parallel/test_mesh_parallel.py::test_a_norm_over_the_mesh_counts_each_parameter_once"

COUNTED_TWICE = Bug(
    "counted_twice", "every rank counts all that it has in the norm, also what is replicated",
    symptom="The norm is a little too large, so that everything is clipped too much.", instrument="audit",
    source="common", test=NORM, changes=(COUNTS_ALONG_TP, COUNTS_ALONG_PP))

FACTORS = {
    "dp adds up": BUGS["summed"],
    "divided by m again": Bug(
        "divided_again", "the backward begins at 1/m, though the loss of a micro-batch is its share of the mean already",
        symptom="The gradient is 1/m of what it should be, on all stages.", instrument="the norm by stage",
        source="common", test=ONE_PROCESS,
        changes=(Break("parallel.pipeline.pipeline:Pipeline.backward", "ones()", "{old} / self.plan.micro_batches"),)),
    "divided at each boundary": Bug(
        "divided_at_boundaries", "a stage divides the gradient that it receives by m",
        symptom="The norm is right on the last stage, and smaller on each stage before it.", instrument="the norm by stage",
        source="DeepSpeed#8152", test=ONE_PROCESS,
        changes=(Break("parallel.pipeline.pipeline:Pipeline.receive_backward", "receive_gradients()",
                       "[each / self.plan.micro_batches for each in {old}]"),)),
    "replicated counts twice": Bug(
        "replicated_counts", "a norm counts on every rank what is replicated along tp",
        symptom="The norm is a little too large on all stages, by no simple factor.", instrument="audit",
        source="common", test=NORM, changes=(COUNTS_ALONG_TP,)),
    "ties are not added up": Bug(
        "untied", "the two gradients of a weight that two stages share are not added up",
        symptom="The norm of the first stage is too small, and the two copies of the weight drift apart.",
        instrument="the norm by stage", source="common", test=ONE_PROCESS,
        changes=(Break("parallel.pipeline.ties:Ties.add_slices", "copy_() ^expr", drop),)),
}
