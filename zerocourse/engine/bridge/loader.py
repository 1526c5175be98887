"""transformers' loader for stage 3: `from_pretrained` notes where each parameter is stored, and reads only buffers.

transformers' own has rank 0 read the whole checkpoint. Ours leaves the parameters without memory, and later `initialize`
lets each rank read the slices that it owns. It communicates nothing. What is not in safetensors goes transformers' own way.
"""

import functools
import importlib
import weakref
from collections.abc import Callable

import torch
from torch import nn

from ...init.safetensors_folder import SafetensorsFolder
from .deferred_parameters import deferred


def install() -> None:
    """Put our loader in the place of transformers', where a model is built under `zero.Init`. Called again, it does nothing."""
    try:
        modeling, bridge = (importlib.import_module(f"transformers.{name}") for name in ("modeling_utils", "integrations.deepspeed"))
    except ModuleNotFoundError:
        return  # a plain DeepSpeed script
    own = modeling.PreTrainedModel._load_pretrained_model
    if not hasattr(own, "__wrapped__"):
        modeling.PreTrainedModel._load_pretrained_model = staticmethod(noting_where(own))
        bridge.initialize_weights_zero3 = functools.wraps(bridge.initialize_weights_zero3)(drawn_by_initialize)


def drawn_by_initialize(model: nn.Module) -> None:
    """A model that is made from a config gets its values by `initialize`, where each rank keeps its slices."""


def noting_where(own: Callable) -> Callable:
    @functools.wraps(own)
    def load(model: nn.Module, state_dict: dict | None, checkpoint_files: list[str] | None, load_config, *args, **kwargs):
        is_stored = checkpoint_files and all(str(file).endswith(".safetensors") for file in checkpoint_files)
        if state_dict is not None or not is_stored or load_config.is_quantized or not deferred(model.parameters()):
            return own(model, state_dict, checkpoint_files, load_config, *args, **kwargs)
        return note_where(model, Checkpoint(model, checkpoint_files, load_config.weight_mapping or [])), None

    return load


def note_where(model: nn.Module, checkpoint: "Checkpoint"):
    """Each deferred parameter gets its `read`, and buffers their values. Returns transformers' report."""
    from transformers.utils.loading_report import LoadStateDictInfo

    mine = model.state_dict(keep_vars=True)
    missing, unexpected, mismatched = set(mine), set(), set()
    for name, (shape, read) in checkpoint.readers().items():
        tensor = mine.get(name)
        if tensor is None:
            unexpected.add(name)
            continue
        missing.discard(name)
        if tuple(shape) != tuple(tensor.shape):
            mismatched.add((name, tuple(shape), tuple(tensor.shape)))
            continue
        tensor._is_hf_initialized = True
        if deferred([tensor]):
            tensor.read = read
        else:
            with torch.no_grad():
                tensor.copy_(read(0, tensor.numel()).view(tensor.shape))
    return LoadStateDictInfo(missing_keys=missing, unexpected_keys=unexpected, mismatched_keys=mismatched, error_msgs=[],
                             conversion_errors={}, skipped_pp_keys=set())


class AsLoaded:
    """A model as transformers' conversions ask for it, with the names and shapes that it had while it was loaded: later the
    model has a state only where all ranks call."""

    def __init__(self, model: nn.Module):
        self.model = weakref.ref(model)
        self.state = {name: torch.empty_like(value, device="meta") for name, value in model.state_dict().items()}

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self.state

    def __getattr__(self, name: str):
        return getattr(self.model(), name)


class Checkpoint:
    """The tensors of some files of safetensors, by the names that the model has for them.

    mapping: transformers' conversions from the names in the files. One that renames costs nothing. One that merges tensors (a
    layer's experts are stored one by one) is computed where a slice of its result is read, by each rank for itself.
    """

    def __init__(self, model: nn.Module, files: list[str], mapping: list):
        self.model, self.mapping = AsLoaded(model), mapping
        self.files = {name: folder for folder in map(SafetensorsFolder, files) for name in folder.tensors}

    def readers(self) -> dict[str, tuple[tuple[int, ...], Callable]]:
        """By name in the model: the shape, and what reads the elements [start, stop)."""
        from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

        renamings = [each for each in self.mapping if isinstance(each, WeightRenaming)]
        converters = [each for each in self.mapping if isinstance(each, WeightConverter)]
        mine, readers, merged = self.model.state, {}, {}
        for stored, folder in self.files.items():
            name, pattern = rename_source_key(stored, renamings, converters, self.model.base_model_prefix, mine)
            if pattern is None:
                readers[name] = folder.tensors[stored].shape, functools.partial(folder.read, stored)
            else:
                merged.setdefault(name, []).append(stored)
        for stored in merged.values():
            for name, value in self.convert(stored, device="meta").items():
                readers[name] = value.shape, functools.partial(self.read_converted, stored, name)
        return readers

    def convert(self, stored: list[str], device: str) -> dict[str, torch.Tensor]:
        """What transformers makes of these tensors together.   device: "meta" for the shapes alone."""
        from transformers.integrations.deepspeed import _apply_weight_conversions_to_state_dict

        places = {name: self.files[name].tensors[name] for name in stored}
        state = {name: torch.empty(place.shape, dtype=place.dtype, device="meta") if device == "meta"
                 else self.files[name].read(name).view(place.shape) for name, place in places.items()}
        return {name: value for part in _apply_weight_conversions_to_state_dict(self.model, state, self.mapping)
                for name, value in part.items()}

    def read_converted(self, stored: list[str], name: str, start: int, stop: int) -> torch.Tensor:
        return self.convert(stored, device="cpu")[name].reshape(-1)[start:stop]
