"""What a rank of a launch tells its parent: records, progress, that it begins and is done, its own traceback when it fails.

Use in ranks: `from zerocourse.launch import report, progress`. Outside a launch both do nothing.
"""

import linecache
import os
import pickle
import sys
import time
import traceback
from dataclasses import asdict

from .processes.connection import Connection, flush_output, redirect_output
from .processes.position import is_launchers, raised_position

_connection = None  # to the parent, or None outside a launch
_next_progress = 0.0
_began = 0.0  # when the caller's code began


def report(**record) -> None:
    """Send a record to the caller: `report(step=3, loss=0.1)` appears in `Results.records` as `(rank, dict)`.

    Values travel as JSON: tensors and arrays become numbers or lists, anything unknown its `repr`.
    """
    if _connection:
        _connection.send("record", record=record)


def progress(step: int, total: int, **info) -> None:
    """Move the caller's progress bar to `step` of `total`, with `info` beside it. Only local rank 0's calls count.

    At most ten a second are sent, and always the last step.
    """
    global _next_progress
    now = time.monotonic()
    if _connection and _connection.local_rank == 0 and (now >= _next_progress or step >= total):
        _next_progress = now + 0.1
        _connection.send("progress", step=step, total=total, info=info)


def connect(spec: dict) -> Connection:
    """Begin to talk to the parent: what this process prints goes there, too."""
    global _connection
    _connection = Connection(spec, _forget_connection)
    redirect_output(spec)
    return _connection


def _forget_connection() -> None:
    global _connection
    _connection = None


def load_work(spec: dict) -> dict:
    """Set folder, import path and sources as the parent has them, and load the work that it wrote for its ranks."""
    with open(os.path.join(spec["folder"], "work"), "rb") as file:
        work = pickle.load(file)
    os.chdir(work["cwd"])
    sys.path[:] = work["import_path"]
    for name, lines in work["sources"].items():  # of code that is in no file, for tracebacks
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return work


def begin() -> None:
    """Tell the parent that the caller's code begins now. Until then the rank counts as starting."""
    global _began
    _began = time.monotonic()
    _connection.send("begun")


def done(spec: dict, value, **fields) -> None:
    """Write `value` for the parent, and tell it."""
    from .processes import payload

    if _connection is None:  # the caller's code forked, and this is the child: its parent answers
        os._exit(0)
    seconds = time.monotonic() - _began
    if value is not None:
        try:
            save = payload.save_json if spec.get("as_json") else payload.save
            save(value, os.path.join(spec["folder"], f"value{spec['rank']}"))
        except Exception as error:  # pickling runs the value's own code
            raise TypeError(f"the value that rank {spec['rank']} returned cannot be sent back: {error}") from None
    send_done(seconds=seconds, value=value is not None, **fields)


def send_done(**fields) -> None:
    flush_output()
    _connection.send("done", **({"ok": True, "seconds": time.monotonic() - _began} | fields))


def attempt(action, *args) -> bool:
    """Run a function. If it fails, send the rank's own traceback to the parent."""
    try:
        action(*args)
        return True
    except SystemExit as stop:
        if stop.code in (None, 0):
            send_done()
            return True
        message = f"exit status {stop.code}" if isinstance(stop.code, int) else text_of(stop.code)
        _send_failure(stop, message)
    except BaseException as error:
        _send_failure(error, text_of(error))
    return False


def text_of(value: object) -> str:
    """Its `str`, which runs the caller's code: that may raise too."""
    try:
        return str(value)
    except Exception as error:
        return f"(its __str__ raises {type(error).__name__})"


def _send_failure(error: BaseException, message: str) -> None:
    flush_output()
    _connection.send("error", time=time.time(), kind=type(error).__name__, message=message,
                     traceback=own_traceback(error), position=asdict(raised_position(error)))


def own_traceback(error: BaseException) -> str:
    """The traceback without the launcher's frames above the caller's, in the error and in the ones that led to it."""
    def trim(part):
        while part.stack and is_launchers(part.stack[0].filename):
            part.stack.pop(0)
        for before in (part.__cause__, part.__context__):
            if before:
                trim(before)

    whole = traceback.TracebackException.from_exception(error)
    trim(whole)
    return "".join(whole.format())


def process_group():
    """torch.distributed if its process group has been started, else None."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist and dist.is_available() and dist.is_initialized() else None
