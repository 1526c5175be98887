"""Delayed parameter update: the host applies each gradient while the device computes the next. It sends what a step sends.

    x(k+1) = x(k) - η(k-1) g(x(k-1); batch k-1)

The first steps are not delayed, because the loss moves fast then. At the first delayed step gradients go down and nothing is
updated; from then on each step first brings up what the last step's gradients made, and hands its own to the host, together
with what belongs to them: hyper-parameters such as the learning rate, the loss scale, the factor of clipping.
Source: Ren et al. 2021, arXiv 2101.06840, section 5.2.

So a training forward computes with weights that lack the last step. Whoever looks at the model between the steps gets all
steps: `state_dict`, a save, `gathered`, and an evaluation, which is a forward without gradients, or of a model in eval mode.
Each of them applies the update first, which is collective at every stage, and what the training goes on with is then one
update newer. An evaluation between a forward with gradients and its backward leaves the weights alone, because the backward
needs those of its forward.
"""

import threading
import weakref
from copy import copy

import torch
from torch import nn
from torch.optim import Optimizer

from ..autograd.compiled import eager
from ..autograd.graph import current_backward
from ..autograd.outputs import tensors_of
from ..autograd.running import is_running
from ..comm import Comm
from ..errors import BadInput
from ..zero.buffers.buffer import FlatBuffer
from ..zero.optimizer import BufferedStep, is_seen_stepping
from .offloaded_buffer import OffloadedBuffer, send_factors_down


class DelayedUpdate:
    """The step of an offload from step number `after` on."""

    def __init__(self, offload, after: int):
        self.offload, self.after, self.steps = offload, after, 0
        self.pending: UpdateUnderWay | None = None

    def step(self, flats: list[OffloadedBuffer], comm: Comm, optimizer_step: BufferedStep) -> object:
        self.steps += 1
        if self.steps <= self.after:
            return self.offload.step(flats, comm, optimizer_step)
        for flat in flats:
            flat.send_down()
        self.flush()
        self.pending = UpdateUnderWay(self.offload, flats, optimizer_step.optimizer)
        return None

    def flush(self) -> None:
        """Wait for the update under way, and bring its parameters up. Collective: every rank has one, or none has."""
        if self.pending is not None:
            pending, self.pending = self.pending, None
            pending.wait()
            with torch.no_grad():
                raising = [(flat, flat.start_publish()) for flat in pending.flats]
                self.offload.finish(raising, [], self.offload.stage.comm)

    def settle(self) -> None:
        """Between the steps: the same, and the backward of an older forward raises, since its weights have changed. Raises
        BadInput inside of a forward or a backward, whose weights must stay as they are."""
        stage = self.offload.stage
        if self.pending is None:
            return
        if self.computes():
            raise BadInput("the weights are asked for inside of a forward or a backward, while an update of them is delayed "
                           "(delay_after): ask before it or after it")
        if stage.shards_parameters:
            stage.reshard_all()  # what is gathered has the old values
        flats = self.pending.flats
        self.flush()
        stage.written.note_update(flats)

    def computes(self) -> bool:
        """Is the model's forward or a backward running now? (One that was interrupted has left its mark, and is not.)"""
        root = self.offload.stage.root
        return current_backward() != -1 or bool(root.forward_depth) and is_running(root.module)

    def watch_evaluations(self, stage) -> None:
        """From now on a forward that is no training settles first, whichever part of the model it begins with."""
        awaiting: weakref.WeakSet[AwaitedBackward] = weakref.WeakSet()

        @eager
        def before(module: nn.Module, args) -> None:
            evaluates = not (torch.is_grad_enabled() and stage.model.training)
            if self.pending is not None and evaluates and not awaiting and not self.computes():
                self.settle()

        @eager
        def after(module: nn.Module, args, output) -> None:
            if self.computes() or not torch.is_grad_enabled():
                return
            backward = AwaitedBackward()
            awaiting.add(backward)
            for tensor in tensors_of(output):
                if tensor.grad_fn is not None:
                    tensor.grad_fn.register_prehook(lambda _, backward=backward: awaiting.discard(backward))

        units = {unit.module for unit in stage.units}
        for module in stage.model.modules():
            if module in units or next(module.parameters(recurse=False), None) is not None:
                module.register_forward_pre_hook(before, prepend=True)  # before the unit is gathered
                module.register_forward_hook(after)


class AwaitedBackward:
    """Of a forward with gradients: it lives for as long as it may come, because the graph alone refers to it."""


class UpdateUnderWay:
    """One update, in a thread. It takes the gradients of the buffers, so that the next ones have memory of their own."""

    def __init__(self, offload, flats: list[OffloadedBuffer], optimizer: Optimizer):
        self.offload, self.flats, self.error = offload, flats, None
        self.factors = [transfer for transfer in [send_factors_down(flats)] if transfer is not None]
        self.gradients = [flat.take_gradients() for flat in flats]
        self.transfers = self.factors + [each.transfer for gradient in self.gradients for each in gradient.host_gradients]
        for flat in flats:
            flat.is_updating = True
        self.step = BufferedStep(as_of_now(optimizer))
        self.thread = threading.Thread(target=self.run, name="delayed update", daemon=True)
        self.thread.start()

    @torch.no_grad()
    def run(self) -> None:
        try:
            waiting = list(zip(self.flats, self.gradients, strict=True))
            for transfer in self.factors:
                transfer.wait(notes=False)
            while waiting:
                at_once = len(waiting) if is_seen_stepping(self.step.optimizer) else 1  # hooks want one step, of everything
                for flat, gradient in waiting[:at_once]:
                    flat.wait_for_masters()
                    flat.hand_out(gradient.for_step(flat, notes=False), gradient.names)
                with self.offload.tier.taking():
                    self.step(*(flat for flat, _ in waiting[:at_once]))
                for flat, _ in waiting[:at_once]:
                    FlatBuffer.withdraw_gradients(flat)
                    self.offload.adopt_states(self.step.optimizer, flat)
                del waiting[:at_once]
            self.gradients.clear()
        except BaseException as error:
            self.error = error

    def wait(self) -> None:
        self.thread.join()
        for flat in self.flats:
            flat.is_updating = False
        if self.error is not None:
            raise self.error
        for transfer in self.transfers:
            transfer.wait()  # they are over: note them in this thread, which counts the stage's bytes


def as_of_now(optimizer: Optimizer) -> Optimizer:
    """The same states under the hyper-parameters that hold now: a scheduler may change them while the update runs."""
    twin = copy(optimizer)
    twin.param_groups = [dict(group) for group in optimizer.param_groups]
    twin.state = optimizer.state
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "add_param_group"):  # copy() leaves them out
        setattr(twin, name, getattr(optimizer, name))
    return twin
