"""The threads of a disk, and the end of its folder, which comes with that of its process, however that ends."""

import os
import queue
import shutil
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from ..tiers import FileTier

REMOVAL = 'read -r line; rm -rf -- "$1"'  # waits for a line, or for the end of the process that would write it


class IoThreads:
    """A queue for each way, and `workers` threads for each queue. It must not know the disk, which could not be forgotten
    then."""

    def __init__(self, folder: Path, workers: int, tier: FileTier):
        self.folder, self.workers, self.tier, self.process = folder, workers, tier, os.getpid()
        self.closing = threading.Event()
        self.queues: dict[str, queue.SimpleQueue] = {}
        self.threads: list[threading.Thread] = []
        self.remover = subprocess.Popen(["/bin/sh", "-c", REMOVAL, "sh", str(folder)], stdin=subprocess.PIPE, cwd="/",
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def put(self, verb: str, transfer, piece: tuple[int, int] | None) -> None:
        if verb not in self.queues:
            self.queues[verb] = pieces = queue.SimpleQueue()
            for number in range(self.workers):
                thread = threading.Thread(target=move_pieces, args=(pieces,), name=f"disk {verb} {number}", daemon=True)
                thread.start()
                self.threads.append(thread)
        self.queues[verb].put((transfer, piece))

    def close(self) -> None:
        """What is under way fails, the threads end, and the folder is removed."""
        if os.getpid() != self.process:
            return  # a fork of it, which has neither the threads nor a right to the files
        self.closing.set()
        for pieces in self.queues.values():
            for _ in range(self.workers):
                pieces.put(None)
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join()
        self.tier.clear()
        with suppress(OSError):
            self.remover.communicate(b"\n")  # a line, because a fork of this process would keep its input open
        if self.remover.returncode:  # somebody has killed it
            shutil.rmtree(self.folder, ignore_errors=True)


def move_pieces(pieces: queue.SimpleQueue) -> None:
    """What each thread does."""
    while (task := pieces.get()) is not None:
        transfer, piece = task
        transfer.move(piece)
        del task, transfer  # the loop would keep its tensor alive until the next one comes
