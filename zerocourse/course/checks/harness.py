"""A mistake is a mutant: how an answer is judged, and how the mistake in it is recognised.

An exercise has a reference with knobs. A known mistake is a setting of the knobs: with it the reference answers as
somebody does who makes that mistake. Reference, mutants and the learner's answer run in the same trials and leave
traces; an answer that leaves another trace than the reference is told the mistake that leaves its trace. Where several
do, the other trials decide. Where none does, it is told the first difference. Traces of the reference and of mutants
are kept between answers, and mutants run only when an answer is wrong.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from .catalogue import sentences
from .compare import difference
from .exercise import Exercise
from .lab import Lab
from .plain import Raised
from .trace import Trace, Trial, record, record_each
from .verdict import DIFFERENCE, OF_TYPE, RAISED, STUCK, NotDone, Wrong
from .words import CUT, ended, short_text, two_texts, value_text

MUTANT_SECONDS = 5.0  # for a trip of a mutant, which may hang as the mistake does; and for that of all pairs
_kept: dict[tuple, Trace] = {}  # by exercise, trial, and mutant
_pairs: dict[tuple, list] = {}  # by exercise and trial


@dataclass(frozen=True)
class When:
    """A mistake that is told by one thing seen, whatever else is: `When("bytes", operator.gt)`.

    judges(got, want) -> bool: is it this mistake? Asked where `what` is the first difference.
    suffices: the mutants of the mistake are but examples, which take long, and run in the tests only.
    """

    what: str
    judges: Callable = lambda got, want: True
    suffices: bool = False


@dataclass(frozen=True)
class Place:
    """Where traces differ: what, in which case, on which rank."""

    what: str
    case: int
    rank: int


def judge(lab: Lab) -> str:
    """What to say to a right answer. Raises Wrong with the code and the sentence of what is wrong.

    An answer of which only a type is wrong goes through all trials, because a later one may have more to say.
    """
    trials, of_type = list(_trials(lab.exercise)), None
    for number, trial in enumerate(trials):
        got, right = trace(lab, trial), _of_reference(lab.exercise, number)
        if right.ended:
            raise RuntimeError(f"the reference of {lab.exercise.id} ended with: {right.ended}")
        if got.ended:
            raise _why_it_ended(lab.exercise, number, got.ended)
        if first_difference(trial, got, right):
            wrong = _what_is_wrong(lab, number, got, right)
            if wrong.code != OF_TYPE:
                raise wrong
            of_type = of_type or wrong
    if of_type:
        raise of_type
    said, tells = lab.exercise.sentences["right"], lab.exercise.tells
    return f"{said} {tells(got.seen)}" if tells else said


def numbers(lab: Lab) -> dict[str, float]:
    """What an answer that has a verdict gets on the boards of its exercise, by name: nothing where it breaks a rule."""
    boards, trials = lab.exercise.board, _trials(lab.exercise)
    if not boards:
        return {}
    traces = [trace(lab, trial) for trial in trials]
    if any(each.ended for each in traces):
        return {}
    differs = {at[0] for number, trial in enumerate(trials) for right in [_of_reference(lab.exercise, number)]
               for at in _places(traces[number], right) if not trial.alike(at[0], traces[number].value(*at), right.value(*at))}
    found = {board.what: board.of([each.seen for each in traces]) for board in boards if differs <= {*board.goal}}
    return {what: number for what, number in found.items() if number is not None}


@functools.cache
def _trials(exercise: Exercise) -> tuple[Trial, ...]:
    return tuple(each for trial in exercise.trials for each in trial.by_world())


def calls(exercise: Exercise, before: int | None = None) -> list[tuple]:
    """The arguments of every plain call that the check makes, in the order of its trials; or of those in the trials before one."""
    return [case for trial in _trials(exercise)[:before] if trial.observe is None for case in trial.cases]


# Traces ---------------------------------------------------------------------------------------------------------------

def trace(lab: Lab, trial: Trial, seconds: float | None = None) -> Trace:
    """What the lab's answer leaves in a trial of one world. A blank raises NotDone, and the package's own Wrong."""
    if trial in lab.traces:
        return lab.traces[trial]
    name = lab.exercise.answers[0]
    texts = [trial.case_text(number, name) for number in range(len(trial.cases))]
    try:
        seen = lab.run(record, trial.observe, trial.cases, texts, world=trial.world, timeout=seconds or trial.seconds)
    except Wrong as error:
        return Trace([], error)
    if [len(of_rank) for of_rank in seen] != [len(trial.cases)] * trial.world:  # an empty trace is like any other
        return Trace([], Wrong("what came back from its processes is no record of these cases", "died"))
    lab.traces[trial] = Trace(seen)
    return lab.traces[trial]


def mutants(exercise: Exercise) -> Iterator[tuple[str, int, tuple]]:
    """(code, number among the ways to make that mistake, its answers) for each that can run, in the table's order."""
    for code, settings in exercise.mistakes.items():
        for number, setting in enumerate(settings):
            if isinstance(setting, dict):
                yield code, number, _answers(exercise, **setting)
            elif not isinstance(setting, When):
                yield code, number, (setting,) if len(exercise.answers) == 1 else setting()


