"""One copy between the device and the host, and what may be waited for. It communicates nothing."""

import threading
import time

import torch

from ..comm import Handle
from ..errors import ZeroCourseError

DOWN, UP = "down", "up"


class TransferError(ZeroCourseError, RuntimeError):
    """A copy between device and host failed, or was not over within its limit."""


class LinkTransfer(Handle):
    """One copy under way. It keeps both tensors alive until `wait` or `release`; after `wait`, `into` may be used."""

    def __init__(self, link, verb: str, name: str, into: torch.Tensor, source: torch.Tensor):
        self.link, self.verb, self.name, self.nbytes = link, verb, name, source.nbytes
        self.into, self.source = into, source
        self.begun, self.ended = time.perf_counter(), 0.0
        self.over, self.error, self.noted = threading.Event(), None, False

    @property
    def done(self) -> bool:
        return self.over.is_set()

    def wait_for_source(self) -> None:
        """Block until what is copied may be overwritten. (On a GPU `wait` does not mean that.)"""
        self.wait(notes=False)

    def release(self) -> None:
        """The device has done with the copy before it computes anything further, so the memory of both tensors may be given
        back. (On a GPU that does not stop the host.)"""
        self.wait()

    def end(self, error: BaseException | None = None) -> None:
        """The copy is over, or has failed."""
        self.ended, self.error = time.perf_counter(), error
        self.into = self.source = None
        self.over.set()

    def wait(self, notes: bool = True) -> None:
        """Block until the copy is over; a second call returns at once. Raises TransferError.

        notes: record the event, which only the thread that trains may do; another one leaves that to a later call.
        """
        if not self.over.wait(self.link.limit):
            raise TransferError(f"{self.nbytes:,} bytes of {self.name} were not {self.verb} the link after "
                                f"{self.link.limit:g} s: give the link a higher rate, or a longer limit")
        if self.error is not None:
            raise TransferError(f"{self.nbytes:,} bytes of {self.name} could not go {self.verb} the link: {self.error}") \
                from self.error
        self.note(notes)

    def note(self, notes: bool) -> None:
        """Record the event, once."""
        if notes and not self.noted:
            self.noted = True
            self.link.recorder.record(self.verb, self.name, self.begun, self.nbytes, end=self.ended)
