"""The factor on the loss that keeps fp16 gradients between 6e-8 and 65504. Pure logic: no tensors, no communication.

Small gradients are zero in fp16, so the loss is multiplied by a large factor before the backward, and gradients are
divided by it in fp32, just before the optimizer's step. When the factor is too large, a gradient overflows to inf or
NaN: that step is skipped, and the factor becomes smaller. Source: Micikevicius et al. 2018, arXiv 1710.03740, section
3.2; the rules are DeepSpeed's (0.19.8, `runtime/fp16/loss_scaler.py`).
"""

from ..errors import BadInput, LossScaleError

FACTOR = 2.0  # a power of two, so that scaling rounds nothing
LONGEST_ROW = 20  # skipped steps in a row under a static scale: a dynamic one would have come down from 2^16 to 1 meanwhile


class LossScaler:
    """A loss scale that stays as it is. A step whose gradients overflow is skipped all the same, but not for ever: after
    `LONGEST_ROW` such steps in a row nothing will ever train."""

    dynamic = False

    def __init__(self, loss_scale: float = 1.0):
        if not 0 < loss_scale < float("inf"):
            raise BadInput(f"the loss scale is {loss_scale}: it must be a finite number above 0")
        self.loss_scale = float(loss_scale)
        self.skipped_in_a_row = 0

    def update(self, overflow: bool) -> None:
        """A step is over. Raises LossScaleError when too many in a row were skipped.

        overflow: did any gradient, on any rank, overflow, so that the step was skipped?
        """
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if overflow else 0
        if self.skipped_in_a_row >= LONGEST_ROW:
            raise LossScaleError(f"gradients have overflowed in {self.skipped_in_a_row} steps in a row at the loss scale "
                                 f"{self.loss_scale:g}, which is static (fp16.loss_scale): set it to 0, so that it adapts, or to a "
                                 "smaller number, and look for inf or NaN in the data")

    def state_dict(self) -> dict[str, float]:
        """Empty: a static scale comes from the config."""
        return {}

    def load_state_dict(self, state: dict[str, float]) -> None:
        pass


class DynamicLossScaler(LossScaler):
    """A loss scale that falls after overflows, and rises after `window` steps without one.

    initial: the first loss scale.   minimum: the smallest; an overflow that would lead below it raises LossScaleError.
    window: steps without an overflow, after the last one or the last rise, at whose end the scale doubles.
    hysteresis: the overflow of this number halves the scale, and so does every later one until hysteresis is restored;
        earlier ones only skip their step. It is restored when the scale rises; with `consecutive_hysteresis` after each
        step without an overflow.
    """

    dynamic = True

    def __init__(self, initial: float = 2.0**16, window: int = 1000, hysteresis: int = 2,
                 consecutive_hysteresis: bool = False, minimum: float = 1.0):
        super().__init__(initial)
        if minimum > initial:
            raise BadInput(f"the smallest loss scale, {minimum:g}, is above the first one, {initial:g}: it must not be "
                           "larger")
        self.window, self.minimum = window, minimum
        self.hysteresis, self.consecutive_hysteresis = hysteresis, consecutive_hysteresis
        self.hysteresis_left = hysteresis  # overflows until the scale is halved, that one included
        self.steps, self.last_overflow = 0, -1  # steps so far, with skipped ones; the number of the last skipped one

    def update(self, overflow: bool) -> None:
        """A step is over. Raises LossScaleError when the scale would have to fall below the minimum."""
        if overflow:
            if self.hysteresis_left > 1:
                self.hysteresis_left -= 1
            elif self.loss_scale == self.minimum:
                raise LossScaleError(f"gradients overflow at the loss scale {self.loss_scale:g}, which is already at "
                                     "minimum (fp16.min_loss_scale): the loss itself is probably inf or NaN, so look at "
                                     "the learning rate and the data, or train in bf16, which has the range of fp32")
            else:
                self.loss_scale = max(self.loss_scale / FACTOR, self.minimum)
            self.last_overflow = self.steps
        else:
            good_steps = self.steps - self.last_overflow - 1  # before this one, which is not counted
            rises = good_steps > 0 and good_steps % self.window == 0
            if rises:
                self.loss_scale *= FACTOR
            if rises or self.consecutive_hysteresis:
                self.hysteresis_left = self.hysteresis
        self.steps += 1

    def state_dict(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in STATE}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on from a saved state; the state of a static scaler, which is empty, changes nothing."""
        for name, value in state.items():
            setattr(self, name, value)


STATE = ("loss_scale", "hysteresis_left", "steps", "last_overflow")
