"""DeepSpeed's names for scripts beside the training loop: where `import deepspeed` finds each. It communicates nothing."""

from types import SimpleNamespace

from ...data.repeating import RepeatingLoader
from ...offload.tiling import TiledLinear
from ...zero.whole import one_parameter
from .. import leaf_modules
from ..checkpoint import zero_to_fp32
from . import recompute
from .torch_accelerator import ACCELERATOR, OnDevice


def public(module, *prefixes: str) -> dict[str, object]:
    """The functions of a module whose names begin so."""
    return {name: thing for name, thing in vars(module).items() if name.startswith(prefixes)}


ONE_PARAMETER = public(one_parameter, "safe_")
LEAVES = public(leaf_modules, "set_z3_", "unset_z3_", "get_z3_", "z3_leaf_")
RECOMPUTE = public(recompute, "checkpoint", "configure", "is_configured", "reset", "non_reentrant")

MODULES: dict[str, dict[str, object]] = {
    "deepspeed": {"OnDevice": OnDevice, "checkpointing": SimpleNamespace(**RECOMPUTE), "get_accelerator": lambda: ACCELERATOR},
    "deepspeed.accelerator": {"get_accelerator": lambda: ACCELERATOR},
    "deepspeed.checkpointing": RECOMPUTE,
    "deepspeed.runtime.activation_checkpointing": {},
    "deepspeed.runtime.activation_checkpointing.checkpointing": RECOMPUTE,
    "deepspeed.runtime.dataloader": {"RepeatingLoader": RepeatingLoader},
    "deepspeed.utils": ONE_PARAMETER | LEAVES | {"OnDevice": OnDevice, "RepeatingLoader": RepeatingLoader},
    "deepspeed.utils.z3_leaf_module": LEAVES,
    "deepspeed.utils.zero_to_fp32": public(zero_to_fp32, "get_fp32", "load_state_dict", "convert_zero"),
    "deepspeed.zero": {"TiledLinear": TiledLinear},
}
