"""Finds and ends every process of a launch by the run id in its environment, whatever session it is in.

Torchrun gives each rank a session of its own, data loaders fork, and users start programs. No process group contains
them all, but all of them inherit one environment variable. Its value, the run id, is a path, `parent/job/`, so
that a launch inside a launch ends with it. Run as a program (`python cleanup.py PARENT RUN_ID FOLDER`) this file waits
until the parent is gone, kills what still carries its run id and removes its folder. It imports little and starts in
20 ms.
"""

import contextlib
import os
import signal
import sys
import time

RUN_VARIABLE = "ZEROCOURSE_RUN"  # the environment variable that holds the run id
FOLDER_VARIABLE = "ZEROCOURSE_FOLDER"  # the one that holds the job's folder, for the folders of launches inside it


def find_processes(run_id: str, sessions=()) -> list[int]:
    """Process ids whose run id starts with `run_id`, or whose session is one of `sessions` (Linux).

    A forked rank shows the environment that its fork server was started with, so forked ranks are looked up by session.
    Zombies show no environment and are not counted. Without /proc the answer is empty.
    """
    wanted, pids = f"\0{RUN_VARIABLE}={run_id}".encode(), []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                matches = wanted in b"\0" + file.read()
            if not matches and sessions:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # After the program's name, which may hold spaces: state, parent, process group, session.
                    state, _, _, session = file.read().rpartition(b")")[2].split()[:4]
                matches = int(session) in sessions and state != b"Z"
        except (OSError, ValueError):  # it ended meanwhile, or it belongs to another user
            continue
        if matches:
            pids.append(int(name))
    return pids


def end_processes(find, grace: float = 0.3, timeout: float = 5.0) -> list[int]:
    """End the processes that `find() -> pids` lists: SIGTERM for `grace` seconds, then SIGKILL, until it lists none.

    Looking again after every round catches what was forked meanwhile. Returns what is left after `timeout` seconds.
    """
    started = time.monotonic()
    while (pids := find()) and time.monotonic() - started < timeout:
        force = time.monotonic() - started >= grace
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM) if force else signal.SIGTERM)
        time.sleep(0.02)
    return pids


def main(parent: int, run_id: str, folder: str) -> None:
    """Wait for the end of process `parent`, then end its processes and remove its folder."""
    import shutil

    while os.getppid() == parent:  # a pipe would not do: what the parent forks would hold it open
        time.sleep(0.2)
    end_processes(lambda: find_processes(run_id), grace=0.0)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
