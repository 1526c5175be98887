"""Reads a ds_config, and checks and resolves the keys that the engine understands. It communicates nothing.

The names and rules are DeepSpeed's. A mistake gets one sentence that names the key, its value, and what would be right.
"""

import difflib
import json
import warnings
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ..errors import BadInput
from ..formulas.units import integer

# Other keys of DeepSpeed's files, by section ("" is the top level), so that these files can be used as they are.
CHANGES_NOTHING = {  # accepted, with one warning
    "": ("steps_per_print", "wall_clock_breakdown", "dump_state", "memory_breakdown", "prescale_gradients",
         "gradient_predivide_factor", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
         "dataloader_drop_last"),
    "bf16": ("immediate_grad_update", "check_grad_overflow"),
    "zero_optimization": (
        "contiguous_gradients", "reduce_scatter", "use_multi_rank_bucket_allreduce", "allgather_partitions",
        "allgather_bucket_size", "round_robin_gradients", "load_from_fp32_weights", "elastic_checkpoint",
        "legacy_stage1", "ignore_unused_parameters", "sub_group_size", "memory_efficient_linear",
        "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "stage3_model_persistence_threshold",
        "stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_module_granularity_threshold",
        "stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save"),
}
NOT_YET = {  # refused, unless switched off
    "": ("fp16", "optimizer", "scheduler", "activation_checkpointing", "checkpoint", "elasticity", "pipeline",
         "communication_data_type", "data_types", "sparse_gradients", "aio"),
    "zero_optimization": ("offload_optimizer", "offload_param", "cpu_offload", "cpu_offload_param"),
}
NEVER = {  # refused, unless switched off
    "": ("amp", "autotuning", "compression_training", "curriculum_learning", "data_efficiency",
         "progressive_layer_drop", "eigenvalue", "sparse_attention", "hybrid_engine", "flops_profiler",
         "comms_logger", "tensorboard", "wandb", "csv_monitor", "comet"),
    "zero_optimization": ("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights",
                          "zero_hpz_partition_size", "zeropp_loco_param", "mics_shard_size",
                          "mics_hierarchical_params_gather"),
}
INSTEAD = {"fp16": "use bf16", "optimizer": "give initialize an optimizer", "scheduler": "give initialize lr_scheduler"}


@dataclass(frozen=True)
class ZeroConfig:
    """`zero_optimization`. Bucket sizes are in elements."""

    stage: int = 0
    reduce_bucket_size: int = 500_000_000
    overlap_comm: bool | None = None  # None means on, at every stage


@dataclass(frozen=True)
class Bf16Config:
    """`bf16`: parameters and gradients in bf16, fp32 master weights in the optimizer."""

    enabled: bool = False


@dataclass(frozen=True)
class Config:
    """A resolved configuration: train_batch_size = micro batch × accumulation × world size."""

    train_batch_size: int
    train_micro_batch_size_per_gpu: int
    gradient_accumulation_steps: int
    gradient_clipping: float = 1.0  # the largest 2-norm of the gradient; 0 means no clipping
    zero_optimization: ZeroConfig = ZeroConfig()
    bf16: Bf16Config = Bf16Config()

    @classmethod
    def load(cls, config: dict | str | Path, world_size: int) -> "Config":
        """Read a dictionary or a JSON file, for this many ranks. Raises BadInput.

        Warns once of keys that DeepSpeed knows and that change nothing here, with their names.
        """
        if not isinstance(config, dict | str | Path):
            raise BadInput(f"the config is a {type(config).__name__}: it must be a dictionary or a JSON file's path")
        ignored: list[str] = []
        given = understood(config if isinstance(config, dict) else read_json(Path(config)), "", cls, ignored)
        zero = understood(given.get("zero_optimization", {}), "zero_optimization", ZeroConfig, ignored)
        bf16 = understood(given.get("bf16", {}), "bf16", Bf16Config, ignored)
        if ignored:
            warnings.warn(f"these keys of the config change nothing here and are ignored: {', '.join(ignored)}",
                          stacklevel=3)

        if "stage" in zero:
            zero["stage"] = integer(zero["stage"], "zero_optimization.stage", 0, 3)
        if "reduce_bucket_size" in zero:
            zero["reduce_bucket_size"] = integer(zero["reduce_bucket_size"], "zero_optimization.reduce_bucket_size", 1)
        if zero.get("overlap_comm") is not None:
            boolean(zero["overlap_comm"], "zero_optimization.overlap_comm")
        boolean(bf16.get("enabled", False), "bf16.enabled")
        clip = given.get("gradient_clipping", cls.gradient_clipping)
        if isinstance(clip, bool) or not isinstance(clip, int | float) or not 0 <= clip < float("inf"):
            raise BadInput(f"gradient_clipping is {clip!r}: it must be a number, 0 (off) or more")
        return cls(*batch_sizes(given, world_size), float(clip), ZeroConfig(**zero), Bf16Config(**bf16))

    def as_dict(self) -> dict:
        """The config with every default resolved, ready to be written as JSON."""
        return asdict(self)


