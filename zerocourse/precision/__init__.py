"""Numbers of half precision and less: the loss scale of fp16, and fp8, simulated. It communicates nothing.

Which dtypes a stage uses is `zero.options.Precision`.
"""

from .loss_scaler import DynamicLossScaler, LossScaler

__all__ = ["DynamicLossScaler", "LossScaler"]
