"""How ranks ended, as told by whoever started them: torchrun, the fork server, or this process itself.

Each class has `codes()`, the exit codes by rank of the ranks known to have ended, and `first_failed()`, the rank that
is known to have failed first.
"""

import re
import subprocess
from pathlib import Path

_FIRST_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
_FAILED = re.compile(r"\(local_rank: (\d+)\)\s+exitcode\s+: (-?\d+)")


class TorchrunExits:
    """From torchrun's log, which has the ranks that did not end well. `local_ranks`: rank by local rank."""

    def __init__(self, log: Path, local_ranks: dict[int, int]):
        self.log, self.local_ranks, self.seen = log, local_ranks, 0

    def text(self) -> str:
        """Everything that torchrun, or Python before the connections were up, printed in this attempt."""
        return self._whole()[self.seen:]

    def forget(self) -> None:
        """What is in the log now is of an earlier attempt."""
        self.seen = len(self._whole())

    def _whole(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() and self.log.stat().st_size else ""

    def codes(self) -> dict[int, int]:
        text = self.text()
        codes = {self._rank(local_rank): int(code) for local_rank, code in _FAILED.findall(text)}
        first = _FIRST_FAILED.search(text)
        return codes | ({self._rank(first[2]): int(first[1])} if first else {})

    def first_failed(self) -> int | None:
        first = _FIRST_FAILED.search(self.text())
        return self._rank(first[2]) if first else None

    def any_failed(self) -> bool:
        """Whether torchrun has seen a rank fail. It may then take half a minute to end the others: too long to wait."""
        text = self.text()
        return "closing signal" in text or _FIRST_FAILED.search(text) is not None

    def _rank(self, local_rank: str) -> int:
        return self.local_ranks.get(int(local_rank), int(local_rank))


class ChildExits:
    """Of ranks that are children of this process, in rank order."""

    def __init__(self, processes: list[subprocess.Popen]):
        self.processes = processes

    def codes(self) -> dict[int, int]:
        return {rank: p.returncode for rank, p in enumerate(self.processes) if p.poll() is not None}

    def first_failed(self) -> None:
        return None


class ForkExits:
    """Of ranks that the fork server forked. `pids`: process ids by rank."""

    def __init__(self, fork_server, pids: dict[int, int]):
        self.fork_server, self.pids = fork_server, pids

    def codes(self) -> dict[int, int]:
        codes = {rank: self.fork_server.exit_code(pid) for rank, pid in self.pids.items()}
        return {rank: code for rank, code in codes.items() if code is not None}

    def first_failed(self) -> None:
        return None
