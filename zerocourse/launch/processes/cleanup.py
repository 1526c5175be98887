"""Finds and ends every process of a launch by the mark in its environment, whatever session it hides in.

Torchrun gives each rank a session of its own, data loaders fork further and users start programs: no process
group holds them all, but all of them inherit one environment variable. The mark is a path, `parent/job/`, so that
a launch inside a launch ends with it. Run as a program (`python guard.py PARENT MARK FOLDER`) this file waits until
the parent is gone, kills what still carries its mark and removes its folder. It imports little, to start in 20 ms.
"""

import os
import signal
import sys
import time

MARK = "ZEROCOURSE_RUN"  # the environment variable that holds the mark
FOLDER = "ZEROCOURSE_FOLDER"  # and the one that holds the job's folder, in which a launch inside it keeps its own


def marked(mark: str, sessions=()) -> list[int]:
    """Process ids whose environment's mark starts with `mark`, or whose session is one of `sessions` (Linux).

    A forked rank shows the environment its parent was started with, so ranks that are forked are found by session.
    Zombies show no environment and are not counted. Without /proc the answer is empty.
    """
    wanted, found = f"\0{MARK}={mark}".encode(), []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                hit = wanted in b"\0" + file.read()
            if not hit and sessions:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # After the program's name, which may hold spaces: state, parent, process group, session.
                    state, _, _, session = file.read().rpartition(b")")[2].split()[:4]
                hit = int(session) in sessions and state != b"Z"
        except (OSError, ValueError):  # it ended while we looked, or it is not ours
            continue
        if hit:
            found.append(int(name))
    return found


def end_all(find, grace: float = 0.3, patience: float = 5.0) -> list[int]:
    """End what `find() -> pids` finds, asking for `grace` seconds and then by force, until it finds nothing.

    Looking again after every round catches what was forked meanwhile. Returns what is left after `patience` seconds.
    """
    started = time.monotonic()
    while (pids := find()) and time.monotonic() - started < patience:
        force = time.monotonic() - started >= grace
        for pid in pids:
            try:
                os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM) if force else signal.SIGTERM)
            except OSError:
                pass
        time.sleep(0.02)
    return pids


def main(parent: int, mark: str, folder: str) -> None:
    """Wait for the end of process `parent`, then leave nothing of it behind."""
    import shutil

    while os.getppid() == parent:  # a pipe would not do: what the parent forks would hold it open
        time.sleep(0.2)
    end_all(lambda: marked(mark), grace=0.0)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
