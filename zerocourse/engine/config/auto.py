"""Keys that are "auto": their values come from what `initialize` was given, or they are refused by name.

Files with "auto" are written for Hugging Face's Trainer, which fills them in from its TrainingArguments; `initialize`
does so when it is given them as `args`. What the arguments do not say comes from the optimizer.
"""

import math
from collections.abc import Callable, Mapping

from .keys import KEYS, Group
from .problems import get

AUTO = "auto"
LEFT_OUT = {  # "auto" is the same as leaving the key out: the other sizes, or the default, say what it is
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "zero_optimization.reduce_bucket_size", "zero_optimization.overlap_comm", "scheduler.params.warmup_min_lr",
}
FROM_ARGS: dict[str, Callable] = {  # Hugging Face's TrainingArguments, by their names
    "train_micro_batch_size_per_gpu": lambda args: args.per_device_train_batch_size,
    "gradient_accumulation_steps": lambda args: args.gradient_accumulation_steps,
    "gradient_clipping": lambda args: args.max_grad_norm,
    "bf16.enabled": lambda args: args.bf16,
    "fp16.enabled": lambda args: args.fp16,
    "optimizer.params.lr": lambda args: args.learning_rate,
    "optimizer.params.betas": lambda args: [args.adam_beta1, args.adam_beta2],
    "optimizer.params.eps": lambda args: args.adam_epsilon,
    "optimizer.params.weight_decay": lambda args: args.weight_decay,
    "scheduler.params.warmup_max_lr": lambda args: args.learning_rate,
    "scheduler.params.warmup_num_steps": lambda args: warmup_steps(args),
    "scheduler.params.total_num_steps": lambda args: args.max_steps if args.max_steps > 0 else None,
}
FROM_OPTIMIZER = {  # the hyper-parameters of the optimizer that initialize was given, by their names
    "optimizer.params.lr": "lr", "optimizer.params.betas": "betas", "optimizer.params.eps": "eps",
    "optimizer.params.weight_decay": "weight_decay", "scheduler.params.warmup_max_lr": "lr",
}


TRAINER = {  # the defaults of TrainingArguments, and a length of the training, which they do not say
    "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0, "bf16.enabled": False, "fp16.enabled": False,
    "optimizer.params.lr": 5e-5, "optimizer.params.betas": [0.9, 0.999], "optimizer.params.eps": 1e-8, "optimizer.params.weight_decay": 0.0,
    "scheduler.params.warmup_max_lr": 5e-5, "scheduler.params.warmup_num_steps": 10, "scheduler.params.total_num_steps": 1000,
}


def of_trainer(given: Mapping) -> dict[str, object]:
    """By path, what an "auto" may stand for where nobody trains and the file is only read. Sizes that are written win."""
    written = isinstance(given.get("train_batch_size"), int)
    return {path: value for path, value in TRAINER.items() if not (written and path in LEFT_OUT)}


def warmup_steps(args: object) -> int | None:
    """A number of steps, or below 1 a share of the training's."""
    share = args.warmup_steps if args.warmup_steps >= 1 else args.warmup_steps * max(0, args.max_steps)
    return math.ceil(share) or None


def known_values(args: object = None, hyper_parameters: Mapping[str, object] | None = None) -> dict[str, object]:
    """By path, what the arguments and the optimizer's hyper-parameters say of keys that may be "auto"."""
    known = {path: hyper_parameters[name] for path, name in FROM_OPTIMIZER.items() if name in (hyper_parameters or {})}
    for path, read in FROM_ARGS.items():
        try:
            value = read(args)
        except AttributeError:
            continue
        if value is not None:
            known[path] = value
    return known


def resolve(given: dict, known: Mapping[str, object]) -> dict[str, str]:
    """Replace every "auto" in the dictionary. Returns a sentence for each that nothing says, by its path.

    An "auto" that no file of DeepSpeed's has, such as the stage, stays: it is a value of the wrong type.
    """
    lr = get(given, "optimizer.params.lr")
    if isinstance(lr, int | float):
        known = {"scheduler.params.warmup_max_lr": lr} | dict(known)
    problems: dict[str, str] = {}

    def visit(section: dict, prefix: str) -> None:
        for key, value in list(section.items()):
            path = f"{prefix}{key}"
            if isinstance(value, dict):
                visit(value, f"{path}.")
            if value != AUTO:
                continue
            if "." in str(key):
                continue
            if path in known:
                section[key] = known[path]
            elif path in LEFT_OUT:
                del section[key]
            elif path in FROM_ARGS:
                del section[key]
                problems[path] = (f"{path} is 'auto', and neither initialize's args nor its optimizer says what it is: "
                                  "write its value")
            elif path in KEYS and KEYS[path].group is Group.CHANGES_NOTHING:
                section[key] = None  # as good as any value

    visit(given, "")
    return problems
