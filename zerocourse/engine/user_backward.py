"""Each backward through an engine's model: what it does with gradients, and whose it is. It sends nothing itself.

A script may call `loss.backward()` itself, in fp16 `engine.scale(loss).backward()`: that counts like `engine.backward(loss)`,
gradients over the number of micro-batches included. (torch.autograd.grad() brings the model no gradient, and does not count.)
"""

import weakref
from dataclasses import replace

import torch

from ..errors import BadInput
from ..zero.extra import Extra

SCALED = "_zerocourse_scaled"  # marks what `engine.scale` returned


class UserBackward(Extra):
    """Sees every backward of an engine's stage begin and end. (One that another engine has begun may come through its model: the
    generator's loss comes through the discriminator.)"""

    def __init__(self, engine):
        self.engine, self.stage = weakref.ref(engine), weakref.ref(engine.zero)

    def before_backward(self) -> None:
        engine, stage = self.engine(), self.stage()
        comes_last = engine is None or engine.reduces_next()  # a model may outlive its engine
        # What the script differentiates is not divided yet: its gradients are, as they come.
        share = 1 if engine is None or engine.in_engine_backward else engine.gradient_accumulation_steps()
        for flat in stage.flats:
            flat.divisor = flat.groups.size * share
        # The ranks agree once in a window: at its last backward, or in the step.
        stage.next_backward = replace(stage.next_backward, reduces=comes_last, is_last=comes_last)

    def after_backward(self) -> None:
        engine = self.engine()
        if engine is not None and not engine.in_engine_backward and engine.zero.backward.brought_gradients:
            engine.count_user_backward()


class UserLoss:
    """What an engine has for scripts that differentiate themselves. Its other attributes are the engine's."""

    def begin_watching(self) -> None:
        self.in_engine_backward = False  # is a backward running that `engine.backward` has begun?
        self._keeps_local = False  # inside of `no_sync`?
        self._n_scaled = 0  # losses that `scale` has returned since the last step, and nobody has differentiated
        self._lacks_scale = False  # has one been differentiated, in fp16, that `scale` had not returned?
        self.zero.extras.append(UserBackward(self))

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss times the loss scale, in fp32: `engine.scale(loss).backward(); engine.step()` is
        `engine.backward(loss); engine.step()`. Without fp16 it is the loss itself.

        Raises BadInput for what is not a loss.
        """
        self.check_loss(loss, "scale")
        self._n_scaled += 1
        if self.loss_scaler is None:
            return loss
        scaled = self.scale_loss(self.in_fp32(loss))
        setattr(scaled, SCALED, True)
        return scaled

    def check_loss(self, loss: object, method: str) -> None:
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            given = f"one of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
            raise BadInput(f"engine.{method} needs the loss, a tensor with one element, not {given}")
        if not loss.requires_grad:
            raise BadInput(f"engine.{method} got a loss without a gradient: compute it by engine(...), not under "
                           "no_grad, and do not detach it")
        if hasattr(loss, SCALED):
            raise BadInput(f"engine.{method} got what engine.scale returned, which has the loss scale already: call backward() on "
                           f"that, or engine.{method} on the loss itself")

    def count_user_backward(self) -> None:
        """A backward of the script's own has brought gradients."""
        self._lacks_scale |= self.loss_scaler is not None and not self._n_scaled
        self._n_scaled = max(0, self._n_scaled - 1)
        self.begin_micro_batch()
        self.n_backwards += 1

    def check_gradients(self) -> None:
        """Raises BadInput where there are none for a step, or some that cannot be used."""
        if not self.n_backwards or self._spoiled or self.zero.backward_failed:
            raise BadInput("engine.step was called without engine.backward before it: there are no new gradients")
        if self._lacks_scale:
            self._spoiled = True
            raise BadInput("loss.backward() was called in fp16 without the loss scale, so its gradients cannot be used: call "
                           "engine.scale(loss).backward(), or engine.backward(loss)")
