"""What one attempt of an elastic launch was: the time between two starts of the ranks by torchrun's elastic agent."""

import signal
from dataclasses import dataclass

from .exits import TorchrunExits
from .failures import Failure


@dataclass(frozen=True)
class Attempt:
    """What the ranks of this node sent in one attempt.

    ended: why there was another one after it, as in "rank 1 died (SIGKILL)"; "" for the last.
    records, lines: as those of `Results`.
    """

    number: int
    ended: str
    records: list[tuple[int, dict]]
    lines: list[tuple[int, str]]


def reason(failures: list[Failure], gone_first: list[int], exits: TorchrunExits) -> str:
    """Why torchrun started the ranks again. gone_first: ranks whose process ended before any other had failed."""
    codes, raised = exits.codes(), {failure.rank for failure in failures}
    own = next((failure for failure in failures if not failure.broke_off), None)
    if own is not None:
        return f"rank {own.rank} raised {own.kind}: {own.message.partition(chr(10))[0]}"
    first_failed = exits.first_failed()
    if first_failed is None and not failures:
        return "the number of nodes changed"
    # Torchrun ends the peers of a rank that failed with SIGTERM: such a death is not the cause.
    dead = [rank for rank in gone_first if rank not in raised and codes.get(rank) != -signal.SIGTERM]
    if dead:
        code = codes.get(dead[0])  # torchrun's log may name another rank that failed in the same moment
        how = signal.Signals(-code).name if code and code < 0 else f"exit code {code}" if code else ""
        return f"rank {dead[0]} died" + (f" ({how})" if how else "")
    return "a rank of another node failed" if failures else f"rank {first_failed} died"