def _answers(exercise: Exercise, **knobs) -> tuple:
    """The reference with its knobs set. The reference to several answers makes them, in a tuple."""
    if len(exercise.answers) > 1:
        return exercise.reference(**knobs)
    return (functools.partial(exercise.reference, **knobs) if knobs else exercise.reference,)


def _kept_trace(exercise: Exercise, number: int, mutant: tuple, answers: tuple) -> Trace:
    key = exercise, number, *mutant
    if key not in _kept:
        lab, seconds = Lab(exercise, answers, own_allowed=True), min(MUTANT_SECONDS, exercise.timeout)
        its_trace = trace(lab, _trials(exercise)[number], seconds if mutant else None)
        if its_trace.ended and its_trace.ended.code in (STUCK, "hung", "died"):
            return its_trace  # perhaps only because the machine was busy
        _kept[key] = its_trace
    return _kept[key]


def _of_reference(exercise: Exercise, number: int) -> Trace:
    return _kept_trace(exercise, number, (), _answers(exercise))


def _of_mutants(exercise: Exercise, number: int, among: set | None = None) -> Iterator[tuple[str, int, Trace]]:
    for code, form, answers in mutants(exercise):
        if code not in (STUCK, "hung") and (among is None or (code, form) in among):  # they say so themselves, slowly
            yield code, form, _kept_trace(exercise, number, (code, form), answers)


def _of_pairs(exercise: Exercise, number: int) -> list[tuple[tuple[str, str], Trace]]:
    """What two mistakes at once leave: a mutant with the knobs of both. On one rank, where the exercise asks for one function, and
    in one trip for all pairs; if that takes too long, there are none."""
    trial = _trials(exercise)[number]
    if trial.world > 1 or len(exercise.answers) > 1:
        return []
    if (exercise, number) not in _pairs:
        knobs = [(code, each) for code, settings in exercise.mistakes.items() for each in settings if isinstance(each, dict)]
        both = [((code, other), _answers(exercise, **one, **two)[0]) for (code, one), (other, two) in combinations(knobs, 2)
                if code != other and not one.keys() & two.keys()]
        lab = Lab(replace(exercise, answers=exercise.answers * len(both)), [fn for _, fn in both], own_allowed=True) if both else None
        try:
            seen = lab.run(record_each, trial.observe, trial.cases, [""] * len(trial.cases), timeout=MUTANT_SECONDS)[0] if lab else []
        except (Wrong, NotDone):
            seen = []
        _pairs[exercise, number] = [(codes, Trace([of_pair])) for (codes, _), of_pair in zip(both, seen, strict=False) if of_pair]
    return _pairs[exercise, number]


def first_difference(trial: Trial, got: Trace, right: Trace, alike: Callable | None = None) -> Place | None:
    """In the order of what is seen, then of cases, then of ranks.   alike: in place of the trial's."""
    return next((Place(what, case, rank) for what, case, rank in _places(got, right)
                 if not (alike or trial.alike)(what, got.value(what, case, rank), right.value(what, case, rank))), None)


def _places(*traces: Trace) -> list[tuple[str, int, int]]:
    """Every (what, case, rank) of which there is a record."""
    names = dict.fromkeys(name for each in reversed(traces) for name in each.names())
    ranks, cases = len(traces[0].seen), len(traces[0].seen[0])
    return [(what, case, rank) for what in names for case in range(cases) for rank in range(ranks)]


# Diagnosis ------------------------------------------------------------------------------------------------------------

