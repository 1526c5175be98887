"""The check of 7.4: the memory under a buffer, freed and allocated again."""

import torch

from .....measure import storages
from ....checks import Trial, When, exercise


class Overwriting:
    """Writes into memory that a storage gets, so that what is found there is never the old content by luck."""

    def resizing(self, storage, nbytes):
        self.before = storage.nbytes()

    def resized(self, storage):
        if self.before < storage.nbytes():
            storage.fill_(1)


def free_and_take(free, allocate, dtype, nbytes):
    """A buffer of 12 elements and a view of it: freed, allocated, written to, and allocated once more."""
    full = torch.arange(12).to(getattr(torch, dtype))
    view, storage = full[2:8], full.untyped_storage()
    watcher = Overwriting()
    storages.watch_resize(watcher)
    try:
        free(full)
        seen = {"freed": storage.nbytes(), "shape": tuple(full.shape), "_size": nbytes // 12}
        if seen["freed"] or seen["shape"] != (12,):
            return {**seen, "moved": full.untyped_storage()._cdata != storage._cdata}
        allocate(full)
        seen |= {"same": full.untyped_storage()._cdata == storage._cdata, "allocated": storage.nbytes()}
        if seen["same"] and seen["allocated"] == nbytes:
            full.copy_(torch.arange(100, 112))
            allocate(full)
            seen |= {"again": storage.nbytes(), "view": view.clone() if storage.nbytes() >= nbytes else None}
        return seen
    finally:
        storages.unwatch_resize(watcher)


def shrunk(full):
    full.untyped_storage().resize_(0)
    full.resize_(0)


@exercise(
    "7.4", "Memory that comes and goes", minutes=15, difficulty=2, answer=("free", "allocate"),
    replaces=("zerocourse.memory.storage:FreeableStorage.free", "zerocourse.memory.storage:FreeableStorage.allocate"),
    trials=[Trial([("float32", 48), ("bfloat16", 24), ("int64", 96)], free_and_take)],
    mistakes={
        "another storage": tuple({"free": lambda full, length=length: setattr(full, "data", full.new_empty(length))}
                                 for length in (0, 12)),
        "shorter": {"free": lambda full: full.resize_(0)},
        "nothing freed": {"free": lambda full: full.zero_()},
        "shape too": {"free": shrunk},
        "new storage": {"allocate": lambda full: setattr(full, "data", torch.empty_like(full))},
        "elements": {"nbytes": torch.Tensor.numel},
        "4 bytes": {"nbytes": lambda full: 4 * full.numel()},
        "nothing allocated": {"allocate": lambda full: full.resize_(12)},
        "again": ({"nbytes": lambda full: full.untyped_storage().nbytes() + full.nbytes},
                  {"nbytes": lambda full: full.nbytes - full.untyped_storage().nbytes()}, When("again")),
        "cleared": ({"after": torch.Tensor.zero_}, {"before": lambda full: full.untyped_storage().resize_(0)}),
    })
def memory(*, free=lambda full: full.untyped_storage().resize_(0), before=lambda full: None, after=lambda full: None,
           allocate=None, nbytes=lambda full: full.numel() * full.element_size()):
    """`free` and `allocate`.   before, after: what `allocate` does to the buffer besides."""
    def allocates(full):
        before(full)
        full.untyped_storage().resize_(nbytes(full))
        after(full)

    return free, allocate or allocates
