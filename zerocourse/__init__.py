"""zerocourse: ZeRO (the Zero Redundancy Optimizer), every idea as real code, whose core one reads in an evening.

    import zerocourse as deepspeed
    engine, optimizer, loader, scheduler = deepspeed.initialize(model=model, optimizer=optimizer, config="ds_config.json")

or, without any config: `model, optimizer = zerocourse.shard(model, optimizer, stage=3)`.
"""

import importlib
import importlib.util

__version__ = "0.1.0"

_ONE_PARAMETER = [f"safe_{verb}_{part}_{what}" for verb in ("get", "set") for part in ("full", "local")
                  for what in ("fp32_param", "grad", "optimizer_state")] + ["safe_update_full_grad_vectorized"]
_LEAVES = ["set_z3_leaf_modules", "unset_z3_leaf_modules", "get_z3_leaf_modules", "set_z3_leaf_module", "set_z3_leaf_modules_by_name",
           "set_z3_leaf_modules_by_suffix", "z3_leaf_module", "z3_leaf_parameter"]
_ZERO_TO_FP32 = ["get_fp32_state_dict_from_zero_checkpoint", "load_state_dict_from_zero_checkpoint",
                 "convert_zero_checkpoint_to_fp32_state_dict"]
# Where each public name lives. It is imported when it is asked for: the formulas need no torch, and torch takes seconds.
_HOME = {
    "initialize": "engine", "Engine": "engine",
    "init_distributed": "engine.familiar", "add_config_arguments": "engine.familiar",
    "shard": "zero.extras", "gathered": "zero.whole.consolidate", "generating": "zero.whole.generation",
    "state_dict": "zero.whole.consolidate", "load_state_dict": "zero.whole.consolidate",
    "fp32_state_dict": "zero.whole.fp32_weights",
    **dict.fromkeys(_ONE_PARAMETER, "zero.whole.one_parameter"), **dict.fromkeys(_LEAVES, "engine.leaf_modules"),
    **dict.fromkeys(_ZERO_TO_FP32, "engine.checkpoint.zero_to_fp32"), "RepeatingLoader": "data.repeating",
    **dict.fromkeys(["PipelineModule", "LayerSpec", "TiedLayerSpec"], "engine.pipeline_module"),
    "save_checkpoint": "engine.checkpoint", "load_checkpoint": "engine.checkpoint",
    "save_safetensors": "engine.checkpoint.safetensors_export", "load_safetensors": "zero.whole.weights",
    "ZeroOptions": "zero.options", "Precision": "zero.options",
    "deferred_init": "init.deferred", "materialize_model": "init.deferred", "Ledger": "measure.ledger", "Comm": "comm",
    "Ranks": "launch.ranks",
}
_ROOMS = ("zero",)  # rooms that are named as such, for `deepspeed.zero.Init`
__all__ = ["__version__", "load_ipython_extension", *_HOME]
# What chapters import, all from package indexes under the same name. A wheel that is installed alone, as on Kaggle, brings none.
_NEEDED = ("torch", "numpy", "cloudpickle", "matplotlib", "pydantic", "safetensors", "tqdm", "ipywidgets")


def load_ipython_extension(shell) -> None:
    """`%load_ext zerocourse`: `launch.magics`. Raises ModuleNotFoundError where a package is missing that chapters need."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"the course needs {', '.join(missing)}, not installed here: run %pip install "
                                  f"{' '.join(missing)} and restart the kernel")
    importlib.import_module(".launch.magics", __name__).load_ipython_extension(shell)


def __getattr__(name: str):
    if name in _HOME:
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    if name in _ROOMS:
        return importlib.import_module(f".{name}", __name__)
    table = importlib.import_module(".engine.compatibility", __name__) if not name.startswith("_") else None
    said = table and table.refusal("zerocourse", f"deepspeed.{name}")
    raise AttributeError(said or f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
