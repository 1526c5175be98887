"""Notices an answer that calls the package's own implementation, by making that implementation raise meanwhile."""

import functools
import importlib
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager

sprung: list[str] = []  # the replaced functions that were called in this process


class Delegated(BaseException):
    """The answer called the package's own implementation. No `except Exception` of the learner's catches it."""


class Guard:
    """The package's functions that an answer may not call. Their code is replaced, not their names, so that whoever
    has imported them, under whatever name, meets the trap."""

    def __init__(self, specs, own=()):
        forbidden = [fn for spec in specs for fn in functions(spec)] + [fn for value in own for fn in _plain(value)]
        self.code = {fn: fn.__code__ for fn in forbidden}
        self.traps = {fn: _trap(fn) for fn in forbidden}
        self.depth = 0

    @contextmanager
    def on(self) -> Iterator[None]:
        """Inside, calling one of them raises Delegated."""
        if self.depth == 0:
            self._set(self.traps)
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
            if self.depth == 0:
                self._set(self.code)

    @staticmethod
    def _set(code: dict[types.FunctionType, types.CodeType]) -> None:
        for fn, its in code.items():
            fn.__code__ = its


def spring(name: str) -> None:
    """What a replaced function does."""
    sprung.append(name)
    raise Delegated(name)


def _trap(fn: types.FunctionType) -> types.CodeType:
    """Code that calls `spring`, with as many free variables as the function's own, so that it can take its place."""
    name = f"{fn.__module__}.{fn.__qualname__}"
    space: dict = {}
    exec(f"def trap(*args, **kwargs): __import__({__name__!r}, fromlist=['spring']).spring({name!r})", space)
    return space["trap"].__code__.replace(co_freevars=fn.__code__.co_freevars)


def functions(spec: str) -> Iterator[types.FunctionType]:
    """The plain functions behind "module:name", "module:Class.method", "module:Class.*" or "module:*" (all that are in no class)."""
    module, _, path = spec.partition(":")
    *classes, name = path.split(".")
    owner = functools.reduce(getattr, classes, importlib.import_module(module))
    for value in vars(owner).values() if name == "*" else [getattr(owner, name)]:
        if name != "*" or getattr(value, "__module__", None) == module and not isinstance(value, type):
            yield from _plain(value)


def _plain(value: Callable) -> Iterator[types.FunctionType]:
    value = inspect.unwrap(getattr(value, "__func__", value)) if callable(value) else value
    if isinstance(value, types.FunctionType):
        yield value
