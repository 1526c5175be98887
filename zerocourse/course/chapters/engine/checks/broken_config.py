"""The check of 11.4: a ds_config that the engine refuses, and what it was meant to say."""

import copy
import json
import warnings

from .....engine.config import Config
from .....errors import BadInput
from ....checks import MISUSED, Trial, Wrong, exercise

RANKS = 4
REPAIRED = {
    "train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.5, "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupDecayLR",
                  "params": {"warmup_max_lr": 3e-4, "warmup_num_steps": 100, "total_num_steps": 1000}}}


def config_as_read(answer):
    """What the engine reads in the repaired config."""
    given = answer()
    if not isinstance(given, dict):
        raise Wrong(f"it returned {type(given).__name__}: return the config as a dictionary", MISUSED)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of keys that change nothing
            config = Config.load(json.loads(json.dumps(given)), RANKS)
    except (TypeError, ValueError) as error:
        said = str(error).splitlines() if isinstance(error, BadInput) else [f"it is no JSON ({error})"]
        more = f" (and {len(said) - 1} more)" if len(said) > 1 else ""
        return {"refused": f"{said[0]}{more}"}
    schedule = config.scheduler
    params = schedule.params if schedule else None
    highest = getattr(params, "warmup_max_lr", None)
    lr = config.optimizer.params.lr if config.optimizer else None
    return {"refused": "", "batch": config.train_batch_size, "micro": config.train_micro_batch_size_per_gpu,
            "precision": "bf16" if config.bf16.enabled else "fp16" if config.fp16.enabled else "fp32",
            "stage": config.zero_optimization.stage,
            "optimizer": optimizer_in_words(config), "decay": config.optimizer.params.weight_decay if config.optimizer else 0.0,
            "clipping": config.gradient_clipping,
            "scheduler": schedule.type if schedule else "none",
            "lengths": [getattr(params, "warmup_num_steps", 0), getattr(params, "total_num_steps", 0)],
            "highest": highest if highest is not None and schedule else lr,
            "lowest": getattr(params, "warmup_min_lr", 0.0),
            "offload": config.zero_optimization.offload_optimizer.device or "none"}


def optimizer_in_words(config):
    if config.optimizer is None:
        return "missing"
    kind, params = config.optimizer.type, config.optimizer.params
    return "AdamW" if kind == "AdamW" or kind == "Adam" and params.adam_w_mode else kind


def without(*path):
    def change(config):
        *sections, last = path
        for key in sections:
            config = config[key]
        config.pop(last, None)
    return change


def set_to(value, *path):
    def change(config):
        *sections, last = path
        for key in sections:
            config = config.setdefault(key, {})
        config[last] = value
    return change


@exercise(
    "11.4", "Repair this file", minutes=15, difficulty=1, trials=[Trial(observe=config_as_read)],
    mistakes={
        "clipping lost": {"change": without("gradient_clipping")},
        "micro lost": ({"change": without("train_micro_batch_size_per_gpu")},
                       {"change": set_to(2, "train_micro_batch_size_per_gpu")}),
        "batch grown": ({"change": set_to(128, "train_batch_size")},),
        "fp16": {"change": lambda config: (without("bf16")(config), set_to(True, "fp16", "enabled")(config))},
        "fp32": {"change": without("bf16")},
        "stage lost": {"change": without("zero_optimization")},
        "optimizer lost": {"change": without("optimizer")},
        "rate of the optimizer": {"change": without("scheduler", "params", "warmup_max_lr")},
        "does not fall to 0": {"change": set_to(3e-4, "scheduler", "params", "warmup_min_lr")},
        "total without the warm-up": ({"change": set_to(900, "scheduler", "params", "total_num_steps")},
                                      {"change": set_to(1100, "scheduler", "params", "total_num_steps")}),
        "scheduler lost": {"change": without("scheduler")},
        "no decay": {"change": set_to("WarmupLR", "scheduler", "type")},
        "plain Adam": {"change": lambda config: (set_to("Adam", "optimizer", "type")(config),
                                                 set_to(False, "optimizer", "params", "adam_w_mode")(config))},
        "weights do not shrink": {"change": without("optimizer", "params", "weight_decay")},
    })
def repaired(*, change=lambda config: None):
    """The repaired config, with one more change."""
    config = copy.deepcopy(REPAIRED)
    change(config)
    if config.get("scheduler", {}).get("type") == "WarmupLR":
        del config["scheduler"]["params"]["total_num_steps"]
    return config
