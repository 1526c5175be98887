"""The modules that stand in for DeepSpeed's in this process, and the metadata of its distribution.

`MODULES` is all that transformers 5 and accelerate 1 import, unless they are asked for what our stages do not do, and what
a plain DeepSpeed script begins with. Only `zero.GatheredParameters` communicates.
"""

import importlib.abc
import importlib.metadata
import importlib.util
import logging
import sys
from types import ModuleType

import torch
import torch.distributed as dist

from ...errors import BadInput
from .. import familiar
from ..compatibility import reason
from ..updates.schedules import SCHEDULES
from . import helper_names, parameter_status
from .adam import DeepSpeedCPUAdam, FusedAdam
from .deepspeed_engine import DeepSpeedEngine, initialize
from .deferred_parameters import GatheredParameters
from .zero_init import Init

VERSION = "0.19.8+zerocourse"  # the DeepSpeed whose names these are: transformers and accelerate ask for versions


def init_distributed(*args, **kwargs) -> None:
    """As zerocourse's, and accelerate gets to know the group."""
    familiar.init_distributed(*args, **kwargs)
    is_initialized()


def is_initialized() -> bool:
    """Is there a process group? If so, accelerate gets to know it.

    accelerate knows of backends for accelerators alone. Where there is none it would start the group by this module, and
    then take each rank for the only one, since its own `backend` is None. It asks here before it looks at that. Where ranks
    share a GPU its `backend` is nccl, and it would call what gloo has not.
    """
    accelerate = sys.modules.get("accelerate.state")
    if dist.is_initialized() and accelerate is not None:
        state = accelerate.PartialState._shared_state
        if "backend" in state and (state["backend"] is None or "nccl" not in dist.get_backend()):
            state["backend"] = dist.get_backend()
    return dist.is_initialized()


def clone_tensors_for_torch_save(state: dict, device: torch.device | str = "cpu") -> dict:
    """Copies of the state's tensors, so that a file has no more of a flat buffer than the tensor itself."""
    return {name: value.detach().to(device, copy=True) if isinstance(value, torch.Tensor) else value
            for name, value in state.items()}


MODULES: dict[str, dict[str, object]] = {
    "deepspeed": {"__version__": VERSION, "initialize": initialize, "DeepSpeedEngine": DeepSpeedEngine,
                  "init_distributed": init_distributed, "add_config_arguments": familiar.add_config_arguments},
    "deepspeed.checkpoint": {},
    "deepspeed.checkpoint.utils": {"clone_tensors_for_torch_save": clone_tensors_for_torch_save},
    "deepspeed.comm": {"is_initialized": is_initialized, "init_distributed": init_distributed,
                       "get_rank": dist.get_rank, "get_world_size": dist.get_world_size, "barrier": dist.barrier},
    "deepspeed.ops": {},
    "deepspeed.ops.adam": {"DeepSpeedCPUAdam": DeepSpeedCPUAdam, "FusedAdam": FusedAdam},
    "deepspeed.runtime": {},
    "deepspeed.runtime.engine": {"DeepSpeedEngine": DeepSpeedEngine},
    "deepspeed.runtime.lr_schedules": {"VALID_LR_SCHEDULES": list(SCHEDULES)},
    "deepspeed.runtime.zero": {},
    # transformers replaces this function while zero.Init builds a model. Ours has no such function to call.
    "deepspeed.runtime.zero.partition_parameters": {"zero_wrapper_for_fp_tensor_constructor": None,
                                                    "ZeroParamStatus": parameter_status.ZeroParamStatus},
    "deepspeed.utils": {"logger": logging.getLogger("deepspeed")},
    "deepspeed.zero": {"Init": Init, "GatheredParameters": GatheredParameters},
}
for module, names in helper_names.MODULES.items():
    MODULES[module] = MODULES.get(module, {}) | names


class StandInDistribution(importlib.metadata.Distribution):
    """The metadata by which packages find out that `deepspeed` is installed, and in which version."""

    def read_text(self, filename: str) -> str | None:
        return f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {VERSION}\n" if filename == "METADATA" else None

    def locate_file(self, path):
        raise FileNotFoundError(f"{path}: the stand-in for deepspeed has no files")


class StandInFinder(importlib.metadata.DistributionFinder, importlib.abc.Loader):
    """Finds the modules of the table, before a DeepSpeed that is installed. A name that is missing is refused."""

    def find_spec(self, name: str, path=None, target=None):
        if name.partition(".")[0] != "deepspeed":
            return None
        if name not in MODULES:
            raise ModuleNotFoundError(refusal(name), name=name)
        return importlib.util.spec_from_loader(name, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(MODULES[module.__name__])
        module.__getattr__ = lambda name: _attribute(module.__name__, name)

    def find_distributions(self, context=importlib.metadata.DistributionFinder.Context()):
        if context.name is None or context.name.lower() == "deepspeed":
            yield StandInDistribution()


def _attribute(module: str, name: str) -> object:
    """A module below, as in `import deepspeed; deepspeed.zero.Init`. Raises AttributeError for what is not there."""
    if f"{module}.{name}" in MODULES:
        return importlib.import_module(f"{module}.{name}")
    raise AttributeError(refusal(f"{module}.{name}"))


def refusal(name: str) -> str:
    """One sentence on a name of DeepSpeed that is not there."""
    instead = reason(name) or "use the public names of zerocourse"
    return f"zerocourse, which stands in for DeepSpeed here, has no {name!r}: {instead}"


def install() -> None:
    """From now on, `import deepspeed` finds the stand-in. Raises BadInput if a DeepSpeed has been imported already."""
    if "deepspeed" in sys.modules:
        if any(isinstance(finder, StandInFinder) for finder in sys.meta_path):
            return
        raise BadInput("DeepSpeed itself has been imported in this process: install the stand-in before anything imports it")
    parameter_status.install()
    sys.meta_path.insert(0, StandInFinder())
