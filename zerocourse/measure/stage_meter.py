"""What a stage tells its recorder: how many bytes of which kind are alive, and when each unit's forward and backward
began and ended.
"""

import weakref
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ..comm.events import Recorder
from .ledger import Ledger

KINDS = ("optimizer", "parameters", "gradients", "in flight", "activations")
KIND_OF = {"full": "parameters", "shard": "parameters", "bucket": "gradients", "grad_shard": "gradients",
           "master": "optimizer", "master_grads": "gradients"}  # the names are those of `zero.buffers.buffer`


class Held(Protocol):
    """Something that knows how many bytes it holds, without looking into any tensor.

    reduction: what is under way with it, None when nothing is: only then its bytes change unasked.
    received_bytes: what that has taken beside it, for what the other ranks send.
    """

    reduction: object

    @property
    def bytes_by_tensor(self) -> dict[str, int]: ...

    @property
    def received_bytes(self) -> int: ...


class StageMeter:
    """A running count of the bytes of some buffers, which every event asks for, and the spans that are open.

    recorder: gets the events. It knows the meter, but does not keep it alive.
    in_flight: the tensors of a buffer (see `KIND_OF`) that this stage holds only for a while: what it gathers, and the
        buckets that it frees. Those of the others count as parameters and gradients.
    """

    def __init__(self, recorder: Recorder, buffers: Iterable[Held], in_flight: Collection[str] = ()):
        self.recorder = recorder
        self.kind_of = KIND_OF | dict.fromkeys(in_flight, "in flight")
        self._bytes = dict.fromkeys(KINDS, 0)
        self._counted: dict[Held, dict[str, int]] = {}
        self._changing: dict[Held, None] = {}  # something is under way with them
        self._ledger: Ledger | None = None
        self._began: dict[tuple[str, str], float] = {}
        for buffer in buffers:
            self.recount(buffer)
        meter = weakref.ref(self)
        recorder.alive = lambda: meter().held if meter() else 0
        recorder.kinds = lambda: meter().by_kind() if meter() else {}

    def recount(self, buffer: Held) -> None:
        """The buffer took memory or gave some back."""
        held, counted = buffer.bytes_by_tensor, self._counted.get(buffer)
        for name, nbytes in held.items():
            self._bytes[self.kind_of[name]] += nbytes - (counted[name] if counted else 0)
        self._counted[buffer] = held
        if buffer.reduction is not None:
            self._changing[buffer] = None
        else:
            self._changing.pop(buffer, None)

    @property
    def held(self) -> int:
        """Bytes of all buffers."""
        # A collective is complete before its stage hears of it. The stage waits for the oldest first.
        oldest = next(iter(self._changing), None)
        if oldest is not None:
            self.recount(oldest)
        return sum(self._bytes.values())

    def by_kind(self) -> dict[str, int]:
        """Bytes alive by kind: of the model states that the buffers hold, or, under a ledger, of everything.

        Under a ledger, "optimizer" are also the optimizer's states, "in flight" also what arrives from other ranks, and
        "activations" are the rest of what the ledger counts, with inputs and the model's buffers.
        """
        held = self.held
        kinds = dict(self._bytes)
        if self._ledger is not None:
            kinds["optimizer"] = max(kinds["optimizer"], self._ledger.optimizer_bytes)
            kinds["in flight"] += sum(buffer.received_bytes for buffer in self._changing)
            kinds["activations"] = self._ledger.alive - sum(kinds.values())
        return kinds

    @contextmanager
    def watched_by(self, ledger: Ledger) -> Iterator[None]:
        """Events inside count all that the ledger does. It must be entered, and know the optimizer."""
        of_stage, self._ledger = self.recorder.alive, ledger
        self.recorder.alive = lambda: ledger.alive
        try:
            yield
        finally:
            self.recorder.alive, self._ledger = of_stage, None

    def begin(self, verb: str, unit: str) -> None:
        self._began.setdefault((verb, unit), self.recorder.clock())

    def end(self, verb: str, unit: str) -> None:
        """Record the span; nothing where none is open."""
        if (verb, unit) in self._began:
            self.recorder.record(verb, unit, self._began.pop((verb, unit)))

    def forget(self) -> None:
        """Whatever is open was interrupted."""
        self._began.clear()
