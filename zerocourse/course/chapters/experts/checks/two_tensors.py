"""Answers that return two tensors."""

import torch
from torch import Tensor

from ....checks import MISUSED, Wrong
from ....checks.words import a


def two_tensors(returned: object, words: str) -> tuple[Tensor, Tensor]:
    """Raises Wrong for anything else.   words: what the two are."""
    if not isinstance(returned, (tuple, list)) or len(returned) != 2 or not all(map(torch.is_tensor, returned)):
        raise Wrong(f"it returned {a(returned)}: return two tensors, {words}", MISUSED)
    return returned[0], returned[1]
