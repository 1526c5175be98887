"""Plausible wrong answers to every exercise, one file a chapter, each with words that its verdict must hold.

A phrase names a mistake: answers with the same phrase are the same mistake written differently.
"""

import importlib
import pkgutil
from collections.abc import Callable

WRONG: dict[str, list[tuple[str, object]]] = {}  # id: (phrase, the answer, or a class that holds several)


def wrong(id: str, phrase: str) -> Callable:
    """Put the decorated answer into the bank. Where an exercise has several answers, decorate a class that has them
    under their names; those that it has not are the solution's."""
    def put(answer):
        WRONG.setdefault(id, []).append((phrase, answer))
        return answer
    return put


def bank() -> dict[str, list[tuple[str, object]]]:
    """All of them."""
    for info in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{info.name}")
    return WRONG
