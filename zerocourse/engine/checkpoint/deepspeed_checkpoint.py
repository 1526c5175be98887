"""Reads a checkpoint of DeepSpeed's ZeRO and writes it as one of ours. It communicates nothing.

DeepSpeed writes the layout of its ranks: with N ranks each file has an N-th of the fp32 master weights and of the
optimizer's averages, flat. At stages 1 and 2 the slices of a parameter group, one after the other, are its parameters,
one after the other. At stage 3 each parameter is cut in N by itself, and a rank has its parts of all parameters. (The
rules are those of deepspeed/utils/zero_to_fp32.py.) The files are pickles. They are read with `weights_only=True`,
which runs no code of theirs.
"""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ...errors import BadInput, ZeroCourseError
from .content import Content, make_whole
from .folders import checkpoint_folder as folders
from .folders.index_form import name_of
from .pieces import Piece, state_name

OWN_KEYS = {  # of DeepSpeed, in its file of model states; what else is there is the client's
    "module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "shared_params",
    "frozen_param_fragments", "lr_scheduler", "data_sampler", "random_ltd", "sparse_tensor_module_names",
    "skipped_steps", "global_steps", "global_samples", "dp_world_size", "mp_world_size",
    "checkpoint_parallel_dimensions", "ds_config", "ds_version"}
SETTINGS = ("lr", "initial_lr", "weight_decay", "betas", "eps", "momentum", "dampening", "nesterov", "amsgrad",
            "maximize")  # hyper-parameters that torch's optimizers know


class Stub:
    """In place of an object of DeepSpeed's: it gets that object's attributes, and none of its code."""

    def __init__(self, *_, **__):
        pass


class Stage(int):
    """In place of DeepSpeed's ZeroStageEnum."""


STUBS = [(Stub, "deepspeed.runtime.fp16.loss_scaler.LossScaler"),
         (Stub, "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler"),
         (Stub, "deepspeed.utils.tensor_fragment.fragment_address"),
         (Stage, "deepspeed.runtime.zero.config.ZeroStageEnum")]


def is_deepspeed(folder: Path) -> bool:
    return any(folder.glob("*_model_states.pt"))


def loaded(file: Path, *keys: str) -> dict:
    """What DeepSpeed has saved there, with these keys. Raises BadInput when the file is damaged, has something that only
    running its code could read, or is of something else."""
    try:
        with torch.serialization.safe_globals(STUBS):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle's, zipfile's and torch's own
        first_line = str(error).partition("\n")[0]
        raise BadInput(f"{file} cannot be read without running its code, or is damaged: {first_line}") from error
    missing = [key for key in keys if not isinstance(content, dict) or key not in content]
    if missing:
        raise BadInput(f"{file} has no {missing[0]!r}, so it is not of DeepSpeed's ZeRO, or of a version that is not known here")
    return content


