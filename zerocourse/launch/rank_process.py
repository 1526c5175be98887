"""The process of a rank of a launch: it runs a function, a script or a module, or serves cells."""

import contextlib
import faulthandler
import multiprocessing
import os
import runpy
import signal
import sys

from .worker import attempt, begin, connect, done, load_work, process_group, send_done


def main(spec: dict) -> None:
    """Run as the rank that the environment names, and do what `spec["kind"]` says: serve, call, script or module."""
    spec |= {"rank": int(os.environ["RANK"]), "local_rank": int(os.environ["LOCAL_RANK"])}
    # Where multiprocessing, in the workers of a data loader too, keeps its sockets. It has no public setting for that, and
    # a folder of its own would stay behind when the processes are killed.
    multiprocessing.current_process()._config["tempdir"] = spec["folder"]
    connection = connect(spec)
    if hasattr(faulthandler, "register"):
        dump = open(os.path.join(spec["folder"], f"stack{spec['rank']}"), "w")
        faulthandler.register(signal.SIGUSR1, file=dump, all_threads=False)
    if spec["kind"] == "serve":
        from .processes.serving import serve
        serve(spec, connection)
        return
    ok = attempt(_TARGETS[spec["kind"]], spec)
    if not ok:
        os._exit(1)  # a normal exit would wait for threads that may be stuck in a collective
    if spec["kind"] == "call":
        _leave_group()
        os._exit(0)
    # A script ends as it would under torchrun alone: its threads and exit handlers run.


def _call(spec: dict) -> None:
    from .processes import payload

    if spec["init"]:
        from ..comm import bootstrap
        bootstrap.init()
    fn, args, kwargs = payload.unpack(load_work(spec)["call"])
    begin()
    done(spec, fn(*args, **kwargs))


def _script(spec: dict) -> None:
    sys.argv = [spec["target"], *spec["argv"]]
    sys.path.insert(0, os.path.dirname(spec["target"]))
    begin()
    runpy.run_path(spec["target"], run_name="__main__")
    send_done()


def _module(spec: dict) -> None:
    sys.argv = [spec["target"], *spec["argv"]]
    sys.path.insert(0, spec["cwd"])
    begin()
    runpy.run_module(spec["target"], run_name="__main__", alter_sys=True)
    send_done()


_TARGETS = {"call": _call, "script": _script, "module": _module}


def _leave_group() -> None:
    dist = process_group()
    if dist:
        with contextlib.suppress(RuntimeError, ValueError):  # the work is done and the value sent: nothing is lost
            dist.destroy_process_group()
