"""The checks of the course's exercises: the same for a notebook, the command line and the tests.

`check("1.1", fn)` runs an answer in processes of its own and returns a verdict, which shows itself. Here is also what the
check of an exercise is made of: `exercise`, `Trial`, `When` and `Wrong`.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...errors import BadInput, ZeroCourseError
from ..learner.hints import due, recorded_tries
from ..learner.record import answer_hash
from ..learner.remembered.verdicts import NO_ANSWER, cell_sources, remember_verdict, remembered
from . import harness
from .board import Board
from .catalogue import language, sentences
from .exercise import FORMULAS, Exercise, exercise, exercises, find, written_cells
from .harness import When
from .lab import Lab
from .trace import Trial
from .verdict import DIFFERENCE, FAILED, MISUSED, NOT_DONE, OF_TYPE, PASSED, STUCK, NotDone, Progress, Verdict, Wrong

__all__ = ["FORMULAS", "MISUSED", "STUCK", "Board", "Exercise", "Trial", "Verdict", "When", "Wrong", "case", "check", "exercise",
           "exercises", "ours", "progress", "written_cells", "yours_or_ours"]

_last: dict[str, Verdict] = {}  # of this session, for `progress`
_tries: dict[str, set[str]] = {}  # of this session: the answers that did not pass, by their hashes
_passed: dict[str, tuple[tuple, Verdict]] = {}  # the last answer that passed, as it was sent: not run twice


def check(id: str, *answers, timeout: float | None = None, own_allowed: bool = False) -> Verdict:
    """Check an answer to exercise `id`. Never raises; only an interrupt (Ctrl-C) goes through. In a learner's folder the
    verdict is remembered (`zerocourse progress`). After three different answers that did not pass it offers the first hint, after
    three more the next.

    This is feedback and no grade: it is made in the caller's process, where a cell can change whatever it likes. Grades
    come from `zerocourse check`.

    answers: the function, or the several that the exercise asks for.   timeout: seconds for each trip to the ranks.
    own_allowed: the package's own implementation may be called; the tests use this to check it.
    """
    verdict = _verdict(str(id), answers, timeout, own_allowed)
    _last[verdict.id] = verdict
    if verdict.code not in NO_ANSWER and not own_allowed:
        sources = cell_sources(answers)
        remember_verdict(verdict, find(verdict.id).points, sources)
        verdict = replace(verdict, hints=due(verdict.id, _tries_after(verdict, answer_hash(sources))))
    return verdict


def _tries_after(verdict: Verdict, answer: str) -> int:
    """How many different answers to the exercise have not passed since one last did, in this session or by the record."""
    if verdict.passed:
        _tries.pop(verdict.id, None)
        return 0
    if verdict.status == NOT_DONE:
        return 0
    tried = _tries.setdefault(verdict.id, set())
    tried.add(answer)
    return max(len(tried), recorded_tries(verdict.id))


def case(id: str, number: int) -> tuple:
    """The arguments of a call that the check of an exercise makes, 1 being its first: `read_log(*case("12.1", 3))`.

    Raises BadInput where there is no such call.
    """
    found = harness.calls(find(str(id)))
    if not 1 <= number <= len(found):
        raise BadInput(f"the check of {id} makes {len(found)} plain calls: there is no call {number}")
    return copy.deepcopy(found[number - 1])


def progress(chapter: int) -> Progress:
    """How far the learner is with the exercises of a chapter: in this session, and before it by the record of their folder."""
    before = {id: Verdict(id, PASSED if each.passed else FAILED, "in an earlier session", code=each.code) for id, each in remembered().items()}
    return Progress({id: asked.title for id, asked in exercises(chapter).items()}, before | _last)


def yours_or_ours(id: str, *answers: Callable) -> Callable | tuple[Callable, ...]:
    """What a chapter goes on with: the learner's `answers`, if they have passed `check(id, ...)` as they are now, else ours.

    It stands behind the check, `turns = yours_or_ours("04.w1", turn_the_ring)`, and shows which of the two it is.
    Returns a function, or several where the cell asks for several. Raises BadInput for an id that is not there.
    """
    from .. import show  # it loads what draws, which a check does not need

    asked, how = find(id), _standing(id, answers)
    show.put(show.says(sentences(yours_or_ours)[how], names=" and ".join(f"`{name}`" for name in asked.answers)))
    chosen = answers if how == PASSED else asked.own
    return chosen[0] if len(chosen) == 1 else chosen


def ours(id: str):
    """Our version of what a chapter asks for: its source, folded until an answer has passed. Returns a `show.Shown`.

    It stands in a cell of its own behind the check, so that no source of a learner's notebook has it.
    """
    from .. import show

    return show.source(*find(id).own, folded="" if id in _passed else sentences(ours)["folded"])


def _standing(id: str, answers: tuple) -> str:
    """How these answers stand, without running them: "passed", as they are now; else the status of the last check; or "not
    checked", where nobody has checked them, or they, or what they use, have changed since they passed."""
    try:
        sent = Lab(find(id), answers).sent
    except ZeroCourseError:  # they cannot be sent to ranks
        sent = None
    if sent and (sent, language()) == _passed.get(id, (None, None))[0]:
        return PASSED
    last = _last.get(id)
    return last.status if last and not last.passed else "not checked"


def _verdict(id: str, answers: tuple, timeout: float | None, own_allowed: bool) -> Verdict:
    try:
        asked = find(id)
        if len(answers) != len(asked.answers) or not all(map(callable, answers)):
            return Verdict(id, FAILED, usage_text(id, asked.answers, answers), code="usage")
        lab = Lab(asked, answers, timeout, own_allowed)
    except (ZeroCourseError, ImportError) as error:
        return Verdict(id, FAILED, str(error), code="usage")
    asked_for, (before, known) = (lab.sent, language()), _passed.get(id, (None, None))
    if asked_for == before and not own_allowed:
        return known
    verdict = judge(lab)
    if verdict.passed and not own_allowed:
        _passed[id] = asked_for, verdict
    return verdict


def usage_text(id: str, names: Sequence[str], answers: Sequence) -> str:
    """What to say where the answers are not the functions that these names should have."""
    given = ", ".join(type(answer).__name__ for answer in answers) or "nothing"
    return (f"call it as `check(\"{id}\", {', '.join(names)})`: it needs "
            f"{'a function' if len(names) == 1 else 'functions'}, and was given {given}")


def judge(lab: Lab) -> Verdict:
    """Run the check of the lab's exercise; whatever happens becomes a verdict."""
    try:
        return _judged(lab)
    except Exception as error:
        sentence = f"the check itself failed, not your answer: {type(error).__name__}: {error}"
        return Verdict(lab.exercise.id, FAILED, sentence, lab.printed, "broken")
    finally:
        lab.tidy()


def _judged(lab: Lab) -> Verdict:
    id = lab.exercise.id
    try:
        return Verdict(id, PASSED, harness.judge(lab), lab.printed, numbers=harness.numbers(lab))
    except NotDone as blank:
        return Verdict(id, NOT_DONE, str(blank), lab.printed, NOT_DONE)
    except (Wrong, BadInput) as error:  # BadInput: something cannot be sent to the ranks
        code = getattr(error, "code", "usage")
        came_to_its_end = code in (DIFFERENCE, OF_TYPE, *lab.exercise.mistakes)
        return Verdict(id, FAILED, str(error), lab.printed, code, harness.numbers(lab) if came_to_its_end else {})
