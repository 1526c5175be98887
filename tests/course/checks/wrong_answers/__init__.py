"""Wrong answers to every exercise, written by hand, one file a chapter, each with the code that its verdict must have.

Mutants are wrong answers already, so one or two an exercise are enough: they are written as a learner would, and guard
the harness. For an exercise whose check is of the old kind, with a phrase of the verdict instead of the code: it names
a mistake, and answers with the same phrase are the same mistake written differently.
"""

import importlib
import pkgutil
from collections.abc import Callable

WRONG: dict[str, list[tuple[str, object]]] = {}  # id: (code, the answer, or a class that holds several)


def wrong(id: str, code: str) -> Callable:
    """Put the decorated answer into the bank. Where an exercise has several answers, decorate a class that has them
    under their names; those that it has not are the solution's."""
    def put(answer):
        WRONG.setdefault(id, []).append((code, answer))
        return answer
    return put


def bank() -> dict[str, list[tuple[str, object]]]:
    """All of them."""
    for info in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{info.name}")
    return WRONG