def _what_is_wrong(lab: Lab, number: int, got: Trace, right: Trace) -> Wrong:
    """Where a trace differs, and why. Where no mistake explains it, types are left out of account: is there another difference,
    and a mistake that explains that one?"""
    trial, exercise = _trials(lab.exercise)[number], lab.exercise
    first = first_difference(trial, got, right)
    code, others = _mistake(lab, number, got, right, first, trial.alike)
    if code == DIFFERENCE:
        in_value = first_difference(trial, got, right, trial.alike_but_for_type)
        code, others = _mistake(lab, number, got, right, in_value, trial.alike_but_for_type) if in_value else (OF_TYPE, False)
        first = in_value or first
    why = _filled(exercise.sentences.get(code, ""), trial, got, right, first)
    said = _joined(_difference_text(exercise, number, got, right, first, asks=code == DIFFERENCE), why)
    return Wrong(_joined(said, sentences(_what_is_wrong)["another"]) if others else said, code)


def _mistake(lab: Lab, number: int, got: Trace, right: Trace, first: Place, alike: Callable) -> tuple[str, bool]:
    """The code of the mistake: that of the mutant whose trace is the answer's. And whether there is another mistake beside it, which only
    a pair proves.

    Where none is: of the first of two mistakes that together leave the answer's trace. Then of one mutant that is like the answer
    wherever that is wrong, that is recognised by what differs first, that is like the answer in all of it, at least where it is
    wrong, or at least there at most of these places.

    alike: the trial's way to compare, or the one that leaves out types.
    """
    exercise, places = lab.exercise, _places(got, right)
    wrong = {at for at in places if not alike(at[0], got.value(*at), right.value(*at))}
    of_first = {at for at in places if at[0] == first.what}
    levels = {0: set(places), 1: wrong, 3: of_first, 4: wrong & of_first}
    order, fits = list(exercise.mistakes), []
    compared = {(code, form) for code, form, _ in mutants(exercise)
                if not any(isinstance(each, When) and each.suffices for each in exercise.mistakes[code])}
    for code, form, mutant in _of_mutants(exercise, number, compared):
        like = set() if mutant.ended else \
            {at for at in places if alike(at[0], got.value(*at), mutant.value(*at), nan=True)}
        level = next((level for level, needed in levels.items() if needed <= like), None)
        if level is None and _is_mostly_like(like & of_first, wrong & of_first, of_first, first, got):
            level = 5
        if level is not None:
            fits.append((level, -len(like), order.index(code), form))
    fits += [(2, 0, order.index(code), 0) for code, settings in exercise.mistakes.items() for each in settings
             if isinstance(each, When) and _is_seen(each, got, right, first)]
    exact = [fit for fit in fits if fit[0] == 0]
    if not exact and (pair := _pair(exercise, number, got, first, alike, places)):
        return pair, True
    if not fits:
        value = got.value(first.what, first.case, first.rank)
        return RAISED if isinstance(value, Raised) else DIFFERENCE, False
    if len({fit[2] for fit in exact}) > 1:
        fits = _told_apart(lab, number, exact, order)
    return order[min(fits)[2]], False  # one that is only mostly like the answer does not prove that there is another


def _is_mostly_like(like: set, wrong: set, places: set, first: Place, got: Trace) -> bool:
    """Is a mutant like the answer where this is first wrong, at most of the places where it is, and at most of the others? Values
    that many mistakes have in common, None and True, say nothing."""
    telling = {at for at in like & wrong if not isinstance(got.value(*at), (bool, Raised, type(None)))}
    return (first.what, first.case, first.rank) in telling and len(telling) > len(wrong) / 2 \
        and len(like - wrong) >= len(places - wrong) / 2


def _pair(exercise: Exercise, number: int, got: Trace, first: Place, alike: Callable, places: list) -> str | None:
    """Of two mistakes that together leave this trace, the one that alone is like it where it first differs; None: there are no such two."""
    for codes, pair in _of_pairs(exercise, number):
        if all(alike(at[0], got.value(*at), pair.value(*at), nan=True) for at in places):
            at = first.what, first.case, first.rank
            alone = {code for code, _, mutant in _of_mutants(exercise, number) if not mutant.ended
                     and alike(at[0], got.value(*at), mutant.value(*at), nan=True)}
            return next((code for code in codes if code in alone), codes[0])
    return None


def _is_seen(mistake: When, got: Trace, right: Trace, first: Place) -> bool:
    at = first.what, first.case, first.rank
    return mistake.what == first.what and bool(mistake.judges(got.value(*at), right.value(*at)))


