"""One optimizer step, watched from phase to phase: what the trainings of checks and trials have in common."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn


def next_tokens(model: nn.Module, tokens_BT: Tensor) -> Tensor:
    """The mean loss of the tokens 1 to T, each said from those before it."""
    return model(tokens_BT[:, :-1], tokens_BT[:, 1:])


def phases(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Sequence, losses: list[float],
           loss_of: Callable[[nn.Module, object], Tensor] = next_tokens,
           around: Callable[[bool], AbstractContextManager] = lambda last: nullcontext()) -> Iterator[tuple[str, str]]:
    """A step on some micro-batches, which stops for a look where a phase ends and another begins: (ended, begins).

    The phases are "forward" and "backward" of each micro-batch, then "step", and "clear", which is `zero_grad`. Nothing here
    holds the graph of a loss when its backward has ended.
    losses: of each micro-batch the value that `loss_of(model, batch)` returns is added.
    around(last): what forward and backward of a micro-batch run in; last: it is the step's last one.
    """
    ended = ""
    for number, batch in enumerate(batches, 1):
        yield ended, "forward"
        with around(number == len(batches)):
            loss = loss_of(model, batch)
            losses.append(loss.item())
            yield "forward", "backward"
            loss.backward()
            del loss
        ended = "backward"
    yield ended, "step"
    optimizer.step()
    yield "step", "clear"
    optimizer.zero_grad()


def train_step(*args, **kwargs) -> float:
    """The same without a stop. Returns the sum of the losses."""
    losses: list[float] = []
    for _ in phases(*args, losses, **kwargs):
        pass
    return sum(losses)


class TrainingLimits(dict):
    """The most that is right of what is seen of a training, by name. losses: as `phases` fills them.

    seen: the same, and what was over its limit in its place, when it was first. What is within is not told apart, so that
    answers which keep the limits in different ways are alike.   first: the micro-batch, counted from 1, in which a limit was
    exceeded first; 0: none was.
    """

    def __init__(self, most: Mapping[str, float], losses: Sequence[float]):
        super().__init__(most)
        self.seen, self.first, self.losses = dict(most), 0, losses

    def over(self, what: str, now: float) -> bool:
        """Is it over its limit now?"""
        if now > self[what] == self.seen[what]:
            self.seen[what], self.first = now, self.first or len(self.losses)
        return now > self[what]
