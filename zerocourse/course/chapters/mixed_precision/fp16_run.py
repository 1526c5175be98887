"""A training in fp16 whose gradients overflow now and then, and what each rank sees of its loss scale."""

from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from ....comm import Comm
from ....engine import Engine
from ....engine.config import Config
from ....errors import CollectiveError
from ....models.gpt2 import GPT, GPTConfig
from ....precision import LossScaler
from ...museum.bug import Bug

SHAPE = GPTConfig(2, 2, 32, block_size=16, vocab_size=256)
TOO_LARGE = 1e9  # in fp16 a gradient of this size is inf under any loss scale


class ScalerByRule(LossScaler):
    """A loss scale whose life a function decides, such as a learner's.

    rule(scale, good, overflow, window): the scale after a step, and the good steps since it changed.
    """

    dynamic = True

    def __init__(self, rule: Callable, initial: float, window: int):
        super().__init__(initial)
        self.rule, self.window, self.good = rule, window, 0

    def update(self, overflow: bool) -> None:
        self.loss_scale, self.good = self.rule(self.loss_scale, self.good, overflow, self.window)


@dataclass
class Fp16Seen:
    """What one rank saw, one entry a step.

    scales: under which the step was computed.   skipped: was it?   rates: the learning rate after it.
    updates: steps that the optimizer has counted after it.   error: in which the training ended, if it did.
    """

    scales: list[float] = field(default_factory=list)
    skipped: list[bool] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    updates: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    error: str | None = None


def train_fp16(steps: int, scale_power: int, window: int = 6, hysteresis: int = 1, overflows: Collection[int] = (),
               bug: Bug | None = None, seconds: float = 30.0, rule: Callable | None = None) -> Fp16Seen:
    """Train a small GPT-2 in fp16 at stage 1, each rank on its own samples of one text. Collective.

    scale_power: the loss scale begins at 2 to this power.   window, hysteresis: those of `DynamicLossScaler`.
    overflows: the steps in which the last rank has a gradient that is infinite, in the final LayerNorm's bias alone.
    bug: of the museum, planted meanwhile.   seconds: after which a collective that nobody answers is given up.
    rule: decides the scale's life, see `ScalerByRule`; None: the package's own scaler.
    The learning rate falls by the same amount with each update.
    """
    comm, seen = Comm(dist.new_group(), timeout=seconds), Fp16Seen()
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}, "gradient_clipping": 1.0,
              "fp16": {"enabled": True, "initial_scale_power": scale_power, "loss_scale_window": window,
                       "hysteresis": hysteresis}}
    torch.manual_seed(0)
    model = GPT(SHAPE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1 - update / steps)
    engine = Engine(model, optimizer, Config.load(config, comm.world_size), comm, schedule)
    if rule:
        engine.loss_scaler = ScalerByRule(rule, 2.0**scale_power, window)
    words = torch.Generator().manual_seed(comm.rank)
    try:
        with bug.planted() if bug else nullcontext():
            for step in range(steps):
                tokens = torch.randint(97, 123, (4, SHAPE.block_size + 1), generator=words).sort().values
                loss = engine(tokens[:, :-1], tokens[:, 1:])
                seen.losses.append(loss.item())
                if step in overflows and comm.rank == comm.world_size - 1:
                    loss = loss + TOO_LARGE * engine.module.ln_f.bias.float().sum()
                seen.scales.append(engine.loss_scale())
                engine.backward(loss)
                engine.step()
                seen.skipped.append(not engine.was_step_applied())
                seen.rates.append(optimizer.param_groups[0]["lr"])
                seen.updates.append(int(max((state["step"] for state in optimizer.state.values()), default=0)))
    except CollectiveError as error:
        seen.error = str(error)
    return seen
