"""Bugs in who takes part: ranks that begin differently, sit out, or wait for one that never comes."""

from ..breaks import Break
from ..bug import Bug
from ..proof import losses_are_the_unsharded_ones, replicas_agree
from ..scene import Scene

STEPS, UNLESS_ZERO = "for optimizer_step()", "{old} if comm.rank else None"

BUGS = (
    Bug("rank_zero_skipped", "`if rank:` was meant to ask whether there is a rank",
        symptom="The loss falls less than it should, and the half of the parameters that rank 0 updates stands still.",
        instrument="how far each rank's parameters have moved: those that rank 0 updates have not",
        source="common", test="zero/test_stages.py::test_equals_the_unsharded_model",
        scene=Scene(), proof=losses_are_the_unsharded_ones,
        changes=(Break("zero.ddp", STEPS, UNLESS_ZERO), Break("zero.stage1", STEPS, UNLESS_ZERO))),
    Bug("never_broadcast", "each rank is seeded by its number, and rank 0's values are sent to nobody",
        symptom="All losses fall. Below stage 1 the ranks train different models, and rank 0 saves one of them.",
        instrument="a sum over each rank's parameters, before the first step: it must be one number",
        source="common", test="zero/test_traps.py::test_trap_21_different_seeds",
        scene=Scene(), proof=replicas_agree,
        changes=(Break("zero.buffers.filling", "lambda broadcast()", "values"),)),
    Bug("owner_only", "a rank without a gradient returns before the collective",
        symptom="The training hangs, without a word, at the first batch that uses an expert on one rank only.",
        instrument="the desync report: it names the ranks and the call of each",
        source="DeepSpeed#5066", test="zero/test_traps.py::test_trap_03_unused_on_one_rank",
        changes=(Break("zero.passes.reducing:Reductions.start", "complete_bucket()", "if not flat.unreduced:\n    return\n{old}"),)),
)
