"""A tier: memory of one kind, with a budget. It communicates nothing, except that a rank is over its budget.

On a GPU the host's tier is real: `empty` gives page-locked memory, which the GPU copies by itself (see `aligned`). On a
CPU the device is simulated: both tiers are the same memory, and what tells them apart are their budgets, what the ledger
counts for each (`measure.tier_registry`), and the rate of the link between them.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from ..comm import fail_all
from ..comm.torch_private import TorchDispatchMode
from ..errors import OutOfMemory
from ..formulas.units import gib, parse_bytes
from ..measure import tier_registry
from ..measure.storages import all_tensors, storages_of
from .on_disk.aligned import aligned_empty


class Tier:
    """Memory that is counted apart from the device's.

    name: its column in the ledger.   budget: bytes, or "2GiB", above which OutOfMemory is raised; None: no limit.
    device: where its tensors are.   pin: page-locked, where a GPU copies from it or to it.
    bytes, peak: bytes in use now, and at most so far.
    """

    def __init__(self, name: str, budget: int | str | None = None, device: str = "cpu", pin: bool = False):
        self.name, self.device = name, torch.device(device)
        self.budget = parse_bytes(budget) if isinstance(budget, str) else budget
        self.pin = pin
        self.bytes = self.peak = 0

    def empty(self, numel: int, dtype: torch.dtype, beside: torch.device | None = None, stays: bool = False) -> torch.Tensor:
        """(numel,), its content undefined. Raises OutOfMemory.

        beside: the device that copies it; None: nobody does.   stays: for the whole training. Page-locked memory that stays
            has its exact size; for what comes and goes torch keeps blocks, of powers of two, because locking takes time.
        """
        self.check(numel * dtype.itemsize)
        locks = self.pin and beside is not None and beside.type == "cuda"
        with tier_registry.taking(self):
            if locks and stays:
                tensor = aligned_empty(numel, dtype, locked_for=beside)
            else:
                tensor = torch.empty(numel, dtype=dtype, device=self.device, pin_memory=locks)
        self.adopt(tensor)
        return tensor

    def check(self, nbytes: int) -> None:
        """Raises OutOfMemory if so many bytes more would be over the budget."""
        if self.budget is not None and self.bytes + nbytes > self.budget:
            rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
            error = OutOfMemory(f"rank {rank} ran out of {self.name} memory: {gib(nbytes)} more would bring it to "
                                f"{self.bytes + nbytes:,} bytes, over its budget of {self.budget:,} bytes "
                                f"({gib(self.budget)})")
            fail_all(error)  # the others would wait for this rank
            raise error

    def adopt(self, *values: object) -> None:
        """Count what these tensors (or containers of them) stand on as this tier's. Raises OutOfMemory."""
        for tensor in all_tensors(values):
            if tensor.device.type != self.device.type:
                continue
            for storage in storages_of(tensor):
                if tier_registry.tier_of(storage) is None:
                    nbytes = storage.nbytes()
                    self.take(nbytes)
                    tier_registry.enter(storage, self)
                    weakref.finalize(storage, self.gave_back, nbytes).atexit = False

    def take(self, nbytes: int) -> None:
        """Count so many bytes more. Raises OutOfMemory."""
        self.check(nbytes)
        self.bytes += nbytes  # no call between read and write: finalizers run on any thread, at any time
        self.peak = max(self.peak, self.bytes)

    def gave_back(self, nbytes: int) -> None:
        self.bytes -= nbytes

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Whatever operations inside allocate is this tier's, such as an optimizer's states and its temporary tensors."""
        with tier_registry.taking(self), Adopting(self):
            yield

    def __repr__(self) -> str:
        limit = f" of {gib(self.budget)}" if self.budget is not None else ""
        return f"{self.name}: {gib(self.bytes)}{limit}, at most {gib(self.peak)}"


class FileTier(Tier):
    """Counts bytes of files, on which no tensor stands."""

    def __init__(self, name: str, budget: int | str | None = None):
        super().__init__(name, budget)
        tier_registry.of_files.add(self)

    def take(self, nbytes: int) -> None:
        super().take(nbytes)
        tier_registry.tell(self.name)

    def gave_back(self, nbytes: int) -> None:
        super().gave_back(nbytes)
        tier_registry.tell(self.name)

    def clear(self) -> None:
        """The files are gone, and no others will come."""
        self.gave_back(self.bytes)
        tier_registry.of_files.discard(self)


class Adopting(TorchDispatchMode):
    """Gives each operation's results to a tier."""

    def __init__(self, tier: Tier):
        super().__init__()
        self.tier = tier

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation imports torch._dynamo: seconds, and memory that is not the program's

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.tier.adopt(out)
        return out
