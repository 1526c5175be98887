"""DeepSpeed's names for scripts beside the training loop: where `import deepspeed` finds each. It communicates nothing."""

import logging
from types import SimpleNamespace

import torch.distributed as dist
from torch import nn

from ...comm import bootstrap
from ...data.repeating import RepeatingLoader
from ...offload.tiling import TiledLinear
from ...zero.whole import one_parameter
from .. import leaf_modules, pipeline_module
from ..checkpoint import zero_to_fp32
from . import recompute
from .torch_accelerator import ACCELERATOR, OnDevice


def public(module, *prefixes: str) -> dict[str, object]:
    """The functions of a module whose names begin so."""
    return {name: thing for name, thing in vars(module).items() if name.startswith(prefixes)}


ONE_PARAMETER = public(one_parameter, "safe_")
LEAVES = public(leaf_modules, "set_z3_", "unset_z3_", "get_z3_", "z3_leaf_")
RECOMPUTE = public(recompute, "checkpoint", "configure", "is_configured", "reset", "non_reentrant")

COLLECTIVES = (  # of torch.distributed, under DeepSpeed's name
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single", "broadcast",
    "broadcast_object_list", "destroy_process_group", "gather", "get_backend", "get_global_rank", "irecv", "is_available", "isend",
    "monitored_barrier", "new_group", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "send", "ReduceOp")


def log_dist(message: str, ranks: list[int] | None = None, level: int = logging.INFO) -> None:
    """Log the message on these ranks, by `deepspeed.utils.logger`; without a list, or with -1 in it, on all."""
    if not ranks or -1 in ranks or not dist.is_initialized() or dist.get_rank() in ranks:
        logging.getLogger("deepspeed").log(level, message)


def register_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """Nothing has to be registered: stage 3 gathers a parameter wherever it is used."""


PIPELINE = public(pipeline_module, "PipelineModule", "LayerSpec", "TiedLayerSpec")

MODULES: dict[str, dict[str, object]] = {
    "deepspeed": {"OnDevice": OnDevice, "log_dist": log_dist, "checkpointing": SimpleNamespace(**RECOMPUTE), "get_accelerator": lambda: ACCELERATOR,
                  "PipelineModule": pipeline_module.PipelineModule},
    "deepspeed.accelerator": {"get_accelerator": lambda: ACCELERATOR},
    "deepspeed.checkpointing": RECOMPUTE,
    "deepspeed.comm": {name: getattr(dist, name) for name in COLLECTIVES} | {"get_local_rank": bootstrap.local_rank},
    "deepspeed.pipe": PIPELINE,
    "deepspeed.runtime.activation_checkpointing": {},
    "deepspeed.runtime.activation_checkpointing.checkpointing": RECOMPUTE,
    "deepspeed.runtime.dataloader": {"RepeatingLoader": RepeatingLoader},
    "deepspeed.runtime.pipe": {},
    "deepspeed.runtime.pipe.module": PIPELINE,
    "deepspeed.utils": ONE_PARAMETER | LEAVES | {"OnDevice": OnDevice, "RepeatingLoader": RepeatingLoader, "log_dist": log_dist},
    "deepspeed.utils.z3_leaf_module": LEAVES,
    "deepspeed.utils.zero_to_fp32": public(zero_to_fp32, "get_fp32", "load_state_dict", "convert_zero"),
    "deepspeed.zero": {"TiledLinear": TiledLinear, "register_external_parameter": register_external_parameter,
                       "unregister_external_parameter": register_external_parameter},
}
