"""The child's side of a launch: one rank, its two connections to the parent, and its own traceback when it fails.

Output is not touched in Python: file descriptors 1 and 2 become a connection to the parent, so that what C code,
data-loader workers and sub-processes print arrives too, and is whole even when the rank is killed. When the
parent's end of the events closes, the rank kills its whole session.

Use in ranks: `from zerocourse.launch.worker import report, progress`. Outside a launch both do nothing.
"""

import faulthandler
import json
import linecache
import os
import pickle
import queue
import runpy
import signal
import socket
import sys
import threading
import time
import traceback

_channel = None  # this rank's events, or None outside a launch
_next_progress = 0.0


def report(**record) -> None:
    """Send a record to the caller: `report(step=3, loss=0.1)` appears in `Results.records` as `(rank, dict)`.

    Values travel as JSON: tensors and arrays become numbers or lists, anything unknown its `repr`.
    """
    if _channel:
        _channel.send("record", record=record)


def progress(step: int, total: int, **info) -> None:
    """Move the caller's progress bar to `step` of `total`, with `info` beside it. Only local rank 0's calls count.

    At most ten a second are sent, and always the last step.
    """
    global _next_progress
    now = time.monotonic()
    if _channel and _channel.local_rank == 0 and (now >= _next_progress or step >= total):
        _next_progress = now + 0.1
        _channel.send("progress", step=step, total=total, info=info)


def main(spec: dict) -> None:
    """Be the rank that the environment says, and do what `spec["kind"]` says: serve, call, script or module."""
    global _channel
    spec |= {"rank": int(os.environ["RANK"]), "local_rank": int(os.environ["LOCAL_RANK"])}
    _channel = _Channel(spec)
    _take_output(spec)
    if hasattr(faulthandler, "register"):
        dump = open(os.path.join(spec["folder"], f"stack{spec['rank']}"), "w")
        faulthandler.register(signal.SIGUSR1, file=dump, all_threads=False)
    if spec["kind"] == "serve":
        from .processes.serving import serve
        serve(spec, _channel)
        return
    ok = attempt(_TARGETS[spec["kind"]], spec)
    if not ok:
        os._exit(1)  # a normal exit would wait for threads that may be stuck in a collective
    if spec["kind"] == "call":
        _leave_group()
        os._exit(0)
    # A script ends as it would under torchrun alone: its threads and exit handlers run.


class _Channel:
    """Events to the parent as JSON lines; requests from it in `requests`; its end is ours."""

    def __init__(self, spec: dict):
        self.socket, self.local_rank = _connect(spec, "events"), spec["local_rank"]
        self.lock, self.requests = threading.Lock(), queue.SimpleQueue()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave_to_the_rank)
        threading.Thread(target=self._listen, daemon=True, name="zerocourse-parent").start()

    def _leave_to_the_rank(self) -> None:
        """In a data-loader worker: else the parent would not see the rank go while the worker lives."""
        global _channel
        _channel = None
        os.close(self.socket.detach())  # close() would wait for the reader, a thread that is not in this process

    def send(self, event: str, **fields) -> None:
        line = json.dumps({"event": event, **fields}, default=_plain).encode() + b"\n"
        with self.lock:
            self.socket.sendall(line)

    def _listen(self) -> None:
        try:
            with self.socket.makefile("rb") as lines:
                for line in lines:
                    self.requests.put(json.loads(line))
        except OSError:
            pass
        if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
            os.killpg(os.getpgrp(), signal.SIGKILL)  # data-loader workers too, which look for us only every 5 s
        os._exit(1)


def _connect(spec: dict, use: str) -> socket.socket:
    """A connection to the parent that has said whose it is and what for."""
    address = spec["address"]
    if isinstance(address, str):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
    else:
        connection = socket.create_connection(("127.0.0.1", address))
    hello = {"use": use, "pid": os.getpid(), **{key: spec[key] for key in ("rank", "local_rank", "token")}}
    connection.sendall(json.dumps(hello).encode() + b"\n")
    return connection


