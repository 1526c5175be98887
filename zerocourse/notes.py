"""What the ranks tell each other through the store when a collective fails: who was in which call, and who left why.

Nothing is written here while all goes well, so it costs a step nothing.
"""

import json
import time
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

COMPARE_SECONDS = 3.0  # that a rank whose collective failed waits for what the others say
HEARD_SECONDS = 1.0  # that a rank which leaves waits until the others know why: its process may keep the store


class Notes:
    """A rank's access to the store that it shares with its `peers`."""

    def __init__(self, store: dist.Store, rank: int, peers: list[int]):
        # A reference of our own: the store must outlive the process group, which a rank that leaves destroys.
        self.store, self.rank, self.peers = store, rank, peers

    def leave(self, reason: str, group: dist.ProcessGroup | None) -> None:
        """Say why this rank leaves; close its connections, so that whoever waits for it looks here; let them read."""
        with suppress(RuntimeError, ValueError):  # another rank left before, or the store is gone: nobody to tell
            self.store.set("left", f"rank {self.rank}: {reason}")
            self.store.set(f"heard/{self.rank}", "")
            dist.destroy_process_group(group)
            until = time.monotonic() + HEARD_SECONDS
            while time.monotonic() < until and not self.store.check([f"heard/{peer}" for peer in self.peers]):
                time.sleep(0.02)

    def compare(self, call: str, error: Exception, timeout: timedelta) -> str:
        """After a failed call: one sentence that says what this rank was in, and what the others say they were in."""
        said, until = {self.rank: call}, time.monotonic() + COMPARE_SECONDS
        with suppress(RuntimeError):  # the store may be gone, with the rank that kept it
            self.store.set(f"call/{self.rank}", call)
            while time.monotonic() < until and len(said) <= len(self.peers):
                if self.somebody_left:
                    reason = self._get("left")
                    self.store.set(f"heard/{self.rank}", "")  # after reading: now the one that left may end the store
                    return f"rank {self.rank} stopped in {call}, because another rank left: {reason}"
                said |= {peer: self._get(f"call/{peer}") for peer in self.peers if self.store.check([f"call/{peer}"])}
                time.sleep(0.02)
        late = f"did not complete within {timeout.total_seconds():g} s"
        what = late if "timed out" in str(error).lower() else "broke off"
        ranks = [f"rank {rank} {f'was in {said[rank]}' if rank in said else 'did not answer: it computes, or is gone'}"
                 for rank in sorted([self.rank, *self.peers])]
        rule = ". Every rank must run the same units in the same order" if len(set(said.values())) > 1 else ""
        if not rule and len(said) > len(self.peers):
            rule = ". They disagree on its layout, or the time was too short"
        return f"a collective {what}: {'; '.join(ranks)}{rule}"

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