def _told_apart(lab: Lab, number: int, fits: list[tuple], order: list[str]) -> list[tuple]:
    """Of several mutants that are like the answer in a trial, those that are like it in the others as well: in those
    before, in which the answer was right, and then in those that come later."""
    for other, trial in enumerate(_trials(lab.exercise)):
        if other == number:
            continue
        got = _of_reference(lab.exercise, other) if other < number else trace(lab, trial)
        among = {(order[fit[2]], fit[3]) for fit in fits}
        left = {(code, form) for code, form, mutant in _of_mutants(lab.exercise, other, among)
                if _same_trace(trial, got, mutant)}
        fits = [fit for fit in fits if (order[fit[2]], fit[3]) in left] or fits
        if len({fit[2] for fit in fits}) == 1:
            break
    return fits


def _same_trace(trial: Trial, got: Trace, other: Trace) -> bool:
    if got.ended or other.ended:
        return _same_end(got.ended, other.ended)
    return all(trial.alike(at[0], got.value(*at), other.value(*at), nan=True) for at in _places(got, other))


def _same_end(one: Wrong | None, other: Wrong | None) -> bool:
    """Did two traces end alike? Exceptions of one class are alike, whatever they say."""
    return None not in (one, other) and (one.code, one.error) == (other.code, other.error) \
        and (bool(one.error) or str(one) == str(other))


def _why_it_ended(exercise: Exercise, number: int, how: Wrong) -> Wrong:
    """For an answer that did not come to its end in a trial: how, and what mistake ends like this."""
    code = None
    if how.code in (RAISED, DIFFERENCE):  # what hangs is not run again with other mistakes that may hang
        code = next((code for code, _, mutant in _of_mutants(exercise, number) if _same_end(how, mutant.ended)), None)
    elif how.code in exercise.mistakes:
        code = how.code
    return Wrong(_joined(str(how), exercise.sentences[code]), code) if code else how


# In words -------------------------------------------------------------------------------------------------------------

def _difference_text(exercise: Exercise, number: int, got: Trace, right: Trace, first: Place, asks: bool) -> str:
    trial, name, words = _trials(exercise)[number], exercise.answers[0], sentences(_difference_text)
    nothing = number == 0 and all(of_case.get(first.what) is None for of_rank in got.seen for of_case in of_rank)
    case, said = trial.case_text(first.case, name).rstrip(".。"), _said(trial, got, right, first, asks and nothing)
    repeated = trial.observe is None and CUT.search(case) is not None
    return words["cut case" if repeated else "case"].format(
        case=case, said=said, name=name, id=exercise.id, number=len(calls(exercise, number)) + first.case + 1) if case else said


def _said(trial: Trial, got: Trace, right: Trace, first: Place, asks: bool) -> str:
    """What differs, without the case in which it does.   asks: of what returned None, whether it ends without `return`."""
    came, wanted = (trace.value(first.what, first.case, first.rank) for trace in (got, right))
    says, verb = sentences(_said), None
    words = trial.words_for(first.what, says["seen"])
    if callable(words):
        if told := words(trial.cases[first.case], came, wanted):
            name, more = told
            return sentences(words)[name].format(**{"got": came, "want": wanted} | more)
    elif "{got}" in words or words.endswith((".", "。")):
        return _filled(words, trial, got, right, first)
    else:
        verb = words.format(what=first.what, rank=first.rank)
    if isinstance(came, Raised):
        name = "raised another" if isinstance(wanted, Raised) else "raised"
        return says[name].format(came=came, wanted=wanted)
    if isinstance(wanted, Raised):
        return says["not raised"].format(got=value_text(came), wanted=wanted)
    return difference(came, wanted, verb=verb, asks=asks, **trial.how(first.what))


def _joined(said: str, why: str) -> str:
    """What is wrong, and why: a sentence of its own, unless it goes on with a comma or in lower case."""
    if why.startswith((",", "，")):
        return said.rstrip(".。") + why
    if said.endswith("。"):  # after it Chinese has no space
        return said + why
    return f"{said.rstrip('.')}: {why}" if why[:1].islower() else f"{ended(said)} {why}".rstrip()


def _filled(sentence: str, trial: Trial, got: Trace, right: Trace, first: Place) -> str:
    """A sentence with its names in braces filled in (see `Trial.words`)."""
    at = first.what, first.case, first.rank
    everywhere = [short_text(got.value(first.what, first.case, rank)) for rank in range(trial.world)]
    more = {name: short_text(value) for name, value in got.seen[first.rank][first.case].items() if name.isidentifier()}
    one, other = two_texts(got.value(*at), right.value(*at))
    return sentence.format(**more, what=first.what, rank=first.rank, world=trial.world, got=one, want=other, all=", ".join(everywhere))
