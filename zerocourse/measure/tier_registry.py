"""Which memory a storage lies in, where that is not the device's: the register that tiers keep and the ledger reads.

On a CPU the device is simulated: its memory and the host's are the same, and only this register tells them apart. A
storage that nobody has entered here is the device's. It communicates nothing and frees nothing.
"""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from .storages import storages_of


class TierOfMemory(Protocol):
    """What the register knows of a tier (`offload.tiers.Tier`)."""

    name: str
    bytes: int

    def adopt(self, tensor: torch.Tensor) -> None: ...


_tiers: dict[int, tuple[weakref.ref, TierOfMemory]] = {}  # by id(storage), which is the same object for life
_taking = threading.local()
of_files: "weakref.WeakSet[TierOfMemory]" = weakref.WeakSet()  # tiers of which the bytes are files' and no tensors'
watching: list[Callable[[str, int], None]] = []  # told of each change of these: the tier's name, its bytes


def bytes_of_files() -> dict[str, int]:
    """By name of a tier of files, its bytes now."""
    found: dict[str, int] = {}
    for tier in list(of_files):
        found[tier.name] = found.get(tier.name, 0) + tier.bytes
    return found


def tell(name: str) -> None:
    """The bytes of a tier of files have changed. Called on any thread."""
    nbytes = bytes_of_files().get(name, 0)
    for watcher in list(watching):
        watcher(name, nbytes)


def enter(storage: torch.UntypedStorage, tier: TierOfMemory) -> None:
    """The storage is the tier's from now on, until it is freed."""
    key = id(storage)
    _tiers[key] = weakref.ref(storage, lambda _: _tiers.pop(key, None)), tier


def tier_of(storage: torch.UntypedStorage, is_new: bool = False) -> TierOfMemory | None:
    """The tier of a storage; None: it is the device's.

    is_new: an operation has just allocated it, so that it will be entered for the tier inside of whose `taking` that was.
    """
    entered = _tiers.get(id(storage)) if _tiers else None
    return entered[1] if entered is not None else getattr(_taking, "tier", None) if is_new else None


@contextmanager
def taking(tier: TierOfMemory) -> Iterator[None]:
    """Memory that this thread takes inside is the tier's."""
    before, _taking.tier = getattr(_taking, "tier", None), tier
    try:
        yield
    finally:
        _taking.tier = before


def place_beside(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Let a tensor belong to the tier of another one; returns it."""
    for storage in storages_of(other):
        if (tier := tier_of(storage)) is not None:
            tier.adopt(tensor)
    return tensor
