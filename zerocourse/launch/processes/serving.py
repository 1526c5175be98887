"""What a rank that is kept alive does: answer requests one after another, with the process group up.

For a function the rank is as if new. A cell sees the variables of the cells before it.
"""

import ast
import gc
import os
import queue
import sys
import types

from ..worker import attempt, begin, done, load_work, process_group, progress, report, send_done
from . import payload
from .connection import end_session

NEW_SEED = 67280421310721  # the seed of torch in a new process
PROGRESS = f"{__name__.partition('.')[0]}.comm.waits.progress"  # the module that counts calls


def serve(spec: dict, connection) -> None:
    """Answer requests one after another, with the process group up and variables of cells kept.

    After `spec["idle"]` seconds without a request the rank ends, unless it has run a cell, whose variables it holds.
    """
    main_module = sys.modules["__main__"] = types.ModuleType("__main__")
    if not attempt(_prepare, spec, vars(main_module)):
        os._exit(1)
    connection.send("ready")
    idle = spec["idle"]
    while True:
        try:
            request = connection.requests.get(timeout=idle)
        except queue.Empty:
            end_session()
        if not attempt(_answer, spec, request, vars(main_module)):
            send_done(ok=False, calls=_collective_calls())
        if request["kind"] == "call":
            _forget()
        else:
            idle = None


def _prepare(spec: dict, namespace: dict) -> None:
    if spec["init"]:
        import torch

        from ...comm import bootstrap
        bootstrap.init()
        namespace |= {"torch": torch, "dist": torch.distributed, "world_size": torch.distributed.get_world_size()}
    namespace |= {"rank": spec["rank"], "report": report, "progress": progress}


def _answer(spec: dict, request: dict, namespace: dict) -> None:
    work = load_work(spec)
    if request["kind"] == "call":
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(NEW_SEED)
        fn, args, kwargs = payload.unpack(work["call"])
        begin()
        done(spec, fn(*args, **kwargs), calls=_collective_calls())
    else:
        begin()
        value = _execute(work["code"], work["name"], namespace)
        try:
            done(spec, value, calls=_collective_calls())
        except TypeError:  # it was printed, and that it cannot be sent is not an error of the cell
            done(spec, None, calls=_collective_calls())


def _execute(code: str, name: str, namespace: dict):
    """Run a cell; the value of a last line that is an expression is printed and returned, as a notebook does."""
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)
    value = eval(compile(ast.Expression(last.value), name, "eval"), namespace) if last else None
    if value is not None:
        print(repr(value))
    return value


def _collective_calls() -> int | None:
    """How many collectives this rank has issued on the default group, -1 if its backend does not count, None if there
    is no group. Ranks whose counts differ are out of step. Messages between two ranks do not count: of these a rank in
    the middle of a pipeline has more."""
    dist = process_group()
    try:
        if not dist:
            return None
        counted = sys.modules.get(PROGRESS)  # not imported here: a rank may not need torch at all
        return counted.calls_of(dist.group.WORLD) if counted else dist.group.WORLD._get_sequence_number_for_group()
    except RuntimeError:
        return -1


def _forget() -> None:
    """Free what a function left behind, so that for the next function the rank is as if new."""
    torch, dist = sys.modules.get("torch"), process_group()
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # of `redirect_output`
    if torch:
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)
    if dist:
        from ...comm.torch_private import worlds

        world = dist.group.WORLD
        for group in list(worlds.pg_map):
            if group is not world:
                dist.destroy_process_group(group)
    gc.collect()
    if torch and torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # ranks of other pools share the GPU