def batch_sizes(given: dict, world_size: int) -> tuple[int, int, int]:
    """The sizes train, micro and accumulation. Any two of them give the third. Raises BadInput."""
    names = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
    train, micro, steps = (integer(given[name], name, 1) if name in given else None for name in names)
    if train is None and micro is None:
        raise BadInput(f"neither {names[0]} nor {names[1]} is given: at least one of them is needed")
    if train is None:
        steps = steps or 1
        train = micro * steps * world_size
    elif micro is None:
        steps = steps or 1
        micro = divided(train, steps, names[2], world_size)
    elif steps is None:
        steps = divided(train, micro, names[1], world_size)
    if train != micro * steps * world_size:
        raise BadInput(f"train_batch_size {train} is not micro-batch {micro} × accumulation {steps} × "
                       f"ranks {world_size} = {micro * steps * world_size}")
    return train, micro, steps


def divided(train: int, by: int, what: str, world_size: int) -> int:
    if train % (by * world_size):
        raise BadInput(f"train_batch_size {train} is not divisible by {by} × {world_size} ({what} × ranks)")
    return train // (by * world_size)


def understood(given: object, section: str, of: type, ignored: list[str]) -> dict:
    """The keys of a section that are fields of its dataclass. Adds those that change nothing to `ignored`.

    Raises BadInput for all others, unless a key that is not supported is switched off.
    """
    if not isinstance(given, dict):
        raise BadInput(f"{section} is {given!r}: it must be an object")
    known = [field.name for field in fields(of)]
    nothing, not_yet, never = (table.get(section, ()) for table in (CHANGES_NOTHING, NOT_YET, NEVER))
    kept, prefix = {}, f"{section}." if section else ""
    for key, value in given.items():
        if key in known:
            kept[key] = value
        elif key in nothing:
            ignored.append(prefix + key)
        elif key not in not_yet and key not in never:
            close = difflib.get_close_matches(str(key), [*known, *nothing, *not_yet], 1)
            meant = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"
            raise BadInput(f"{section or 'the config'} has the unknown key {key!r}; {meant}")
        elif not is_off(value):
            raise BadInput(f"{prefix}{key} is not supported{' yet' if key in not_yet else ''}: "
                           f"{INSTEAD.get(key, 'leave it out')}")
    return kept


def is_off(value: object) -> bool:
    """Whether a value switches its feature off: `{"enabled": false}`, `{"device": "none"}`, false, null or nothing."""
    if isinstance(value, dict):
        return not value or value.get("enabled") is False or value.get("device", "") in ("none", None)
    return value is None or value is False


def boolean(value: object, name: str) -> None:
    if not isinstance(value, bool):
        raise BadInput(f"{name} is {value!r}: it must be true or false")


def read_json(path: Path) -> dict:
    """A JSON object whose keys are unique. Raises BadInput with the line of a mistake."""

    def unique(pairs):
        names = [name for name, _ in pairs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise BadInput(f"{path} gives the key {twice!r} twice")
        return dict(pairs)

    try:
        config = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=unique)
    except OSError as error:
        raise BadInput(f"the config {path} cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise BadInput(f"{path} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not JSON: it is not text in UTF-8") from error
    if not isinstance(config, dict):
        raise BadInput(f"{path} holds a {type(config).__name__}: a config is a JSON object")
    return config
