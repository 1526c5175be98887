"""Something that is under way: a collective, or one thing and then another."""

from collections.abc import Callable

import torch


class Handle:
    """Something under way.   tensor: what it works on, until it is complete; then None.
    received: bytes of memory that it has taken beside `tensor` for what the others send, until it is complete.
    """

    tensor: torch.Tensor | None = None
    received = 0

    def wait(self) -> None:
        """Return when the result is in place; a second call returns at once. On NCCL it is the stream that waits, not the host."""
        raise NotImplementedError

    def advance(self) -> bool:
        """Wait for the part that is under way, and start the next. Is anything under way now?"""
        self.wait()
        return False

    def then(self, fn: Callable[[], "Handle | None"]) -> "Chain":
        """This, and then `fn()`, and then what that has started, if it returns a Handle (see `Chain`)."""
        return Chain(self, fn)


class Chain(Handle):
    """`first`, and then `fn()`, and then the Handle that it returns, or None. `tensor` and `received` are those of the present part.

    first: a Handle, or anything that has a `wait`; None: nothing, so that all of it is done when it is waited for.

    `fn` runs once: in the thread that waits, on the stream that is current there, after `first.wait()`. Never by itself, when `first`
    happens to be complete: ranks that wait in one order issue in one order what their functions start. `wait` goes through all
    parts. `advance` ends one and starts the next, so that others may be waited for while that is under way.
    An error of a part (a CollectiveError, where its own time is up) is raised by the call that waited for it, and no further
    part begins, in a second call neither. Each collective records its own events, from its issue to its end. `fn` has none.
    """

    def __init__(self, first, fn: Callable[[], Handle | None]):
        self.current, self.fn = first, fn

    @property
    def tensor(self) -> torch.Tensor | None:
        return getattr(self.current, "tensor", None)

    @property
    def received(self) -> int:
        return getattr(self.current, "received", 0)

    def advance(self) -> bool:
        fn, self.fn = self.fn, None  # an error leaves none
        if self.current is not None and getattr(self.current, "advance", self.current.wait)():
            self.fn = fn
        else:
            self.current = fn() if fn is not None else None
        return self.current is not None

    def wait(self) -> None:
        while self.advance():
            pass


class Finished(Handle):
    """Nothing is under way. Where one rank of a list has nothing to send, its reduction has as many parts as that of the others."""

    def wait(self) -> None:
        pass


class CollectiveHandle(Handle):
    """A collective under way. It keeps its tensors alive until `wait`.   nbytes: what this rank sends, with padding."""

    def __init__(self, comm, verb: str, unit: str, nbytes: int, call: str, tensor: torch.Tensor, works: list,
                 finish: Callable[[], object], received: int = 0):
        comm.recorder.time_on(tensor.device)
        self.comm, self.verb, self.unit, self.nbytes, self.call = comm, verb, unit, nbytes, call
        self.tensor, self.works, self.finish, self.issued = tensor, works, finish, comm.recorder.clock()
        self.received = received

    def wait(self) -> None:
        """Raises CollectiveError after the Comm's timeout."""
        if self.tensor is None:
            return
        begun = self.comm.recorder.clock()
        try:
            self.comm.complete(self.works, self.call, self.tensor)
            if self.works:
                self.comm.recorder.record("wait", self.unit, begun, self.nbytes)
        finally:
            tensor, finish = self.tensor, self.finish
            self.tensor = self.works = self.finish = None  # works hold what was received: finish() frees it as it goes
            self.received = 0
        finish()
        del tensor, finish  # freed before the recorder asks how much is alive
        self.comm.recorder.record(self.verb, self.unit, self.issued, self.nbytes)
