"""Bugs in what is held: memory that should have been saved is not."""

from ..breaks import Break, drop
from ..bug import Bug
from ..proof import bytes_are_the_formulas
from ..scene import Scene

BUGS = (
    Bug("unsharded_states", "stage 1 keeps the optimizer's states of whole parameters",
        symptom="None: the losses are right to the last bit.",
        instrument="bytes held, by kind: the optimizer's states take 8Ψ bytes per rank and not 8Ψ/N",
        source="common", test="zero/test_stages.py::test_bytes_held",
        scene=Scene(optimizer="adamw", lr=0.01), proof=bytes_are_the_formulas,
        changes=(Break("zero.shard", "stage_class=.value.slice", "stage if stage > 1 else 0"),)),
    Bug("full_gradients", "stage 2 reduces a bucket and keeps it",
        symptom="Out of memory, in a stage that should need less. Without accumulation the losses are right.",
        instrument="bytes held, by kind: the gradients take 4Ψ bytes and more per rank, not 4Ψ/N",
        source="common", test="zero/test_stages.py::test_bytes_held",
        scene=Scene(stage=2), proof=bytes_are_the_formulas,
        changes=(Break("zero.stage2", "bucket=.value", "flat.grad"),)),
    Bug("no_reshard", "the gathered parameters are never freed",
        symptom="Out of memory, in the stage that should need least. Where there is enough, the loss hardly falls.",
        instrument="bytes held, by kind; and bytes sent, because what was never freed is never gathered again",
        source="common", test="zero/test_stages.py::test_units_in_flight",
        scene=Scene(stage=3), proof=bytes_are_the_formulas,
        changes=(Break("zero.stage3", "free()", drop),)),
    Bug("fp32_gradients_kept", "the fp32 copies of the gradients outlive the step",
        symptom="After the first step a rank holds 4Ψ/N bytes more than before it, and the next forward has less room.",
        instrument="bytes held after zero_grad(): gradients must be 0",
        source="common", test="zero/test_stages.py::test_bytes_held",
        scene=Scene(half=True), proof=bytes_are_the_formulas,
        changes=(Break("zero.optimizer", "withdraw_gradients()", drop),
                 Break("zero.buffers.gradients", "withdraw_gradients()", drop))),
)
