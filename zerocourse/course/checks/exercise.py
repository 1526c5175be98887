"""What an exercise is, and where the check of each is found: a chapter's are in `chapters/TOPIC/checks/`.

An exercise is in a chapter's set ("5.1"), or a cell of the chapter itself, in which its core is written ("05.w1").
"""

import functools
import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ...errors import BadInput
from .. import chapters
from .board import Board
from .catalogue import sentences, unfilled
from .trace import Trial
from .verdict import DIFFERENCE, RAISED

FORMULAS = tuple(f"zerocourse.formulas.{name}:*"
                 for name in ("states", "volumes", "transformer", "activations", "peak", "estimators"))
_registered: dict[str, "Exercise"] = {}


@dataclass(frozen=True, eq=False)
class Exercise:
    """One exercise and its check.

    id: "5.1", the first of chapter 5's set, or "05.w1", the first that is written in the chapter.
    answers: the names that the learner defines, in the order that `check` gets them.
    minutes: for somebody who has read the chapter.   difficulty: 1 to 3.
    reference: right by default, its knobs make the mistakes; where there are several answers it returns them.
    trials: what the answer is put through, in this order.
    mistakes: {code: settings}, the most likely first. A setting is one way to make the mistake: a dictionary of knobs,
        a function that answers like this, or a `When` (see `harness`). The codes "stuck" and "hung" are for ranks that
        disagree and for what takes too long; their mutants run in the tests only.
    tells(seen) -> str: what follows the sentence for a right answer; `seen[rank][case]` is what the last trial saw.
    shared: a function whose sentences several exercises have, besides those of their references.
    own: the package's implementation of each answer, where it has one; () where it has none.
    replaces: what of the package must not be called while an answer runs: "zerocourse.formulas.states:model_states",
        "zerocourse.comm.group:Comm.all_gather", or "zerocourse.formulas.states:*" for all functions of a module. `own`
        always is.
    sample(random) -> args: random arguments, on which the tests compare the solution with `own`.
    timeout: seconds for each trip to the ranks.
    board: the numbers that it asks to beat, where it does.
    """

    id: str
    title: str
    minutes: int
    difficulty: int
    answers: tuple[str, ...]
    own: tuple[Callable, ...] = ()
    replaces: tuple[str, ...] = ()
    sample: Callable | None = None
    timeout: float = 20
    reference: Callable | None = None
    trials: tuple[Trial, ...] = ()
    mistakes: dict[str, tuple] = field(default_factory=dict)
    tells: Callable | None = None
    shared: Callable | None = None
    board: tuple[Board, ...] = ()

    @property
    def sentences(self) -> dict[str, str]:
        """What to say to each mistake, and to an answer that is "right". It may have names in braces (see
        `Trial.words`); it goes on from the difference where it begins with a comma or in lower case."""
        return (sentences(self.shared) if self.shared else {}) | sentences(self.reference)

    @property
    def stars(self) -> str:
        return "●" * self.difficulty + "○" * (3 - self.difficulty)

    @property
    def points(self) -> int:
        """What it is worth to nbgrader and in a class's table."""
        return self.difficulty

    @property
    def chapter(self) -> int:
        return int(self.id.partition(".")[0])

    @property
    def is_in_chapter(self) -> bool:
        """Is it a cell of the chapter, and none of its set?"""
        return ".w" in self.id


def exercise(id: str, title: str, *, minutes: int, difficulty: int, mistakes: dict, answer: str | tuple[str, ...] = (), own=(),
             cases: Iterable[tuple] = (), trials: Iterable[Trial] = (), **more):
    """Make the decorated function the reference of a new exercise.

    The catalogue has a sentence for each of its mistakes and one for "right" (see `catalogue`).
    answer: where it has another name than the reference, or a tuple where there are several.   own: of the answer, or a
    tuple.   cases: short for a first trial that calls the answer with each.   more: of `Exercise`.
    mistakes: {code: setting, or a tuple of several}.
    """
    def register(fn: Callable) -> Callable:
        asked = Exercise(
            id, title, minutes, difficulty, (answer,) if isinstance(answer, str) else answer or (fn.__name__,),
            own if isinstance(own, tuple) else (own,), reference=fn, trials=(*([Trial(list(cases))] if cases else []), *trials),
            mistakes={code: each if isinstance(each, tuple) else (each,) for code, each in mistakes.items()}, **more)
        if wrong := next(_faults(asked), None):
            raise ValueError(f"{id}: {wrong}")
        _registered[id] = asked
        return fn
    return register


def _faults(asked: Exercise) -> Iterator[str]:
    """What is wrong with its mistakes and their sentences."""
    name, said = asked.reference.__name__, asked.sentences.keys()
    if taken := asked.mistakes.keys() & {DIFFERENCE, RAISED}:
        yield f"{sorted(taken)} is a code of the harness itself: give the mistake another"
    if silent := {*asked.mistakes, "right"} - said:
        yield f"the catalogue has no sentence of {name} for {sorted(silent)}"
    if unknown := said - {*asked.mistakes, "right"}:
        yield f"the catalogue has sentences of {name} for {sorted(unknown)}, which is no mistake of it"
    observers = [fn for trial in asked.trials for fn in (trial.observe, trial.words) if callable(fn)]
    for fn in filter(None, (asked.reference, asked.shared, *observers)):
        for name, code in unfilled(fn, observers).items():
            yield f"nothing fills in {{{name}}} in what is said of {fn.__name__} for {code!r}"


@functools.cache
def _load(chapter: int) -> None:
    importlib.import_module(f"{chapters.__name__}.{chapters.TOPICS[chapter]}.checks")


def exercises(chapter: int | None = None) -> dict[str, Exercise]:
    """All exercises of the sets, or of a chapter's, by id in order."""
    return {id: each for id, each in _known(chapter).items() if not each.is_in_chapter}


def written_cells(chapter: int | None = None) -> dict[str, Exercise]:
    """All cells of chapters in which their core is written, or a chapter's, by id in order."""
    return {id: each for id, each in _known(chapter).items() if each.is_in_chapter}


def _known(chapter: int | None) -> dict[str, Exercise]:
    for number in chapters.with_exercises() if chapter is None else [chapter]:
        _load(number)
    order = sorted(_registered, key=lambda id: (".w" in id, *map(int, re.findall(r"\d+", id))))
    return {id: _registered[id] for id in order if chapter in (None, _registered[id].chapter)}


def find(id: str) -> Exercise:
    """The exercise of that id. Raises BadInput that says what there is."""
    number = str(id).partition(".")[0]
    chapter = int(number) if number.isdecimal() and int(number) in chapters.with_exercises() else None
    known = _known(chapter)
    if str(id) not in known:
        raise BadInput(f"there is no exercise {str(id)!r}: there are {', '.join(known)}")
    return known[str(id)]