@contextmanager
def as_deepspeed_has_it(folder: Path) -> Iterator[None]:
    """What has another form than DeepSpeed's files ends in BadInput, and in none of Python's own errors."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, ValueError) as error:
        if isinstance(error, ZeroCourseError):
            raise
        raise BadInput(f"{folder} cannot be converted, because something in its files is not as DeepSpeed's ZeRO has it: "
                       f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error


class DeepSpeedCheckpoint:
    """All of a checkpoint that DeepSpeed wrote into `folder` (that of the tag), in memory. Raises BadInput."""

    def __init__(self, folder: Path):
        files = sorted(folder.glob("*_model_states.pt"), key=natural)
        if not files:
            raise BadInput(f"{folder} is not a checkpoint of DeepSpeed: it has no file *_model_states.pt (name the folder "
                           "of the tag)")
        self.models = [loaded(file, "module", "buffer_names", "dp_world_size", "global_steps") for file in files]
        self.model = self.models[0]
        if self.model.get("mp_world_size", 1) > 1:
            raise BadInput(f"{folder} is of {self.model['mp_world_size']} model-parallel ranks: only data parallelism can be "
                           "converted")
        optims = [loaded(file, "optimizer_state_dict")["optimizer_state_dict"]
                  for file in sorted(folder.glob("*_optim_states.pt"), key=natural)]
        self.stage = int(optims[0]["zero_stage"]) if optims else 0
        self.ranks = self.model["dp_world_size"]
        if optims and len(optims) != self.ranks:
            raise BadInput(f"{folder} has the optimizer states of {len(optims)} ranks, and was written by {self.ranks}: some "
                           "are missing")
        self.shapes = self.model["param_shapes"] if optims else []  # by parameter group
        self.alignment = optims[0].get("param_alignment_paddings", []) if optims else []
        masters = "fp32_flat_groups" if self.stage == 3 else "single_partition_of_fp32_groups"
        self.scaler = scaler_state(optims[0].get("loss_scaler")) if optims else {}
        self.flat = {"": [optim[masters] for optim in optims]}  # by state, rank and group; "" is the weights
        self.others: list[dict] = []  # by group: the states that are no flat tensors
        self.settings: list[dict] = []
        base = [optim["optimizer_state_dict" if self.stage == 3 else "base_optimizer_state"] for optim in optims]
        if base and not all(isinstance(each, dict) and len(each.get("state", {})) == len(self.shapes) for each in base):
            raise BadInput(f"{folder} has optimizer states of more flat groups than parameter groups (sub_group_size), or in "
                           "DeepSpeed's elastic form, which cannot be converted")
        if base:
            self.read_states(base)

    def read_states(self, base: list[dict]) -> None:
        """Tell flat states, which have as many elements as the weights, from the others."""
        self.settings = [{key: group[key] for key in SETTINGS if key in group} for group in base[0]["param_groups"]]
        for index, group in enumerate(base[0]["param_groups"]):
            state = base[0]["state"][index]
            others = {key: value for key, value in state.items()
                      if not isinstance(value, torch.Tensor) or not value.dim()}
            if "step" in group and "step" not in others:  # DeepSpeed's FusedAdam counts by group
                others["step"] = group["step"]
            if "step" in others:
                others["step"] = torch.tensor(float(others["step"]))
            self.others.append(others)
        for key in base[0]["state"][0]:
            if key not in self.others[0]:
                self.flat[key] = [[each["state"][index][key] for index in range(len(self.shapes))] for each in base]

    def parameters(self) -> Iterator[tuple[int, str, torch.Size]]:
        """(group, name, shape) of the trained parameters."""
        for group, shapes in enumerate(self.shapes):
            for name, shape in shapes.items():
                yield group, name, shape

    def pieces(self) -> Iterator[Piece]:
        """Whole tensors: the trained parameters and their states, the frozen ones, the buffers."""
        at = dict.fromkeys(range(len(self.shapes)), 0)
        paddings = self.paddings()
        whole = {key: [torch.cat([rank[group] for rank in ranks]) for group in at]
                 for key, ranks in self.flat.items() if self.stage < 3}
        for group, name, shape in self.parameters():
            numel = math.prod(shape)
            length = -(-numel // self.ranks) if self.stage == 3 else numel
            for key, ranks in self.flat.items():
                if self.stage == 3:
                    values = torch.cat([rank[group][at[group] : at[group] + length] for rank in ranks])[:numel]
                else:
                    values = whole[key][group][at[group] : at[group] + length]
                yield piece(state_name(name, key) if key else f"model/{name}", values)
            at[group] += length + paddings.get(name, 0)
        for name in self.frozen():
            yield piece(f"model/{name}", self.frozen()[name])
        for name in self.model["buffer_names"]:
            if name in self.model["module"]:
                buffer = self.model["module"][name]
                yield Piece(f"buffer/{name}", tuple(buffer.shape), (0,) * buffer.dim(), buffer)

    def paddings(self) -> dict[str, int]:
        """Elements of padding after each parameter, which newer versions have at stages 1 and 2."""
        return {name: after for shapes, ends in zip(self.shapes, self.alignment, strict=False)
                for name, after in zip(shapes, ends, strict=False)}

    def frozen(self) -> dict[str, torch.Tensor]:
        """Weights that are not trained. Without a sharded optimizer, all weights."""
        if not self.shapes:
            buffers = self.model["buffer_names"]
            return {name: value for name, value in self.model["module"].items() if name not in buffers}
        shapes = self.model.get("frozen_param_shapes") or {}
        models = self.models if self.stage == 3 else self.models[:1]
        parts = [model.get("frozen_param_fragments") or {} for model in models]
        return {name: torch.cat([part[name].flatten() for part in parts])[: math.prod(shape)]
                for name, shape in shapes.items()}

    def counts(self) -> dict[str, int]:
        """What an engine counts; micro-batches by the accumulation that the config names."""
        steps, given = self.model["global_steps"], (self.model.get("ds_config") or {}).get("gradient_accumulation_steps")
        return {"global_steps": steps, "micro_steps": steps * (given if isinstance(given, int) else 1),
                "skipped_steps": self.model.get("skipped_steps", 0)}

    def about(self) -> dict:
        """What the index says, see `content.about`."""
        module, aliases = self.model["module"], dict(self.model.get("shared_params") or {})
        shapes = {name: shape for _, name, shape in self.parameters()}
        shapes |= dict(self.model.get("frozen_param_shapes") or {})
        if not self.shapes:
            shapes = {name: value.shape for name, value in self.frozen().items()}
        parameters = {name: {"shape": list(shapes[name]), "dtype": name_of(module[name].dtype)}
                      for name in module if name in shapes and name not in aliases}
        buffers = {name: list(module[name].shape) for name in self.model["buffer_names"] if name in module}
        kind = "AdamW" if "exp_avg_sq" in self.flat else "SGD" if "momentum_buffer" in self.flat else None
        return {"torch": torch.__version__, "ranks": self.ranks, "stage": self.stage, "parameters": parameters,
                "optimizer": kind if self.shapes else None, "aliases": aliases, "buffers": buffers}


def scaler_state(scaler: Stub | None) -> dict[str, float]:
    """The state of our `DynamicLossScaler` that goes on as DeepSpeed's does; empty for a scale that never moves."""
    theirs = vars(scaler) if scaler is not None else {}
    names = {"loss_scale": "cur_scale", "hysteresis_left": "cur_hysteresis", "steps": "cur_iter", "last_overflow": "last_overflow_iter"}
    return {ours: theirs[name] for ours, name in names.items()} if theirs.get("dynamic") else {}


