"""The ledger: bytes alive on this rank, now and at the peak, by kind. It frees nothing, and it communicates nothing
except that a rank is over its budget.

The ledger measures: nothing here comes from a formula or from what a stage says about itself. A dispatch mode sees the
tensors that go into and come out of every operation, forward and backward, and counts each *storage* once, however many
views it has. A weak reference to the storage tells when the memory is freed. Autograd's saved tensors keep their
storages alive, so these stay counted. Which kind a storage belongs to is read from the real objects: the model's
parameters, their `.grad`, the optimizer's state, the model's buffers, and the tensors a ZeRO stage lists.

The ledger does not see memory that a kernel takes and frees inside one operation, or what C++ allocates without any
tensor passing through Python (DDP's buckets, gloo's scratch memory, code made by torch.compile). On the host
`heap_peak_bytes`, which a bench meters, has these too; of a GPU it knows nothing, and there `device_peak` has them.
"""

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..comm import fail_all
from ..comm.torch_private import FakeTensor, TorchDispatchMode, active_fake_mode
from ..errors import BadInput, OutOfMemory
from ..formulas.units import gib, parse_bytes
from . import tier_registry
from .storages import all_tensors, allocator_peak, gpu_of, params_of, raw_grad, states_of, storages_of, unwatch_resize, watch_resize

KINDS = ("parameters", "gradients", "optimizer", "buffers", "scalars", "rest")
PARAMETERS, GRADIENTS, OPTIMIZER, BUFFERS, SCALARS, REST = range(len(KINDS))
LISTED = KINDS[:REST]  # the kinds that a stage may list
UNSORTED_SHARE = 200  # at a new peak, the kind of up to 1/200 of the bytes may not have been looked up yet


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Bytes alive at one moment. A storage has one kind, the first of these to which it belongs.

    parameters, gradients, optimizer: the model states.   buffers: of the model.
    scalars: optimizer states of one element, such as Adam's step counters, and what a stage lists as such; no formula counts them.
    rest: everything else, such as activations, gathered copies, buckets under way and inputs.
    """

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    buffers: int = 0
    scalars: int = 0
    rest: int = 0

    @property
    def total(self) -> int:
        return sum(asdict(self).values())

    def as_dict(self) -> dict[str, int]:
        """`parameters_bytes` ... `rest_bytes`, and their sum as `alive_bytes`."""
        return {f"{kind}_bytes": nbytes for kind, nbytes in asdict(self).items()} | {"alive_bytes": self.total}

    def __str__(self) -> str:
        return ", ".join(f"{kind} {gib(nbytes)}" for kind, nbytes in asdict(self).items() if nbytes) or "nothing"


class _Entry(weakref.ref):
    """A storage that is alive, with the bytes and the kind as which it is counted, and its tier's name (None: the device)."""

    __slots__ = ("key", "nbytes", "kind", "tier")


