"""Loads a checkpoint into a sharded model and its optimizer: each rank reads its slices, and gathers the others' if it
shows them.

Nothing depends on how the checkpoint was written: number of ranks, stage, rank map and precision may be others.
"""

import warnings
from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint.planner import ReadItem
from torch.optim import Optimizer

from ...errors import BadInput, ZeroCourseError
from ...measure.tier_registry import place_beside
from ...zero.buffers.buffer import FlatBuffer
from ...zero.ddp import DataParallel
from ...zero.whole.expert_rows import first_element, whole_shape
from ...zero.whole.weights import publish
from .folders import checkpoint_folder as folders
from .folders.index_form import dtype_named
from .optimizer_state import check_optimizer, set_groups, with_others
from .pieces import Piece, buffers, pieces_to_read, place_of, rank_of, state_name
from .safe_objects import set_random_states
from .saving import finish_earlier, said, stage_of
from .source import Source


def load_checkpoint(model: nn.Module, optimizer: Optimizer | None, path: str | Path, random: bool = True,
                    strict: bool = True) -> object:
    """Continue from the checkpoint `path`: the model that `shard` returned, and its optimizer, become what was saved.
    Collective.

    optimizer: None loads the model alone.   random: give each rank its random states too, if there are as many ranks as
    then.   strict: False leaves parameters and buffers that the checkpoint lacks as they are, and passes over what the model
    has not, with a warning; what was left out on purpose (`exclude_frozen`) goes without one.
    Returns the `extra` that was saved. Gradients are forgotten. Raises BadInput, on every rank and before anything changes,
    when there is no whole checkpoint, when it is damaged, or when it is of another model or optimizer.
    """
    stage = stage_of(model)
    finish_earlier(stage)
    stage.settle()
    own, path, reading, error = f"random/{rank_of(stage)}", Path(path), None, None
    try:
        reading = Reading(stage, optimizer, folders.must_read(path), strict)
        reading.check_all()
        extra, modules = reading.object("extra"), reading.object("modules")
        again = random and reading.about["ranks"] == stage.groups.size and own in reading.index["objects"]
        states = reading.object(own) if again else None
    except Exception as caught:  # of any type, because the others would wait
        error = unreadable(caught, path)
    raise_any(stage, error)
    stage.zero_grad()
    try:
        reading.read()
        for name in modules.keys() if strict else modules.keys() & dict(stage.model.named_modules()).keys():
            stage.model.get_submodule(name).set_extra_state(modules[name])
        if optimizer is not None:
            set_groups(optimizer, reading.groups)
        if states is not None:
            set_random_states(states, stage.device)
    except Exception as caught:
        error = f"{unreadable(caught, path)}; what the model holds now is of no use, so load a whole checkpoint"
    raise_any(stage, error)
    publish(stage)
    return extra


def unreadable(error: Exception, path: Path) -> str:
    """One sentence, also where a damaged checkpoint has led to one of Python's own errors."""
    if isinstance(error, ZeroCourseError | OSError):
        return said(error)
    return (f"the checkpoint {path} cannot be loaded, because it is damaged or has something that this version does not "
            f"expect: {type(error).__name__}: {str(error).partition(chr(10))[0]}")


def raise_any(stage: DataParallel, error: str | None) -> None:
    """Raise BadInput on every rank, when one has an error."""
    for each in stage.groups.all_gather_object(error):
        if each is not None:
            raise BadInput(each)


