"""A collective that is under way."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .group import Comm


class Handle:
    """A collective under way. It keeps its tensors alive until `wait`, which returns when the result is in place.

    tensor: what the collective works on, until it is complete; then None.   nbytes: what this rank sends, with padding.
    received: bytes of memory that it has taken beside `tensor` for what the others send, until it is complete.
    """

    def __init__(self, comm: "Comm", verb: str, unit: str, nbytes: int, call: str, tensor: torch.Tensor, works: list,
                 finish: Callable[[], object], received: int = 0):
        comm.recorder.time_on(tensor.device)
        self.comm, self.verb, self.unit, self.nbytes, self.call = comm, verb, unit, nbytes, call
        self.tensor, self.works, self.finish, self.issued = tensor, works, finish, comm.recorder.clock()
        self.received = received

    def wait(self) -> None:
        """Block until complete; a second call returns at once. Raises CollectiveError after the Comm's timeout."""
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
