"""A rank's end of its two connections to the parent: one for events (both ways), one for all it prints.

Output is not redirected in Python. File descriptors 1 and 2 become the connection, so that what C code, data-loader
workers and subprocesses print arrives too, and arrives whole even if the rank is killed. When the parent closes the
events connection, or has ended, the rank kills its whole session.
"""

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
from dataclasses import asdict
from typing import NoReturn

from .position import current_position


class Connection:
    """Events to the parent as JSON lines; what it asks of the rank is in `requests`.

    `spec`: address, token, rank and local_rank. `on_fork` is called in a forked child, to which this is of no use.
    """

    def __init__(self, spec: dict, on_fork):
        self.socket, self.local_rank, self.on_fork = _connect(spec, "events"), spec["local_rank"], on_fork
        self.lock, self.requests = threading.Lock(), queue.SimpleQueue()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        threading.Thread(target=self._listen, daemon=True, name="zerocourse-parent").start()

    def _forked(self) -> None:
        """Close the connection in a data-loader worker. Otherwise the parent could not see that the rank has ended."""
        self.on_fork()
        os.close(self.socket.detach())  # close() would wait for the reader, a thread that is not in this process

    def send(self, event: str, **fields) -> None:
        line = json.dumps({"event": event, **fields}, default=_jsonable).encode() + b"\n"
        with self.lock:
            self.socket.sendall(line)

    def _listen(self) -> None:
        try:
            with self.socket.makefile("rb") as lines:
                for request in map(json.loads, lines):
                    if request["kind"] == "position":  # answered here, since the main thread may be stuck
                        self.send("position", **asdict(current_position()))
                    else:
                        self.requests.put(request)
        except OSError:
            pass
        end_session()


def end_session() -> NoReturn:
    """End this rank and what it has started."""
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)  # data-loader workers too, which look for us only every 5 s
    os._exit(1)


def _connect(spec: dict, use: str) -> socket.socket:
    """A connection to the parent, on which this rank has said who it is and what the connection is for."""
    address = spec["address"]
    if isinstance(address, str):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
    else:
        connection = socket.create_connection(("127.0.0.1", address))
    hello = {"use": use, "pid": os.getpid(), **{key: spec[key] for key in ("rank", "local_rank", "token")}}
    connection.sendall(json.dumps(hello).encode() + b"\n")
    return connection


def redirect_output(spec: dict) -> None:
    """Send everything that this process and its children print to the parent."""
    if os.name == "posix":  # elsewhere a socket is no file descriptor, and output stays torchrun's
        connection = _connect(spec, "output")
        os.dup2(connection.fileno(), 1)
        os.dup2(connection.fileno(), 2)
        connection.close()
    for descriptor, name in ((1, "stdout"), (2, "stderr")):  # new ones: the old remember what kind of file they had
        stream = open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed by the caller's code, or None, or anything that it has put there
            stream.flush()


def _jsonable(value):
    """What stands for a `value` that JSON cannot hold: a number, a list, or its `repr`."""
    for convert in ("item", "tolist"):
        try:
            return getattr(value, convert)()
        except (AttributeError, RuntimeError, ValueError, TypeError):
            continue
    return repr(value)