def _take_output(spec: dict) -> None:
    """Let everything this process and its children print go to the parent."""
    if os.name == "posix":  # elsewhere a socket is no file descriptor, and output stays torchrun's
        connection = _connect(spec, "output")
        os.dup2(connection.fileno(), 1)
        os.dup2(connection.fileno(), 2)
        connection.close()
    for descriptor, name in ((1, "stdout"), (2, "stderr")):  # new ones: the old remember what kind of file they had
        stream = open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _plain(value):
    """JSON for what JSON does not know."""
    for convert in ("item", "tolist"):
        try:
            return getattr(value, convert)()
        except (AttributeError, RuntimeError, ValueError, TypeError):
            continue
    return repr(value)


# What a rank does once ------------------------------------------------------------------------------------------

def _call(spec: dict) -> None:
    from .processes import payload

    if spec["init"]:
        from ..comm import bootstrap as distributed
        distributed.init()
    fn, args, kwargs = payload.unpack(take_work(spec)["call"])
    done(spec, fn(*args, **kwargs))


def take_work(spec: dict) -> dict:
    """What the parent wrote for its ranks, once folder, import path and sources are here what they are there."""
    with open(os.path.join(spec["folder"], "work"), "rb") as file:
        work = pickle.load(file)
    os.chdir(work["cwd"])
    sys.path[:] = work["import_path"]
    for name, lines in work["sources"].items():  # of code that is in no file, for tracebacks
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return work


def _script(spec: dict) -> None:
    sys.argv = [spec["target"], *spec["argv"]]
    sys.path.insert(0, os.path.dirname(spec["target"]))
    runpy.run_path(spec["target"], run_name="__main__")
    _channel.send("done", ok=True)


def _module(spec: dict) -> None:
    sys.argv = [spec["target"], *spec["argv"]]
    sys.path.insert(0, spec["cwd"])
    runpy.run_module(spec["target"], run_name="__main__", alter_sys=True)
    _channel.send("done", ok=True)


_TARGETS = {"call": _call, "script": _script, "module": _module}


def done(spec: dict, value, **fields) -> None:
    """Leave `value` where the parent finds it, and say so."""
    from .processes import payload

    if value is not None:
        try:
            payload.save(value, os.path.join(spec["folder"], f"value{spec['rank']}"))
        except Exception as error:  # pickling runs the value's own code
            raise TypeError(f"the value that rank {spec['rank']} returned cannot be sent back: {error}") from None
    _flush()
    _channel.send("done", ok=True, value=value is not None, **fields)


def attempt(action, *args) -> bool:
    """Run it; on failure tell the parent in the rank's own words."""
    try:
        action(*args)
        return True
    except SystemExit as stop:
        if stop.code in (None, 0):
            _flush()
            _channel.send("done", ok=True)
            return True
        message = f"exit status {stop.code}" if isinstance(stop.code, int) else str(stop.code)
        _tell_failure(stop, message)
    except BaseException as error:
        _tell_failure(error, str(error))
    return False


def _tell_failure(error: BaseException, message: str) -> None:
    _flush()
    _channel.send("error", time=time.time(), kind=type(error).__name__, message=message, traceback=own_traceback(error))


def own_traceback(error: BaseException) -> str:
    """The traceback without the launcher's frames above the user's, in the error and in the ones that led to it."""
    def trim(part):
        while part.stack and _is_ours(part.stack[0].filename):
            part.stack.pop(0)
        for before in (part.__cause__, part.__context__):
            if before:
                trim(before)

    whole = traceback.TracebackException.from_exception(error)
    trim(whole)
    return "".join(whole.format())


def _is_ours(name: str) -> bool:
    launcher = (__file__, os.path.join(os.path.dirname(__file__), "processes"), "<frozen runpy")
    return name.startswith(launcher) or os.path.basename(name) == "boot.py"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # closed by the user's code
            pass


def process_group():
    """torch.distributed if its process group is up, else None."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist and dist.is_available() and dist.is_initialized() else None


def _leave_group() -> None:
    dist = process_group()
    if dist:
        try:
            dist.destroy_process_group()
        except (RuntimeError, ValueError):  # the work is done and the value sent: nothing is lost
            pass
