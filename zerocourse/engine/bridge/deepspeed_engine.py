"""The engine as transformers' Trainer and accelerate drive it. It communicates what the engine below communicates."""

import math
import weakref
from typing import cast

import torch
from torch import nn

from ...zero.extras.refusals import on_meta
from ...zero.whole.consolidate import state_dict
from ...zero.whole.generation import generating
from .. import engine as engines
from ..checkpoint.saving import stage_of
from ..engine import Engine
from ..pipeline_engine import PipelineEngine
from .deferred_parameters import deferred

ADDED = ("steps_per_print", "zero_allow_untested_optimizer")  # by accelerate, to every config; they change nothing here


def initialize(*args, config: object = None, config_params: object = None, **kwargs) -> tuple:
    """`zerocourse.initialize`, whose engine also answers to accelerate. See there."""
    config = config_params if config is None else config
    if isinstance(config, dict):
        given = config
        config = {key: value for key, value in config.items() if key not in ADDED}
        if given.get("steps_per_print") not in (None, math.inf):  # the user's own: the engine says what becomes of it
            config["steps_per_print"] = given["steps_per_print"]
    model = kwargs["model"] if "model" in kwargs else args[0] if args else None
    params = dict(model.named_parameters()) if isinstance(model, nn.Module) else {}
    if deferred(params.values()):
        readers = {name: param.read for name, param in params.items() if getattr(param, "read", None) and param.is_meta}
        kwargs = {"seed": torch.initial_seed(), "weights": readers} | kwargs  # transformers' set_seed decides what is drawn
    engine, optimizer, loader, scheduler = engines.initialize(*args, config=config, **kwargs)
    if isinstance(engine, PipelineEngine):
        return engine, optimizer, loader, scheduler
    if hasattr(engine.module, "save_pretrained"):
        write_alone(engine.module)
    if hasattr(engine.module, "get_base_model") and hasattr(engine.module, "generate"):
        generate_whole(engine.module)
    return DeepSpeedEngine(engine, config), optimizer, loader, scheduler


def write_alone(model: nn.Module) -> None:
    """`model.save_pretrained(folder, state_dict=...)` writes what it is given, without the other ranks.

    The Trainer gathers the weights first, and then rank 0 alone calls it. Without `state_dict` whoever calls it writes the weights
    below stage 3, where each rank has them whole; else it stays collective.
    """
    collective, own, here = model.save_pretrained, type(model).save_pretrained, weakref.ref(model)

    def save_pretrained(folder, *args, **kwargs):
        sharded = cast(nn.Module, here())
        if kwargs.get("state_dict") is None:
            stage = stage_of(sharded)
            if stage.shards_parameters or stage.groups.experts is not None or stage.offload is not None and stage.offload.delays:
                return collective(folder, *args, **kwargs)
            kwargs["state_dict"] = state_dict(sharded)
        with on_meta(sharded):
            return own(sharded, folder, *args, **kwargs)

    model.save_pretrained = save_pretrained


def generate_whole(model: nn.Module) -> None:
    """PEFT's `generate` runs the base model by itself, and stage 3 gathers the root's parameters for the whole model alone: all
    are gathered once around it."""
    own, here = type(model).generate, weakref.ref(model)

    def generate(*args, **kwargs):
        with generating(here()):
            return own(here(), *args, **kwargs)

    model.generate = generate


def of_engine(name: str) -> property:
    return property(lambda self: getattr(self.engine, name))


class DeepSpeedEngine(nn.Module):
    """Our engine as a torch module around the model, which DeepSpeed's is, and what accelerate and the Trainer ask of it.

    engine: ours, which has every other attribute.   config: as `initialize` got it; the Trainer reads the stage there.
    """

    def __init__(self, engine: Engine, config: object):
        super().__init__()
        self.engine, self.module = engine, engine.module
        self.config = config if isinstance(config, dict) else engine.config.as_dict()
        if self.optimizer is not None:
            self.optimizer.parameter_offload = NoHooks()

    def forward(self, *args, **kwargs):
        return self.engine(*args, **kwargs)

    def __getattr__(self, name: str):
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "engine":  # while __init__ has not run, as in a copy
                raise
        return getattr(self.engine, name)

    # What a torch module answers for itself, and the engine for all ranks.
    compile, zero_grad, state_dict, load_state_dict, parameters, named_parameters = map(
        of_engine, ("compile", "zero_grad", "state_dict", "load_state_dict", "parameters", "named_parameters"))

    def zero_gather_16bit_weights_on_model_save(self) -> bool:
        return True  # whether or not the config says so: whole weights are always to be had

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters: bool = False) -> dict:
        """Whole weights in their training dtype, on rank 0; the others get an empty dictionary. Collective."""
        return state_dict(self.module, rank_0_only=True, exclude_frozen=exclude_frozen_parameters)


class NoHooks:
    """What TRL looks for at the optimizer to take DeepSpeed's hooks off before a model generates under GatheredParameters,
    and to put them on again. A forward inside of ours frees nothing, so there are none."""

    def __init__(self):
        self.module, self.forward_hooks, self.backward_hooks = nn.Module(), [], []
        self.module.ds_external_parameters = list  # of none

    def _register_deepspeed_module(self, module: nn.Module) -> None:
        """The hooks are where they were."""
