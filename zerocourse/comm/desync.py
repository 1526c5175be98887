"""What the ranks tell each other through the store when a collective fails: who was in which call, and who left why.

Nothing is written here while all goes well, so it costs a step nothing.
"""

import json
import time
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from ..errors import CollectiveError, OutOfMemory

COMPARE_SECONDS = 3.0  # that a rank whose collective failed waits for what the others say
HEARD_SECONDS = 1.0  # that a rank which leaves waits until the others know why: its process may keep the store


class DesyncReport:
    """A rank's access to the store that it shares with its `peers`."""

    def __init__(self, store: dist.Store, rank: int, peers: list[int]):
        # A reference of our own: the store must outlive the process group, which a rank that leaves destroys.
        self.store, self.rank, self.peers = store, rank, peers

    def tell(self, reason: str | Exception) -> None:
        """Write down why this rank leaves, for whoever will wait for it in vain."""
        out_of_memory = isinstance(reason, OutOfMemory)  # whose sentence names the rank itself
        with suppress(RuntimeError, ValueError):  # the store is gone: nobody to tell
            self.store.set("left", json.dumps([out_of_memory, f"{'' if out_of_memory else f'rank {self.rank}: '}{reason}"]))
            self.store.set(f"heard/{self.rank}", "")

    def heard(self) -> bool:
        """Have all peers read it?"""
        with suppress(RuntimeError):
            return self.store.check([f"heard/{peer}" for peer in self.peers])
        return True  # nobody is there any more

    def compare(self, call: str, error: Exception, timeout: timedelta) -> CollectiveError | OutOfMemory:
        """After a failed call: an error whose sentence says what this rank was in, and what the others say they were in.

        Where another rank ran out of memory, that is this one's error too.
        """
        said, until = {self.rank: call}, time.monotonic() + COMPARE_SECONDS
        with suppress(RuntimeError):  # the store may be gone, with the rank that kept it
            self.store.set(f"call/{self.rank}", call)
            while time.monotonic() < until and len(said) <= len(self.peers):
                if self.somebody_left:
                    out_of_memory, reason = json.loads(self._get("left"))
                    self.store.set(f"heard/{self.rank}", "")  # after reading: now the one that left may end the store
                    stopped = f"rank {self.rank} stopped in {call}, because another rank left: {reason}"
                    return OutOfMemory(stopped) if out_of_memory else CollectiveError(stopped)
                said |= {peer: self._get(f"call/{peer}") for peer in self.peers if self.store.check([f"call/{peer}"])}
                time.sleep(0.02)
        late = f"did not complete within {timeout.total_seconds():g} s"
        what = late if "timed out" in str(error).lower() else "broke off"
        ranks = [f"rank {rank} {f'was in {said[rank]}' if rank in said else 'did not answer: it computes, or is gone'}"
                 for rank in sorted([self.rank, *self.peers])]
        rule = ". Every rank must run the same units in the same order" if len(set(said.values())) > 1 else ""
        if not rule and len(said) > len(self.peers):
            rule = ". They disagree on its layout, or the time was too short"
        return CollectiveError(f"a collective {what}: {'; '.join(ranks)}{rule}")

    def exchange(self, call: str, thing: object, timeout: timedelta) -> list:
        """Every rank's `thing`, in rank order. Raises RuntimeError when time is up, or a rank has left."""
        keys = [f"{call}/{rank}" for rank in range(len(self.peers) + 1)]
        self.store.set(keys[self.rank], json.dumps(thing))
        if not self.wait(keys, timeout.total_seconds()):
            raise RuntimeError("timed out")
        return [json.loads(self._get(key)) for key in keys]

    def wait(self, keys: list[str], seconds: float) -> bool:
        """Until the store has all keys. False when time is up, or another rank has left."""
        until, pause = time.monotonic() + seconds, 0.001
        while not self.store.check(keys):
            if time.monotonic() >= until or self.somebody_left:
                return False
            time.sleep(pause)  # the store's own wait prints warnings when its time is up
            pause = min(0.05, 2 * pause)
        return True

    @property
    def somebody_left(self) -> bool:
        return self.store.check(["left"])

    def _get(self, key: str) -> str:
        return self.store.get(key).decode()


def leave(notes: list[DesyncReport], groups: list[dist.ProcessGroup | None], reason: str | Exception) -> None:
    """Say why this rank leaves; close its connections, so that whoever waits for it looks here; let them read.

    notes: of all that have used these groups, and one of which the peers are waiting in.
    """
    for each in notes:
        each.tell(reason)
    for group in groups:
        with suppress(RuntimeError, ValueError, AssertionError):  # it is closed already
            dist.destroy_process_group(group)
    until = time.monotonic() + HEARD_SECONDS
    while notes and time.monotonic() < until and not any(each.heard() for each in notes):
        time.sleep(0.02)
