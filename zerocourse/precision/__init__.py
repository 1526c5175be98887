"""Numbers of half precision and less: the loss scale of fp16. Which dtypes a stage uses is in `zero.options.Precision`."""

from .loss_scaler import DynamicLossScaler, LossScaler

__all__ = ["DynamicLossScaler", "LossScaler"]