class Reading(Source):
    """What this rank reads, and where to."""

    def __init__(self, stage: DataParallel, optimizer: Optimizer | None, folder: Path, strict: bool = True):
        super().__init__(folder)
        self.stage, self.optimizer = stage, optimizer
        self.absent = check_names(self.about, stage, strict)
        if optimizer is not None:
            self.groups = self.object("groups")
            self.saved = {}
            for rank in range(self.about["ranks"]):
                self.saved |= self.object(f"states/{rank}")
            check_optimizer(self.about, self.saved, self.groups, optimizer, stage)

    def check_all(self) -> None:
        """Read all that this rank will take over, and change nothing."""
        for flat in self.stage.flats:
            first = {name: first_element(param) for name, param in flat.params.items()}
            for part in [part for part in flat.ranges() if part.name not in self.absent]:
                self.check(f"model/{part.name}", first[part.name] + part.start, first[part.name] + part.stop)
            for part in flat.shard_params if self.optimizer is not None else ():
                for key in self.saved.get(part.name, {}).get("tensors", ()):
                    self.check(state_name(part.name, key), first[part.name] + part.start, first[part.name] + part.stop)
        for name in buffers(self.stage.model).keys() - self.absent:
            self.check(f"buffer/{name}")

    def read(self) -> None:
        with torch.no_grad():
            for flat in self.stage.flats:  # one after the other: only one may fit into memory
                with flat.at_hand(writes=True, optimizer=self.optimizer):
                    items = [item for piece in pieces_to_read(flat, self.absent) for item in self.items(piece)]
                    if self.optimizer is not None:
                        items += self.optimizer_items(flat)
                    self.fetch(items)
                    self.targets.clear()
            items = []
            for name, buffer in [each for each in buffers(self.stage.model).items() if each[0] not in self.absent]:
                items += self.items(Piece(f"buffer/{name}", tuple(buffer.shape), (0,) * buffer.dim(), buffer.detach()))
            self.fetch(items)

    def optimizer_items(self, flat: FlatBuffer) -> list[ReadItem]:
        """Give the optimizer empty states of a buffer to be filled, of the names and dtypes that were saved."""
        items, state = [], self.optimizer.state
        group_of = {part: group for group in self.optimizer.param_groups for part in group["params"]}
        for where, part in flat.shard_params.items():
            saved = self.saved.get(where.name, {})
            state.pop(part, None)
            if part not in group_of or not (saved.get("tensors") or saved.get("others")):
                continue  # it has not been stepped yet
            state[part] = with_others(saved["others"], group_of[part], part)
            for key in saved["tensors"]:
                name = state_name(where.name, key)
                values = torch.empty_like(part, dtype=dtype_named(self.index["tensors"][name]["dtype"]))
                state[part][key] = place_beside(values, part)
                items += self.items(Piece(name, *place_of(flat.params[where.name], where), state[part][key].view(-1)))
        return items


def check_names(about: dict, stage: DataParallel, strict: bool = True) -> set[str]:
    """Names of the model that the checkpoint lacks, which are none if it is strict.

    Raises BadInput that names what has another shape and, if it is strict, what the checkpoint lacks or has too much; warns of
    these if it is not.
    """
    shape_now = {name: list(whole_shape(param)) for name, param in stage.model.named_parameters()}
    shape_now |= {name: list(buffer.shape) for name, buffer in buffers(stage.model).items()}
    shape_then = {name: said["shape"] for name, said in about["parameters"].items()} | about["buffers"]
    excluded = set() if strict else set(about.get("excluded", ()))
    for what, has, lacks in (("lacks", shape_now, shape_then), ("has what the model has not:", shape_then, shape_now)):
        missing = [name for name in has if name not in lacks and name not in excluded]
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            said = f"the checkpoint is of another model: it {what} {', '.join(map(repr, missing[:3]))}{more}"
            if not strict:
                warnings.warn(f"{said}; the rest was loaded", stacklevel=4)
            elif missing[0] in about.get("excluded", ()):
                raise BadInput(f"the checkpoint was saved without frozen parameters, such as {missing[0]!r}: load it with "
                               "strict=False (load_module_strict=False) into a model that has their values")
            else:
                raise BadInput(said)
    for name in [name for name in shape_now if name in shape_then]:
        if shape_then[name] != shape_now[name]:
            raise BadInput(f"the checkpoint is of another model: {name!r} is {tuple(shape_then[name])} there, and "
                           f"{tuple(shape_now[name])} in the model")
    return shape_now.keys() - shape_then.keys()
