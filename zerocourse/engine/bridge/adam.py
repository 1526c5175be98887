"""`deepspeed.ops.adam`: DeepSpeed's two Adams, on torch's. They communicate nothing.

accelerate puts DeepSpeedCPUAdam in the place of a script's own Adam or AdamW where the config offloads the optimizer; older
scripts choose between the two by hand. Which of torch's kernels steps is decided by where the states lie.
"""

from collections.abc import Iterable

import torch

from ...errors import BadInput


class TorchAdam(torch.optim.Adam):
    """Adam with torch's fused kernel, several times as fast on the host as its others, and DeepSpeed's arguments.

    adamw_mode: the weight decay is AdamW's; False: it is added to the gradients.
    Raises BadInput for what torch's kernel does not compute.
    """

    def __init__(self, params: Iterable, lr: float = 1e-3, bias_correction: bool = True, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.0, amsgrad: bool = False, adamw_mode: bool = True, **others):
        refused = {"bias_correction=False": not bias_correction, "amsgrad=True": amsgrad} | others
        for said in [said for said, is_so in refused.items() if is_so]:
            raise BadInput(f"{type(self).__name__} got {said}, which is not computed here: leave it out")
        # accelerate hands over the groups of the optimizer that it replaces, with its settings
        groups = [dict(group, fused=True) if isinstance(group, dict) else group for group in params]
        super().__init__(groups, lr, betas, eps, weight_decay, fused=True, decoupled_weight_decay=adamw_mode)


class DeepSpeedCPUAdam(TorchAdam):
    """For states on the host.   fp32_optimizer_states: as they always are here."""

    steps_in_parts = True  # torch's own step: each parameter by itself, so that states may lie on a disk

    def __init__(self, model_params: Iterable, *args, fp32_optimizer_states: bool = True, **kwargs):
        super().__init__(model_params, *args, **kwargs, **{"fp32_optimizer_states=False": not fp32_optimizer_states})


class FusedAdam(TorchAdam):
    """For states on a GPU.   set_grad_none: changes nothing, because a stage frees its gradients."""

    steps_in_parts = True  # torch's own step: each parameter by itself, so that states may lie on a disk

    def __init__(self, params: Iterable, lr: float = 1e-3, bias_correction: bool = True, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, adam_w_mode: bool = True, weight_decay: float = 0.0, amsgrad: bool = False, set_grad_none: bool = True):
        super().__init__(params, lr, bias_correction, betas, eps, weight_decay, amsgrad, adam_w_mode)
