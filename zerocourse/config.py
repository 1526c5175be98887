"""ds_config: reads, checks and resolves the keys that the engine understands. It communicates nothing.

The names and rules are DeepSpeed's. A mistake gets one sentence that names the key, its value, and what would be right.
"""

import difflib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from .errors import BadInput


@dataclass(frozen=True)
class ZeroConfig:
    """`zero_optimization`. Bucket sizes are in elements."""

    stage: int = 0
    reduce_bucket_size: int = 500_000_000
    overlap_comm: bool | None = None  # None: on for stage 3 only


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
    gradient_clipping: float = 1.0  # largest 2-norm of the gradient; 0 is off
    zero_optimization: ZeroConfig = ZeroConfig()
    bf16: Bf16Config = Bf16Config()

    @classmethod
    def load(cls, config: dict | str | Path, world_size: int) -> "Config":
        """From a dictionary or a JSON file, for this many ranks. Raises BadInput."""
        given = config if isinstance(config, dict) else read_json(Path(config))
        known = [field.name for field in fields(cls)]
        check_keys(given, known, "the config")
        zero = section(given, "zero_optimization", ZeroConfig)
        integer(zero.stage, "zero_optimization.stage", 0, 3)
        integer(zero.reduce_bucket_size, "zero_optimization.reduce_bucket_size", 1)
        if zero.overlap_comm not in (True, False, None):
            raise BadInput(f"zero_optimization.overlap_comm is {zero.overlap_comm!r}: it must be true or false")
        clip = given.get("gradient_clipping", cls.gradient_clipping)
        if isinstance(clip, bool) or not isinstance(clip, int | float) or not 0 <= clip < float("inf"):
            raise BadInput(f"gradient_clipping is {clip!r}: it must be a number, 0 (off) or more")
        bf16 = section(given, "bf16", Bf16Config)
        if not isinstance(bf16.enabled, bool):
            raise BadInput(f"bf16.enabled is {bf16.enabled!r}: it must be true or false")
        return cls(*batch_sizes(given, world_size), float(clip), zero, bf16)

    def as_dict(self) -> dict:
        """With every default resolved, as one would write it to JSON."""
        return asdict(self)


def batch_sizes(given: dict, world_size: int) -> tuple[int, int, int]:
    """train, micro and accumulation, of which any two give the third. Raises BadInput."""
    names = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
    for name in names:
        if name in given:
            integer(given[name], name, 1)
    train, micro, steps = (given.get(name) for name in names)
    if train is None and micro is None:
        raise BadInput(f"neither {names[0]} nor {names[1]} is given: at least one of them is needed")
    if train is None:
        train, steps = micro * (steps or 1) * world_size, steps or 1
    elif micro is None:
        steps = steps or 1
        micro = divided(train, steps, "accumulation steps", world_size)
    elif steps is None:
        steps = divided(train, micro, "samples a micro-batch", world_size)
    if train != micro * steps * world_size:
        raise BadInput(f"train_batch_size {train} is not micro-batch {micro} × accumulation {steps} × ranks {world_size} "
                       f"= {micro * steps * world_size}")
    return train, micro, steps


def divided(train: int, by: int, what: str, world_size: int) -> int:
    if train % (by * world_size):
        raise BadInput(f"train_batch_size {train} is not divisible by {world_size} × {by} (ranks × {what})")
    return train // (by * world_size)


def section(given: dict, name: str, of: type):
    """A nested section as its dataclass, its keys checked."""
    inside = given.get(name, {})
    if not isinstance(inside, dict):
        raise BadInput(f"{name} is {inside!r}: it must be an object")
    check_keys(inside, [field.name for field in fields(of)], name)
    return of(**inside)


def check_keys(given: dict, known: list[str], where: str) -> None:
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, 1)
            meant = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"
            raise BadInput(f"{where} has the unknown key {key!r}; {meant}")


def integer(value: object, name: str, least: int, most: int | None = None) -> None:
    """Raise BadInput unless it is an int (not a bool) in range."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        span = f"from {least} to {most}" if most is not None else f"of at least {least}"
        raise BadInput(f"{name} is {value!r}: it must be an integer {span}")


def read_json(path: Path) -> dict:
    """A JSON object whose keys are unique. Raises BadInput with the line of a mistake."""

    def unique(pairs):
        names = [name for name, _ in pairs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise BadInput(f"{path} gives the key {twice!r} twice")
        return dict(pairs)

    try:
        found = json.loads(path.read_text(), object_pairs_hook=unique)
    except OSError as error:
        raise BadInput(f"the config {path} cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise BadInput(f"{path} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from error
    if not isinstance(found, dict):
        raise BadInput(f"{path} holds a {type(found).__name__}: a config is a JSON object")
    return found
