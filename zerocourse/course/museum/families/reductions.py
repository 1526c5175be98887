"""Bugs in what becomes of the gradients: which are reduced, when, and by what they are divided."""

from ..breaks import Break, drop
from ..bug import Bug
from ..proof import gradient_is_the_unsharded_one
from ..scene import Scene

BUFFER, ALL_REDUCE = "zero.buffers.gradients:GradientBuffer", "zero.ddp:all_reduce"
# A gradient is added to those of earlier micro-batches, or written where there are none; and so is a reduced slice.
ADDS, WRITES, SUMS_SLICES = "add_(alpha)", "mul(out)", "ifexp add_()"

BUGS = (
    Bug("summed", "the gradients are added up over the ranks and never averaged",
        symptom="The loss falls, even faster at first. Every step is as long as with N times the learning rate.",
        instrument="the gradient's norm, beside that of the unsharded model: it is N times as large",
        source="common", test="zero/test_traps.py::test_trap_20_the_average_and_not_the_sum",
        scene=Scene(), proof=gradient_is_the_unsharded_one,
        changes=(Break(BUFFER, f"{ADDS}.alpha", drop), Break(BUFFER, WRITES, "into.copy_(gradient)"))),
    Bug("nothing_reduced", "each rank adds its own gradient N times, and not what the others have sent",
        symptom="The loss falls, only less than it should. All messages and all bytes are as they should be.",
        instrument="the gradient's norm, beside that of the unsharded model, with different data on every rank",
        source="DeepSpeed#8382", test="zero/test_stages.py::test_equals_the_unsharded_model",
        scene=Scene(), proof=gradient_is_the_unsharded_one,
        changes=(Break("comm.backends.gloo:Gloo.reduce_scatter", "terms= listcomp.elt", "mine.clone()"),)),
    Bug("weights_reduced", "the hook averages its argument, which is the parameter, and not the gradient",
        symptom="The ranks agree again and again, and each goes on with its own gradient.",
        instrument="the gradient's norm on each rank: it differs, and in stage 0 it must not",
        source="common", test="zero/test_stages.py::test_equals_the_unsharded_model",
        scene=Scene(stage=0), proof=gradient_is_the_unsharded_one,
        changes=(Break(ALL_REDUCE, "all_gather().args[0]", "flat.full.div_(comm.world_size)"),
                 Break(ALL_REDUCE, "reduce_scatter().args[0]", "flat.full"),
                 Break(ALL_REDUCE, "own=.value", "flat.full[flat.reduce_slice]"))),
    Bug("last_micro_batch", "each micro-batch overwrites the one before it",
        symptom="With accumulation the loss falls more slowly, and is noisier. Without accumulation nothing is wrong.",
        instrument="the gradient's norm at G = 1 and at G = 4, on the same samples",
        source="open-instruct#1498, DeepSpeed#7981", test="zero/test_traps.py::test_trap_15_accumulation",
        scene=Scene(stage=2, accumulation=2), proof=gradient_is_the_unsharded_one,
        changes=(Break(BUFFER, f"{ADDS} ^if.test.values[1]", drop), Break(BUFFER, f"{SUMS_SLICES} ^ifexp", "reduced"))),
    Bug("first_micro_batch", "only the first micro-batch is kept",
        symptom="The gradient's norm is too small, about 1/G of what it should be where micro-batches agree.",
        instrument="the gradient's norm at G = 1 and at G = 4, on the same samples",
        source="DeepSpeed#7967", test="zero/test_traps.py::test_trap_15_accumulation",
        scene=Scene(accumulation=2), proof=gradient_is_the_unsharded_one,
        changes=(Break(BUFFER, f"{ADDS} ^expr", drop), Break(BUFFER, SUMS_SLICES, "self.grad_shard"))),
    Bug("late_micro_batch", "the last micro-batch is added after the reduction",
        symptom="Runs with the same batch, cut into other micro-batches, drift apart.",
        instrument="the gradient's norm at several G: the larger G is, the smaller is the mistake",
        source="DeepSpeed#7985", test="zero/test_traps.py::test_trap_15_accumulation",
        scene=Scene(accumulation=2), proof=gradient_is_the_unsharded_one,
        changes=(Break(BUFFER, f"{ADDS}.args", "self.view_of(self.late, key)"), Break(BUFFER, f"{ADDS}.alpha", drop),
                 Break(BUFFER, WRITES, "self.late = self.late if self.unreduced else torch.zeros_like(self.grad)\n"
                                       "into.zero_()"),
                 Break(BUFFER, "discard()", "self.view_of(self.late, key).copy_(gradient / self.divisor)\n{old}"),
                 Break("zero.stage1", "sum_replicas().args[0]", "own.add_(flat.late[flat.own])"))),
    Bug("unscaled_loss", "the losses of the micro-batches are added up and never averaged",
        symptom="The gradient's norm is G times as large as without accumulation. Under Adam the loss hardly shows it.",
        instrument="the gradient's norm at G = 1 and at G = 4, on the same samples",
        source="DeepSpeed#7773", test="zero/test_stages.py::test_through_the_engine",
        scene=Scene(accumulation=2), proof=gradient_is_the_unsharded_one,
        changes=(Break("engine.engine:Engine.backward", "gradient_accumulation_steps()", drop),)),
)
