"""DeepSpeed's schedules of the learning rate, with its numbers to the last digit. They communicate nothing.

A schedule counts optimizer steps and writes `lr` (OneCycle also `betas`) into the optimizer's parameter groups. Before
the first `step()` its count is -1; after the n-th it is n - 1, so `step()` sets the rate of the update that comes next.
Formulas and defaults are those of deepspeed/runtime/lr_schedules.py (0.19.8), odd ones included; a rate is a number
for all parameter groups, or a list with one for each.
"""

import math
from collections.abc import Sequence
from inspect import signature

from torch.optim import Optimizer

from ...errors import BadInput
from ..config.load import check_section

Rate = float | Sequence[float]


class LRSchedule:
    """What the schedules have in common. A subclass says in `rates` what each parameter group's rate is at a count.

    Raises BadInput, with a line for each, for arguments that a config's section could not have either.
    """

    def __new__(cls, *args, **kwargs):
        if args or kwargs:  # not in a copy
            given = signature(cls.__init__).bind_partial(None, *args, **kwargs).arguments
            check_section("scheduler", cls.__name__, {name: value for name, value in given.items() if name not in ("self", "optimizer")})
        return super().__new__(cls)

    def __init__(self, optimizer: Optimizer):
        if not hasattr(optimizer, "param_groups"):
            raise BadInput(f"{type(self).__name__} needs a torch optimizer, not a {type(optimizer).__name__}")
        self.optimizer, self.last_batch_iteration = optimizer, -1

    def rates(self, count: int) -> list[float]:
        raise NotImplementedError

    def get_lr(self) -> list[float]:
        return self.rates(self.last_batch_iteration)

    def get_last_lr(self) -> list[float]:
        """The rates that the parameter groups have now."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Count one more step, or begin to count from a number, and set the rates of the next update."""
        if last_batch_iteration is None:
            last_batch_iteration = self.last_batch_iteration + 1
        self.last_batch_iteration = last_batch_iteration
        self.set(self.get_lr())

    def set(self, rates: list[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def state_dict(self) -> dict[str, int]:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.last_batch_iteration = state["last_batch_iteration"]

    def per_group(self, value: Rate, name: str) -> list[float]:
        """One value for each parameter group. Raises BadInput for a list of another length."""
        groups = len(self.optimizer.param_groups)
        if not isinstance(value, Sequence):
            return [value] * groups
        if len(value) != groups:
            raise BadInput(f"{name} is a list of {len(value)} rates: the optimizer has {groups} parameter groups")
        return list(value)


class LRRangeTest(LRSchedule):
    """The rate rises from a minimum, to find the largest at which a training does not diverge (arXiv 1803.09820)."""

    def __init__(self, optimizer: Optimizer, lr_range_test_min_lr: Rate = 1e-3, lr_range_test_step_size: int = 2000,
                 lr_range_test_step_rate: float = 1.0, lr_range_test_staircase: bool = False):
        super().__init__(optimizer)
        self.min_lrs = self.per_group(lr_range_test_min_lr, "lr_range_test_min_lr")
        self.step_size, self.step_rate = lr_range_test_step_size, lr_range_test_step_rate
        self.staircase = lr_range_test_staircase
        self.set(self.min_lrs)

    def rates(self, count: int) -> list[float]:
        interval = (count + 1) / self.step_size
        increase = 1 + self.step_rate * (math.floor(interval) if self.staircase else interval)
        return [rate * increase for rate in self.min_lrs]


def warm_up(count: int, steps: int, kind: str) -> float:
    """How far the warm-up has come at this count, 0 to 1. kind: "log" or "linear"."""
    return math.log(count + 1) * (1.0 / math.log(steps)) if kind == "log" else count / steps


class WarmupLR(LRSchedule):
    """The rate rises from one value to another in `warmup_num_steps` steps, at least 2, and stays there."""

    def __init__(self, optimizer: Optimizer, warmup_min_lr: Rate = 0.0, warmup_max_lr: Rate | None = None,
                 warmup_num_steps: int = 1000, warmup_type: str = "log"):
        super().__init__(optimizer)
        own = [group["lr"] for group in optimizer.param_groups]
        self.min_lrs = self.per_group(warmup_min_lr, "warmup_min_lr")
        self.max_lrs = self.per_group(own if warmup_max_lr is None else warmup_max_lr, "warmup_max_lr")
        self.warmup_num_steps, self.warmup_type = max(2, warmup_num_steps), warmup_type
        self.set(self.min_lrs)

    def gamma(self, count: int) -> float:
        """The share of the way from the lower to the upper rate."""
        return warm_up(count, self.warmup_num_steps, self.warmup_type) if count < self.warmup_num_steps else 1.0

    def rates(self, count: int) -> list[float]:
        if count < 0:
            return self.min_lrs
        gamma = self.gamma(count)
        return [low + (high - low) * gamma for low, high in zip(self.min_lrs, self.max_lrs, strict=True)]


class WarmupDecayLR(WarmupLR):
    """After the warm-up the rate falls in a straight line, to the lower rate at `total_num_steps`."""

    def __init__(self, optimizer: Optimizer, total_num_steps: int, warmup_min_lr: Rate = 0.0,
                 warmup_max_lr: Rate = 0.001, warmup_num_steps: int = 1000, warmup_type: str = "log"):
        self.total_num_steps = total_num_steps
        super().__init__(optimizer, warmup_min_lr, warmup_max_lr, warmup_num_steps, warmup_type)

    def gamma(self, count: int) -> float:
        if count < self.warmup_num_steps:
            return super().gamma(count)
        return max(0.0, (self.total_num_steps - count) / max(1.0, self.total_num_steps - self.warmup_num_steps))


class WarmupCosineLR(LRSchedule):
    """The optimizer's own rate times a factor, which rises to 1 and then falls along a cosine to `cos_min_ratio`."""

    def __init__(self, optimizer: Optimizer, total_num_steps: int, warmup_min_ratio: float = 0.0,
                 warmup_num_steps: int = 1000, cos_min_ratio: float = 0.0001, warmup_type: str = "log"):
        super().__init__(optimizer)
        self.total_num_steps, self.warmup_num_steps = total_num_steps, max(2, warmup_num_steps)
        self.warmup_min_ratio, self.cos_min_ratio, self.warmup_type = warmup_min_ratio, cos_min_ratio, warmup_type
        self.own = [group["lr"] for group in optimizer.param_groups]
        self.set([0.0] * len(self.own))

    def ratio(self, count: int) -> float:
        if count < 0:
            return 0.0
        if count < self.warmup_num_steps:
            gamma = warm_up(count, self.warmup_num_steps, self.warmup_type)
            return self.warmup_min_ratio + gamma * (1.0 - self.warmup_min_ratio)
        decay_steps = max(1, self.total_num_steps - self.warmup_num_steps)
        progress = min(1.0, (count - self.warmup_num_steps + 1) / decay_steps)  # after the end it stays at the minimum
        return max(0.0, self.cos_min_ratio + (1.0 - self.cos_min_ratio) * ((1 + math.cos(math.pi * progress)) / 2))

    def rates(self, count: int) -> list[float]:
        ratio = self.ratio(count)
        return [rate * ratio for rate in self.own]


class OneCycle(LRSchedule):
    """The rate rises and falls once and then decays; Adam's first beta goes the other way (arXiv 1803.09820).

    Upstream's oddities are kept: the first update has the lower beta with the lower rate, and the second beta becomes
    0.99.
    """

    BETA2 = 0.99

    def __init__(self, optimizer: Optimizer, cycle_min_lr: Rate, cycle_max_lr: Rate, decay_lr_rate: float = 0.0,
                 cycle_first_step_size: int = 2000, cycle_second_step_size: int | None = None,
                 cycle_first_stair_count: int = 0, cycle_second_stair_count: int | None = None,
                 decay_step_size: int = 0,
                 cycle_momentum: bool = True, cycle_min_mom: float = 0.8, cycle_max_mom: float = 0.9,
                 decay_mom_rate: float = 0.0):
        super().__init__(optimizer)
        self.first = float(cycle_first_step_size)
        self.total = self.first + float(self.first if cycle_second_step_size is None else cycle_second_step_size)
        self.stairs = (cycle_first_stair_count,
                       cycle_first_stair_count if cycle_second_stair_count is None else cycle_second_stair_count)
        self.min_lrs = self.per_group(cycle_min_lr, "cycle_min_lr")
        self.max_lrs = self.per_group(cycle_max_lr, "cycle_max_lr")
        self.decay_step_size, self.decay_lr_rate, self.decay_mom_rate = decay_step_size, decay_lr_rate, decay_mom_rate
        self.min_mom, self.max_mom = cycle_min_mom, cycle_max_mom
        self.moves_betas = cycle_momentum and "betas" in optimizer.defaults  # SGD's momentum is left alone, as upstream
        self.set(self.min_lrs)
        self.set_beta(cycle_min_mom)

    def scale(self, count: int) -> float:
        """The height in the cycle, 0 at both ends and 1 at the top."""
        place = (count + 1) / self.total
        x, top = 1.0 + place - math.floor(1 + place), self.first / self.total
        rising = x <= top
        stairs = self.stairs[not rising]
        if not stairs:
            return x / top if rising else (x - 1) / (top - 1)
        step = (count + 1) % self.total  # from the count, because rounding of x could lose a whole stair
        climbed, length = (step, self.first) if step <= self.first else (self.total - step, self.total - self.first)
        return math.floor(climbed * stairs / length) / stairs

    def decay(self, count: int, rate: float) -> float:
        """1 + rate for each `decay_step_size` steps after the cycle; 1 when there is no decay."""
        if not self.decay_step_size or not rate:
            return 1.0
        return 1 + rate * ((count - self.total + 1) / self.decay_step_size)

    def rates(self, count: int) -> list[float]:
        if count >= self.total:
            return [low / self.decay(count, self.decay_lr_rate) for low in self.min_lrs]
        scale = self.scale(count)
        return [low + (high - low) * scale for low, high in zip(self.min_lrs, self.max_lrs, strict=True)]

    def beta(self, count: int) -> float:
        if count >= self.total:
            return self.max_mom * self.decay(count, self.decay_mom_rate)
        return self.max_mom - (self.max_mom - self.min_mom) * self.scale(count)

    def step(self, last_batch_iteration: int | None = None) -> None:
        super().step(last_batch_iteration)
        self.set_beta(self.beta(self.last_batch_iteration))

    def set_beta(self, beta: float) -> None:
        for group in self.optimizer.param_groups if self.moves_betas else ():
            group["betas"] = beta, self.BETA2


SCHEDULES = {each.__name__: each for each in (LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR, WarmupCosineLR)}
