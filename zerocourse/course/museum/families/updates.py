"""Bugs between the gradient and the new parameters: norms, clipping, decay, step counts, NaN, overflow."""

from ..breaks import Break
from ..bug import Bug
from ..proof import all_is_finite, gradient_is_the_unsharded_one, losses_are_the_unsharded_ones, steps_are_counted_once
from ..scene import Scene

NOT_COUNTING_TOKEN_0 = ('losses = F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten(), reduction="none")\n'
                        "counts = targets_BT.flatten() != 0\n"
                        "return (losses * counts).sum() / counts.sum()")

BUGS = (
    Bug("norm_of_a_shard", "each rank clips by the norm of its own slice",
        symptom="The loss curve differs a little with the number of ranks. The logged norm is too small.",
        instrument="the norm auditor: on each rank some parameters count once, and the others not at all",
        source="common", test="zero/test_traps.py::test_trap_16_clipping",
        scene=Scene(clip=0.1), proof=gradient_is_the_unsharded_one,
        changes=(Break("zero.ddp:DataParallel", "all_reduce() ^for.iter", "self.groups.norm"),)),
    Bug("stale_gradients", "the optimizer steps with the gradient of the step before",
        symptom="Little at a small learning rate. At one that the unsharded model bears, the loss explodes.",
        instrument="the staleness meter: the update is one step late",
        source="common", test="zero/test_stages.py::test_equals_the_unsharded_model",
        scene=Scene(), proof=losses_are_the_unsharded_ones,
        changes=(Break("zero.buffers.gradients:GradientBuffer.publish_gradients", "gradient=[0]",
                       'gradient = getattr(self, "last_gradient", torch.zeros_like(self.master))\n'
                       "self.last_gradient = self.grad_shard.to(self.master.dtype, copy=True)"),)),
    Bug("l2_for_decay", "weight decay is added to the gradient, as in Adam, where AdamW was meant",
        symptom="With weight decay the loss is a little off, and another decay does not change it as it should.",
        instrument="one step from a gradient of zero: AdamW shrinks a weight by lr·decay, and Adam moves it by lr",
        source="common", test="kernels/test_kernels.py::test_adamw_equals_its_plain_twin",
        scene=Scene(optimizer="plain adamw", lr=0.01), proof=losses_are_the_unsharded_ones,
        changes=(Break("kernels.adamw:adamw", "mul_()[0]", "g = g + weight_decay * p"),)),
    Bug("step_count", "the step count of a group advances with each of its parameters",
        symptom="The first steps are too short: Adam believes that its averages have seen many steps already.",
        instrument="the optimizer's state: the largest step count, beside the number of steps made",
        source="common", test="kernels/test_kernels.py::test_adamw_equals_torchs_fused_one",
        scene=Scene(optimizer="plain adamw", lr=0.01), proof=steps_are_counted_once,
        changes=(Break("kernels.adamw:FusedAdamW.step", "augassign",
                       'group["step"] = group.get("step", 0) + 1\nstate["step"].fill_(group["step"])'),)),
    Bug("mean_of_nothing", "token 0 is padding and does not count, and one rank's micro-batch is all padding",
        symptom="At some step all losses on all ranks are NaN, and remain so.",
        instrument="the first tensor on each rank that is not finite: one rank had it one step before the others",
        source="pytorch#116349, cosmos-rl#155", test="course/museum/test_museum.py::test_every_target_counts",
        scene=Scene(padded=(2, 1)), proof=all_is_finite,
        changes=(Break("models.gpt2", "cross_entropy() ^return", NOT_COUNTING_TOKEN_0),)),
    Bug("own_overflow", "each rank decides by its own slice whether gradients overflow",
        symptom="A training in fp16 stops at some step, hours after it began, and nothing is printed.",
        instrument="the desync report: one rank is in the update, and the other in the next step already",
        source="common", test="course/museum/test_museum.py::test_an_overflow_in_one_slice_is_skipped_by_all",
        changes=(Break("engine.updates.half_precision:LossScaling.overflows", "unaryop",
                       "any(not flat.grad_shard.isfinite().all() for flat in self.zero.flats)"),)),
)
