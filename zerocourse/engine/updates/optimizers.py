"""The optimizer and the schedule of a config, where `initialize` was given none. They communicate nothing."""

import warnings
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.optim import Optimizer

from ...comm import bootstrap
from ...errors import BadInput
from ...zero.extras.refusals import WHOLE_TENSORS, is_one_of
from ..config import Config
from .lion import Lion
from .schedules import SCHEDULES, LRSchedule


def build_optimizer(config: Config, params: Iterable) -> Optimizer | None:
    """The optimizer of the config's section over these parameters or parameter groups; None without the section.

    A parameter group's own `lr`, `weight_decay` and the like stay. "Adam" is AdamW unless `adam_w_mode` is false,
    as in DeepSpeed, and a weight decay that is not given is 0. With offload both are torch's fused
    ones, as DeepSpeed takes its CPUAdam: several times as fast on a CPU as the others (`bench.parts.cpu_adam`). On a GPU they are, too:
    one kernel reads and writes every state once.
    """
    if config.optimizer is None:
        return None
    settings = config.optimizer.params.model_dump()
    offloaded = config.zero_optimization.offload_optimizer.device not in ("none", None)
    if (offloaded or bootstrap.device().type == "cuda") and config.optimizer.type in ("Adam", "AdamW"):
        settings["fused"] = True
    decouples = settings.pop("adam_w_mode", True) or config.optimizer.type == "AdamW"
    kind = {"Adam": torch.optim.AdamW if decouples else torch.optim.Adam, "AdamW": torch.optim.AdamW, "Lion": Lion,
            "SGD": torch.optim.SGD}[config.optimizer.type]
    return kind(params, **settings)


def choose_optimizer(config: Config, given: Optimizer | Callable | None, model: nn.Module,
                     params: Iterable | None) -> Optimizer | None:
    """The optimizer that was given, or what the given function makes, or the config's. Raises BadInput.

    Warns when the config has one as well, which then counts for nothing.
    """
    params = list(model.parameters() if params is None else params)
    if given is None:
        return build_optimizer(config, params)
    if config.optimizer is not None:
        warnings.warn("initialize was given an optimizer, so the config's section optimizer changes nothing",
                      stacklevel=3)
    if isinstance(given, Optimizer):
        return given
    if not callable(given):
        raise BadInput(f"optimizer is a {type(given).__name__}: it must be a torch optimizer, or a function that makes "
                       "one from a list of parameters")
    return given(params)


def rank_map_for(optimizer: Optimizer | None, stage: int) -> str | None:
    """How `shard` is to divide the model: whole tensors for an optimizer that looks at them, as Adafactor and Muon do."""
    return "greedy" if stage and is_one_of(optimizer, WHOLE_TENSORS) else None


def build_scheduler(config: Config, optimizer: Optimizer | None) -> LRSchedule | None:
    """The schedule of the config's section over this optimizer; None without the section. Raises BadInput."""
    if config.scheduler is None:
        return None
    if optimizer is None:
        raise BadInput(f"scheduler.type is {config.scheduler.type!r}, and there is no optimizer whose rate it could "
                       "set: give initialize an optimizer, or the config a section optimizer")
    return SCHEDULES[config.scheduler.type](optimizer, **config.scheduler.params.model_dump())


def choose_scheduler(config: Config, given, optimizer: Optimizer | None):
    """The schedule that was given, or what the given function makes, or the config's. Raises BadInput.

    Warns when the config has one as well, which then counts for nothing.
    """
    if given is None:
        return build_scheduler(config, optimizer)
    if config.scheduler is not None:
        warnings.warn("initialize was given lr_scheduler, so the config's section scheduler changes nothing",
                      stacklevel=3)
    return given(optimizer) if callable(given) and not hasattr(given, "step") else given


def hyper_parameters(optimizer: object) -> dict[str, object]:
    """The defaults of a torch optimizer, which say what "auto" means; of anything else none."""
    return dict(optimizer.defaults) if isinstance(optimizer, Optimizer) else {}
