"""`model.save_pretrained(folder)` writes whole weights at every stage. Needed by: Hugging Face's models, and PEFT's."""

import weakref
from collections.abc import Callable

from torch import nn

from ...errors import CollectiveError
from ..extra import Extra
from ..whole.consolidate import state_dict as consolidated
from .refusals import on_meta


class SavedTogether(Extra):
    def __init__(self, stage):
        save_together(stage.model)


def save_together(model: nn.Module) -> None:
    """From now on all ranks call the model's `save_pretrained`, if it has one; rank 0 gets the weights and writes."""
    if hasattr(model, "save_pretrained"):
        model.save_pretrained = collective(weakref.ref(model), type(model).save_pretrained)


def collective(model: Callable[[], nn.Module], own: Callable) -> Callable:
    def save_pretrained(folder, *args, state_dict: dict | None = None, **kwargs) -> object:
        """Save whole weights, the config and what else belongs to it. Collective; every rank returns when the files are
        there."""
        sharded, result, error = model(), None, None
        state = consolidated(sharded, rank_0_only=True) if state_dict is None else state_dict
        groups = sharded.zero.groups
        if not any(comm.rank for comm in groups.comms):
            try:
                with on_meta(sharded):
                    result = own(sharded, folder, *args, state_dict=state, **kwargs)
            except Exception as caught:
                error = caught
        told = groups.all_gather_object(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        if told[0] is not None:
            raise CollectiveError(f"rank 0 could not save the model in {folder}: {told[0]}")
        return result

    return save_pretrained
