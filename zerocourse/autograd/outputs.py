"""The tensors in what a forward returns. Needed by: models that return things into which PyTorch's pytrees do not look."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import SimpleNamespace

import torch

from ..comm.torch_private import tree_leaves


def tensors_of(tree) -> list[torch.Tensor]:
    """All tensors in nested lists, tuples, dictionaries, dataclasses and namespaces."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    tensors = []
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            tensors += tensors_of([getattr(leaf, field.name) for field in fields(leaf)])
        elif isinstance(leaf, Mapping | SimpleNamespace):
            tensors += tensors_of(list((leaf if isinstance(leaf, Mapping) else vars(leaf)).values()))
    return tensors
