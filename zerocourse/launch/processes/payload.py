"""Sends functions to ranks and values back, with cloudpickle, and by value where the code is the caller's own.

Code outside any installed package (a notebook cell, a script, a test) travels by value, so that ranks that are
kept alive always run the version the caller sees. The text of notebook cells goes along for tracebacks.
"""

import contextlib
import io
import json
import linecache
import os
import pickle
import sys
import sysconfig
import threading

import cloudpickle

from ...errors import BadInput

_registry = threading.Lock()
PACKAGE = __name__.partition(".")[0]
LONGEST_JSON = 256 * 2**20  # bytes of a value that is read as JSON


def pack(fn, args=(), kwargs=None) -> bytes:
    """Pickle a call. Raises BadInput, in one sentence that names the object that cannot be sent."""
    kwargs = kwargs or {}
    modules = {m for value in (fn, *args, *kwargs.values()) if (m := _own_module(value))}
    with _by_value(modules):
        try:
            return _dumped(_Caller, (fn, args, kwargs))
        except Exception as error:  # pickling runs the objects' own code, which may raise anything
            culprit = _culprit(fn, args, kwargs, set()) or error
    raise BadInput(f"{_name(fn)} cannot be sent to the ranks: {culprit}; create it inside the function, or pass what "
                   "it is made from")


@contextlib.contextmanager
def _by_value(modules):
    """Inside the block, pickles contain the code of `modules`."""
    with _registry:  # cloudpickle has one list of modules for the whole process
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


def unpack(blob: bytes):
    """The inverse of `pack`: `(fn, args, kwargs)`."""
    return pickle.loads(blob)


def cell_sources() -> dict[str, list[str]]:
    """Lines of code that is in no file (notebook cells), by the name that tracebacks give it."""
    entries = linecache.cache.items()
    return {name: list(entry[2]) for name, entry in list(entries) if len(entry) == 4 and not os.path.exists(name)}


def _is_on_accelerator(obj) -> bool:
    torch = sys.modules.get("torch")
    return bool(torch) and isinstance(obj, torch.Tensor) and obj.device.type not in ("cpu", "meta")


class _Sender(cloudpickle.Pickler):
    """Pickles a rank's value; accelerator tensors go as CPU tensors, since the caller may have no such device."""

    def reducer_override(self, obj):
        if _is_on_accelerator(obj):
            return obj.detach().cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(obj)


class _Caller(cloudpickle.Pickler):
    """Pickles a call; accelerator tensors arrive on each rank's own device. With the caller's device in them, as torch pickles
    them, every rank would open a context on that one GPU."""

    def reducer_override(self, obj):
        if _is_on_accelerator(obj) and type(obj) is sys.modules["torch"].Tensor:  # of a Parameter it is `data` that comes by here
            return _on_own_device, (obj.detach().cpu(), obj.requires_grad)
        return super().reducer_override(obj)


def _on_own_device(values, requires_grad: bool):
    """A tensor of a call, on the rank."""
    from ...comm import bootstrap
    return values.to(bootstrap.device()).requires_grad_(requires_grad)


def _dumped(pickler: type[cloudpickle.Pickler], value) -> bytes:
    with io.BytesIO() as file:
        pickler(file).dump(value)
        return file.getvalue()


def save(value, path: str) -> None:
    """Write a rank's value, of any size, for `load`."""
    with open(path, "wb") as file:
        _Sender(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)


def load(path: str):
    """Read what `save` wrote."""
    with open(path, "rb") as file:
        return pickle.load(file)


def save_json(value, path: str) -> None:
    """Write a rank's value of numbers, strings, lists and dictionaries, for `load_json`."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)


def load_json(path: str):
    """Read what `save_json` should have written. Raises BadInput for anything else: unlike a pickle it runs nothing."""
    try:
        if os.path.getsize(path) > LONGEST_JSON:
            raise ValueError(f"it has more than {LONGEST_JSON >> 20} MiB")
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"what a rank returned cannot be read: {error}") from None


def _own_module(value):
    """The module of a function, if its file is in no installed package and not in this one."""
    value = getattr(value, "func", value)  # functools.partial
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if not callable(value) or not file or module.__name__ == "__main__" or module.__name__.startswith(PACKAGE + "."):
        return None
    installed = [sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    return None if os.path.abspath(file).startswith(tuple(p + os.sep for p in installed)) else module


def _name(fn) -> str:
    return getattr(fn, "__name__", None) or type(fn).__name__


def _sendable(value) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True


def _names(code) -> set[str]:
    """Every global name that a function, or a function inside it, mentions."""
    return set(code.co_names).union(*(_names(c) for c in code.co_consts if hasattr(c, "co_names")))


def _culprit(fn, args, kwargs, seen: set) -> str | None:
    """A phrase for the first argument, closure variable or global of `fn` that cannot be pickled."""
    fn = getattr(fn, "func", fn)
    parts = [(f"argument {i}", value) for i, value in enumerate(args)]
    parts += [(f"the argument {name!r}", value) for name, value in kwargs.items()]
    code = getattr(fn, "__code__", None)
    if code and id(fn) not in seen:
        seen.add(id(fn))
        cells = zip(code.co_freevars, fn.__closure__ or (), strict=True)
        parts += [(f"the outer variable {name!r}", cell.cell_contents) for name, cell in cells]
        mentioned = sorted(_names(code) & fn.__globals__.keys())
        parts += [(f"the global {name!r}", fn.__globals__[name]) for name in mentioned]
    for phrase, value in parts:
        if not _sendable(value):
            deeper = _culprit(value, (), {}, seen) if hasattr(value, "__code__") else None
            return deeper or f"{phrase} (a {type(value).__module__}.{type(value).__qualname__}) cannot be pickled"
    return None
