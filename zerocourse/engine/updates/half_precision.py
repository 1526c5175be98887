"""What an engine does for half precision: dtypes from the config, and in fp16 the loss scale. It sends nothing."""

import torch

from ...comm.torch_private import tree_map
from ...precision import DynamicLossScaler, LossScaler
from ...zero.options import Precision
from ..config import Config

DTYPES = {None: None, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def precision_of(config: Config) -> Precision:
    """What the config says about dtypes."""
    param_dtype = torch.bfloat16 if config.bf16.enabled else torch.float16 if config.fp16.enabled else None
    return Precision(param_dtype, reduce_dtype=DTYPES[config.communication_data_type],
                     accumulate_dtype=DTYPES[config.data_types.grad_accum_dtype])


def loss_scaler_of(config: Config) -> LossScaler | None:
    """The config's loss scaler; None unless it trains in fp16."""
    fp16 = config.fp16
    if not fp16.enabled:
        return None
    if fp16.loss_scale:
        return LossScaler(fp16.loss_scale)
    return DynamicLossScaler(2.0**fp16.initial_scale_power, fp16.loss_scale_window, fp16.hysteresis,
                             fp16.consecutive_hysteresis, fp16.min_loss_scale)


def in_half(inputs: object) -> object:
    """Floating-point tensors, also inside of lists, tuples and dictionaries, in float16."""
    def cast(each: object) -> object:
        return each.half() if isinstance(each, torch.Tensor) and each.is_floating_point() else each

    return tree_map(cast, inputs)


class LossScaling:
    """What an engine has of the loss scale, and of steps that are skipped. Its other attributes are the engine's.

    loss_scaler: in fp16 a `LossScaler`, else None.   skipped_steps: steps whose gradients had inf or NaN. In fp16 they are always
    skipped, in bf16 unless `bf16.check_grad_overflow` is false, in fp32 never.
    The optimizer shows DeepSpeed's `overflow` (was the last step skipped?), `loss_scale` and `cur_scale`.
    """

    def begin_scaling(self) -> None:
        self.loss_scaler = loss_scaler_of(self.config)
        self.show_scale(overflow=False)

    def in_fp32(self, loss: torch.Tensor) -> torch.Tensor:
        """What is scaled must be fp32, because 65536 is inf in fp16."""
        return loss if self.loss_scaler is None else loss.float()

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        return loss if self.loss_scaler is None else loss * self.loss_scaler.loss_scale

    def overflows(self, norm: torch.Tensor) -> bool:
        """Did a gradient overflow on any rank? norm: that of the whole gradient, the same on every rank.

        So the ranks agree: a slice with inf or NaN makes its rank's part of the norm inf or NaN, and with it the whole.
        """
        return self.skips_overflows() and not norm.isfinite().item()

    def skips_overflows(self) -> bool:
        return self.loss_scaler is not None or (self.config.bf16.enabled and self.config.bf16.check_grad_overflow)

    def unscale_gradients(self, norm: torch.Tensor) -> torch.Tensor:
        """Divide the gradients by the loss scale, in fp32. Returns their norm, which was `norm`."""
        if self.loss_scaler is None:
            return norm
        self.zero.scale_gradients(1 / self.loss_scaler.loss_scale)
        return norm / self.loss_scaler.loss_scale

    def update_scale(self, overflow: bool) -> None:
        """A step is over. Raises LossScaleError."""
        self.skipped_steps += overflow
        if self.loss_scaler is not None:
            self.loss_scaler.update(overflow)
        self.show_scale(overflow)

    def show_scale(self, overflow: bool) -> None:
        if self.optimizer is not None and self.skips_overflows():
            self.optimizer.overflow = overflow
            self.optimizer.loss_scale = self.optimizer.cur_scale = self.loss_scale()

    def loss_scale(self) -> float:
        """The present factor on the loss; 1 without fp16."""
        return 1.0 if self.loss_scaler is None else self.loss_scaler.loss_scale

    def dynamic_loss_scale(self) -> bool:
        return self.loss_scaler is not None and self.loss_scaler.dynamic

    def fp16_enabled(self) -> bool:
        return self.config.fp16.enabled

    def bfloat16_enabled(self) -> bool:
        return self.config.bf16.enabled
