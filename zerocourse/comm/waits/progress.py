"""What this rank has issued and completed in each Comm, for peers that wait for it and tests that compare ranks."""

import weakref
from collections import Counter, deque

import torch
import torch.distributed as dist

ISSUED = 4096  # how many collectives a Comm remembers
RECENT = 64  # how many Comms are remembered after they are gone


class CollectiveProgress:
    """One rank's progress in one Comm.

    issued: (verb, unit, elements, dtype) of the last collectives, in the order in which they were issued.
    completed: how many are complete (on NCCL: are left to the GPU);   last: the call of the latest of them.
    failed: the call that did not complete, if one did not.
    calls: how often each call was issued, by what it is called without its number.   threads: those that have issued any.
    """

    def __init__(self, name: str, ranks: list[int]):
        self.name, self.ranks = name, ranks  # the members of the group, by their ranks in the world
        self.issued: deque[tuple[str, str, int, torch.dtype | None]] = deque(maxlen=ISSUED)
        self.completed, self.last, self.failed = 0, "", ""
        self.calls: Counter[str] = Counter()
        self.threads: set[int] = set()
        if len(ranks) > 1:
            known[name] = self
            recent.append(self)

    def complete(self, call: str) -> None:
        self.completed += 1
        self.last, self.failed = call, ""

    def has_issued(self, call: str) -> bool:
        """Has this rank issued a collective that another one calls so?"""
        name, _, number = call.rpartition(" #")
        return self.calls[name] >= int(number)


# A peer may ask about a Comm that was freed with its model, when the function that trained it returned.
known: weakref.WeakValueDictionary[str, CollectiveProgress] = weakref.WeakValueDictionary()
recent: deque[CollectiveProgress] = deque(maxlen=RECENT)
# By process group, how many collectives it was given here, and how many messages to or from one rank alone beside them: in these
# ranks differ and are not out of step.
collectives: weakref.WeakKeyDictionary[dist.ProcessGroup, int] = weakref.WeakKeyDictionary()
messages: weakref.WeakKeyDictionary[dist.ProcessGroup, int] = weakref.WeakKeyDictionary()


def calls_of(group: dist.ProcessGroup) -> int:
    """How many collectives this rank has issued on a group; ranks whose numbers differ are out of step.

    gloo counts every message, those of a script's own collectives too. Where there is NCCL beside it, torch's count is NCCL's
    alone, and only the package's own collectives are counted. Raises RuntimeError where the backend does not count.
    """
    if "nccl" in dist.get_backend_config(group):
        return collectives.get(group, 0)
    return group._get_sequence_number_for_group() - messages.get(group, 0)