class Ledger(TorchDispatchMode):
    """Counts the bytes alive on this rank while it is entered: `with Ledger(model, optimizer) as ledger: ...`

    model, optimizer, state: counted from the start, and asked for the kinds. `state` is any object whose `tensors()`
        gives `dict[kind, list[Tensor]]`; by default `model.zero`, the model's ZeRO stage, once it has one.
    budget: bytes, or "2GiB", above which an operation raises `zerocourse.errors.OutOfMemory`: on this rank, and on
        those that then wait for it in a collective. The process groups it shares with them are closed.
    device: count this device type alone ("cuda", "cpu"); by default that of the model's parameters where it is a GPU's, so that
        neither batches on the host nor what gloo copies there count as the GPU's, and all of them together otherwise.
        What lies in a tier (`measure.tier_registry`), such as the host's memory, never counts here, nor against the budget:
        it has a column of its own, `now("host")`, `alive_in["host"]` and `peak_in["host"]`. A disk's files have one too.

    alive, peak: bytes, always up to date, cheap to read. The peak holds until `reset_peak()`.
    Other tensors that existed before are counted from `track(...)` or from the first operation that uses them. Tensors
    on the meta device have no memory; fake tensors count as if real when the ledger is entered inside their mode.
    Ledgers nest. Source of the method: torch.distributed._tools.mem_tracker, which agrees with this one.
    """

    def __init__(self, model: nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None,
                 budget: int | str | None = None, state: Any = None, device: str | torch.device | None = None):
        super().__init__()
        self.model, self.optimizer, self.state = model, optimizer, state
        self.budget = parse_bytes(budget) if isinstance(budget, str) else budget
        self.device = None if device is None else torch.device(device).type
        self.alive = self.peak = 0
        self.alive_in: dict[str, int] = {}  # by tier
        self.peak_in: dict[str, int] = {}
        self._kinds_in: dict[str, list[int]] = {}
        self._kinds = [0] * len(KINDS)  # the part of `alive` by kind, as of the last look-up
        self._peak_kinds = (0,) * len(KINDS)
        self._entries: dict[int, _Entry] = {}
        self._on_death = self._died
        self._unsorted = 0  # bytes of storages that are newer than the last look-up of kinds
        self._depth = 0
        self._fake_mode = None

    # -- what users read ---------------------------------------------------------------------------------------------

    def now(self, tier: str | None = None) -> Snapshot:
        """Read every storage again, and return the bytes of each kind at this moment, on the device or in a tier."""
        self._sort()
        self._look_for_peak()
        return Snapshot(*(self._kinds if tier is None else self._kinds_in.get(tier, ())))

    @property
    def at_peak(self) -> Snapshot:
        """The bytes at the peak. The total is exact. A gradient on its way into `.grad` counts as `rest`, and so may
        up to 0.5 % of the peak that came after kinds were last looked up."""
        return Snapshot(*self._peak_kinds)

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of the optimizer's states that are alive, as of the last look-up of kinds; cheap to read."""
        return self._kinds[OPTIMIZER]

    def reset_peak(self) -> None:
        """Set the peak to what is alive now, and also the peak of the GPU's allocator if there is one."""
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
        self.peak, self.peak_in = 0, {}
        self.now()

    @property
    def device_peak(self) -> int | None:
        """The GPU allocator's own peak in bytes since the ledger was entered, or `reset_peak()`, to compare with ours; None where
        the model is on no GPU."""
        return allocator_peak(self.device)

    def track(self, *objects: Any) -> "Ledger":
        """Count tensors that exist already: tensors, modules, optimizers, stages, or containers of these."""
        self._find_device()
        before = self.alive
        for tensor in all_tensors(objects):
            self._see(tensor)
        self._grew("track()", self.alive - before)
        return self

    # -- the life of a storage ---------------------------------------------------------------------------------------

    def _see(self, tensor: Tensor, is_new: bool = False) -> None:
        if type(tensor) is FakeTensor and tensor.fake_mode is not self._fake_mode:
            return  # DTensor computes shapes under a fake mode of its own
        if tensor.is_meta and type(tensor) is not FakeTensor:
            return
        device = tensor.device.type
        elsewhere = self.device is not None and device != self.device
        for storage in storages_of(tensor):
            # A storage keeps one Python object for life, held by C++ while Python has forgotten it, so id() names it
            # until the weak reference says that it is gone.
            entry, nbytes = self._entries.get(id(storage)), storage.nbytes()
            if entry is None:
                tier = tier_registry.tier_of(storage, is_new)
                if tier is None and elsewhere:
                    continue
                entry = self._entries[id(storage)] = _Entry(storage, self._on_death)
                entry.key, entry.nbytes, entry.kind, entry.tier = id(storage), 0, REST, tier and tier.name
                if tier is not None:
                    self.alive_in.setdefault(tier.name, 0)  # also for a storage that has no memory now
            if entry.nbytes != nbytes:
                self._recount(entry, nbytes)

    def _recount(self, entry: _Entry, nbytes: int) -> None:
        # Storages die at any time, on any thread. Nothing is called between the read and the write of a += on ints,
        # so no other thread and no finalizer can come between.
        change = nbytes - entry.nbytes
        entry.nbytes = nbytes
        if entry.tier is not None:
            self._grew_in(entry.tier, change)
            return
        self.alive += change
        self._kinds[entry.kind] += change
        self._unsorted += change

    def _died(self, entry: _Entry) -> None:
        nbytes = entry.nbytes
        if entry.tier is not None:
            self.alive_in[entry.tier] -= nbytes
        else:
            self.alive -= nbytes
            self._kinds[entry.kind] -= nbytes
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]

    def _of_files(self, tier: str, nbytes: int) -> None:
        """A tier of files has so many bytes now."""
        self.alive_in[tier] = nbytes
        self.peak_in[tier] = max(self.peak_in.get(tier, 0), nbytes)

    def _grew_in(self, tier: str, change: int) -> None:
        self.alive_in.setdefault(tier, 0)
        self.alive_in[tier] += change
        self.peak_in[tier] = max(self.peak_in.get(tier, 0), self.alive_in[tier])

    def _look_for_peak(self) -> None:
        if self.alive > self.peak:
            if self._unsorted * UNSORTED_SHARE > self.alive:
                self._sort()
            self.peak, self._peak_kinds = self.alive, tuple(self._kinds)

    def _grew(self, by: Any, asked: int) -> None:
        """An operation added `asked` bytes: update the peak, and check the budget."""
        self._look_for_peak()
        if self.budget is not None and self.alive > self.budget:
            raise self._out_of_memory(by, asked, self.alive)

    def resizing(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        """A known storage is about to have `nbytes`: check the budget before the memory is taken."""
        entry = self._entries.get(id(storage))
        if entry is not None and entry.tier is None and self.budget is not None:
            asked = nbytes - entry.nbytes
            if asked > 0 and self.alive + asked > self.budget:
                raise self._out_of_memory("resize_", asked, self.alive + asked)

    def resized(self, storage: torch.UntypedStorage) -> None:
        entry = self._entries.get(id(storage))  # an unknown one will be seen by the first operation that uses it
        if entry is not None:
            self._recount(entry, storage.nbytes())
            self._look_for_peak()

    def _out_of_memory(self, by: Any, asked: int, alive: int) -> OutOfMemory:
        rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        error = OutOfMemory(f"rank {rank} ran out of memory: {by} asked for {gib(asked)} and would bring it to "
                            f"{alive:,} bytes, over its budget of {self.budget:,} bytes ({gib(self.budget)}); "
                            f"alive: {self.now()}.")
        fail_all(error)
        return error

    # -- kinds -------------------------------------------------------------------------------------------------------

    def _find_device(self) -> None:
        if self.device is None and not self._entries:
            self.device = gpu_of(self.model)

    def _sort(self) -> None:
        """Read every known storage's size again and give it its kind."""
        self._find_device()
        claimed: dict[int, int] = {}
        for kind, tensor in self._claims():
            self._see(tensor)
            for storage in storages_of(tensor):
                claimed.setdefault(id(storage), kind)
        kinds, of_tiers = [0] * len(KINDS), {}
        held = [(entry, entry()) for entry in list(self._entries.values())]  # nothing is freed while we add up
        for entry, storage in held:
            entry.kind = claimed.get(entry.key, REST)
            entry.nbytes = 0 if storage is None else storage.nbytes()  # None: being freed, its callback still to run
            tier = None if storage is None else tier_registry.tier_of(storage)
            entry.tier = entry.tier if tier is None else tier.name
            column = kinds if entry.tier is None else of_tiers.setdefault(entry.tier, [0] * len(KINDS))
            column[entry.kind] += entry.nbytes
        self._kinds, self.alive, self._unsorted = kinds, sum(kinds), 0
        for tier, nbytes in tier_registry.bytes_of_files().items():
            of_tiers.setdefault(tier, [0] * len(KINDS))[REST] += nbytes
        self._kinds_in, self.alive_in = of_tiers, dict.fromkeys(self.alive_in, 0)
        for tier, column in of_tiers.items():
            self._grew_in(tier, sum(column))

    def _claims(self) -> Iterator[tuple[int, Tensor]]:
        """Each tensor whose kind follows from the object that refers to it. For a storage the first of these counts."""
        stage = self.state if self.state is not None else getattr(self.model, "zero", None)
        listed = stage.tensors() if hasattr(stage, "tensors") else {}
        for kind in listed:
            if kind not in LISTED:
                raise BadInput(f"{type(stage).__name__}.tensors() lists {kind!r}: the kinds are {', '.join(LISTED)}")
        params = list(self.model.parameters()) if self.model is not None else []
        of_optimizer = params_of(self.optimizer)
        states = list(states_of(self.optimizer))
        yield from ((SCALARS, tensor) for tensor in listed.get("scalars", ()))  # first: hidden parameters all show one of these
        yield from ((PARAMETERS, param) for param in params)
        yield from ((PARAMETERS, tensor) for tensor in listed.get("parameters", ()))
        yield from ((GRADIENTS, grad) for grad in map(raw_grad, params) if grad is not None)
        yield from ((GRADIENTS, tensor) for tensor in listed.get("gradients", ()))
        yield from ((SCALARS if scalar else OPTIMIZER, tensor) for tensor, scalar in states)
        yield from ((OPTIMIZER, tensor) for tensor in listed.get("optimizer", ()))
        yield from ((BUFFERS, buffer) for buffer in (self.model.buffers() if self.model is not None else ()))
        yield from ((BUFFERS, tensor) for tensor in listed.get("buffers", ()))
        # What the optimizer trains comes last, so that master weights that a stage listed do not become parameters.
        yield from ((PARAMETERS, param) for param in of_optimizer)
        yield from ((GRADIENTS, grad) for grad in map(raw_grad, of_optimizer) if grad is not None)

    # -- while it is entered -----------------------------------------------------------------------------------------

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation imports torch._dynamo: seconds, and memory that is not the program's

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for cls in types:
            if hasattr(cls, "__tensor_flatten__"):
                return NotImplemented  # a DTensor: let it become operations on plain tensors, and see those
        kwargs = kwargs or {}
        before = self.alive
        self._see_all(args)
        if kwargs:
            self._see_all(kwargs.values())
        out = func(*args, **kwargs)
        self._see_all(out if isinstance(out, tuple | list) else (out,), is_new=True)
        if self.alive > before:
            asked = self.alive - before
            if self.budget is not None and self.alive > self.budget:
                error = self._out_of_memory(func, asked, self.alive)
                del out  # the traceback keeps this frame, and must not keep the memory
                raise error
            self._look_for_peak()
        return out

    def _see_all(self, values: Iterable[Any], is_new: bool = False) -> None:
        for value in values:
            if isinstance(value, Tensor):
                self._see(value, is_new)
            elif isinstance(value, list | tuple):
                self._see_all(value, is_new)

    def __enter__(self) -> "Ledger":
        if self._depth == 0:
            self._fake_mode = active_fake_mode()
            before = self.alive
            self._sort()
            if self.device_peak is not None:
                torch.cuda.reset_peak_memory_stats()
            self._grew("what exists already", self.alive - before)
            watch_resize(self)
            tier_registry.watching.append(self._of_files)
            super().__enter__()
        self._depth += 1
        return self

    def __exit__(self, *exception) -> None:
        self._depth -= 1
        if self._depth == 0:
            unwatch_resize(self)
            tier_registry.watching.remove(self._of_files)
            super().__exit__(*exception)