def natural(path: Path) -> list:
    """Rank 10 comes after rank 9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def piece(name: str, values: torch.Tensor) -> Piece:
    values = values.reshape(-1)
    return Piece(name, (values.numel(),), (0,), values)


def convert(folder: Path, path: Path) -> None:
    """Write what DeepSpeed left in `folder`, that of a tag, as our checkpoint `path`, which `load_checkpoint` reads."""
    with as_deepspeed_has_it(folder):
        content = whole_content(DeepSpeedCheckpoint(folder))
    with folders.written_alone(path) as partial:
        make_whole(path, [content.write(partial)], content.about)


def whole_content(theirs: DeepSpeedCheckpoint) -> Content:
    """The same as one rank of ours would write it."""
    model, about = theirs.model, theirs.about()
    tensors = [key for key in theirs.flat if key]
    states = {name: {"group": group, "tensors": tensors, "others": theirs.others[group]}
              for group, name, _ in theirs.parameters()}
    extra = {"engine": theirs.counts(), "client": {key: value for key, value in model.items() if key not in OWN_KEYS},
             "scaler": theirs.scaler}
    if isinstance(model.get("lr_scheduler"), dict):
        extra["scheduler"] = model["lr_scheduler"]
    objects = {f"states/{rank}": states if rank == 0 else {} for rank in range(theirs.ranks)}
    objects |= {"extra": extra, "groups": theirs.settings or None, "modules": {}}
    return Content(0, theirs.pieces(), objects, about)
