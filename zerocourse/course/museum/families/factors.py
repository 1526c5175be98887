"""Bugs of one factor, where no training in data parallel shows them: of experts, of Adam's corrections, of a loss's gradient."""

from ..breaks import Break
from ..bug import Bug
from ..symptoms import balance_beside_one_process, beside_a_late_parameter, experts_norm, under_a_factor

BUGS = (
    Bug("experts_by_edp", "gradients of experts are averaged over the ranks that have the same ones, as if those had seen all tokens",
        symptom="The loss falls, and even faster. Under SGD experts learn ep times as fast as all else.",
        instrument="the norm of the experts' gradient, beside that of one process: it is ep times as large",
        source="pytorch#160285, DeepSpeed#5259", test="parallel/test_experts.py::test_equals_one_process",
        number=experts_norm, right=1.0,
        changes=(Break("parallel.experts.token_exchange:to_experts", "apply().args[-1]", "1.0"),
                 Break("parallel.experts.token_exchange:back_home", "apply().args[-1]", "1.0"))),
    Bug("own_counts", "each rank balances the experts by the tokens that it has itself",
        symptom="At the first step all norms are nearly right. Experts are pushed to be equally busy on every rank, also where its tokens differ.",
        instrument="the mean of the ranks' balance losses, beside that of one process",
        source="common", test="parallel/test_experts.py::test_equals_one_process",
        number=balance_beside_one_process, right=0.0,
        changes=(Break("parallel.experts.expert_balance:balance_loss", "if.test", "False"),)),
    Bug("last_step_count", "the step count of the last parameter that has a gradient serves for all",
        symptom="Where a parameter gets its first gradient late, all others make steps of another size for a while.",
        instrument="the length of a parameter's step, beside torch's AdamW",
        source="DeepSpeed#8471", test="kernels/test_kernels.py::test_a_late_parameter_changes_no_other",
        number=beside_a_late_parameter, right=1.0,
        changes=(Break("kernels.adamw:FusedAdamW.step", "update().args[4]", 'int(self.state[params[-1]]["step"])'),)),
    Bug("factor_of_one", "a loss that computes its gradient in the forward ignores what it is multiplied by",
        symptom="Right with a factor of 1. With accumulation, a loss scale or a weight the head's gradient is too large or too small.",
        instrument="the gradient's norm under a factor of the loss, beside whole logits",
        source="Liger#968", test="kernels/test_linear_loss.py::test_loss_and_gradients_are_those_of_whole_logits",
        number=under_a_factor, right=1.0,
        changes=(Break("kernels.linear_loss:_LinearLoss.backward", "factor=.value", "torch.ones_like({old})"),)),
)
