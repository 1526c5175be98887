"""What an answer leaves behind: a trial puts cases to it, on one rank or several, and records what can be seen of it.

The right answer, the learner's and every known mistake leave their traces in the same way, so they can be compared.
"""

import copy
import fnmatch
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch.distributed as dist

from ...comm.torch_private import default_store
from .catalogue import sentences
from .compare import CLOSE, same, same_but_for_type
from .inside import NO_TRAVELLER, Answer, waits_for_input
from .plain import Raised, can_travel
from .verdict import RAISED, Wrong
from .words import a, blank_of, call_text, line_text, message_text

MISSING = "nothing was recorded"
_trips = itertools.count()  # of this rank; the same number on every rank of a world, as they start and end together


@dataclass(frozen=True, eq=False)
class Trial:
    """Cases, and how they are put to an answer.

    cases: tuples of arguments; or a function of the world size that makes them.
    observe(answer, *case) -> dict: runs on every rank, finds torch.distributed initialised and the seed of torch 0, and
        returns what is seen (numbers, tensors, lists, dictionaries) by name, in the order in which one wants to hear of
        differences; names that begin with _ are for the words only. It may raise Wrong, or what the answer raises.
        None: the answer is a function, and is called with each case.
    worlds: numbers of ranks; all cases are put in each world.
    close: how near values must be, relative where they are larger than 1; or a number for each name of what is seen.
    seconds: for one trip to the ranks; None: the exercise's.
    words: how to speak of what is seen, by name or pattern ("buffer *"), or a function whose sentences do; those of
        `observe` come after them (see `catalogue`). Either the beginning of a sentence, "rank {rank} holds", to which
        the difference is added; or a whole one, which ends in a full stop or has {got}, and may have {want}, {all} (what
        each rank has), {what} and all that is seen; or a function (case, got, want) -> (the name of one of its
        sentences, what to fill in besides got and want), or None. The name "case" is for the case itself,
        "{0} gradients on {world} ranks", where {0} is its first entry.
    """

    cases: Sequence[tuple] | Callable[[int], Sequence[tuple]] = ((),)
    observe: Callable | None = None
    worlds: tuple[int, ...] = (1,)
    close: float | dict[str, float] | None = None
    seconds: float | None = None
    words: dict[str, str | Callable] | Callable = field(default_factory=dict)

    def by_world(self) -> Iterator["Trial"]:
        """The same for each world alone, its cases a list."""
        for world in self.worlds:
            yield replace(self, worlds=(world,), cases=list(self.cases(world) if callable(self.cases) else self.cases))

    @property
    def world(self) -> int:
        return self.worlds[0]

    def case_text(self, number: int, name: str) -> str:
        """A case in words; name: that of the answer."""
        case = self.cases[number]
        if self.observe is None:
            return f"`{call_text(name, case)}`"
        return self.words_for("case", "").format(*case, world=self.world)

    def words_for(self, what: str, otherwise: str) -> str | Callable:
        """How to speak of what is seen."""
        own = sentences(self.words) if callable(self.words) else self.words
        tables = own, sentences(self.observe or call), sentences(call)
        return next((words[name] for words in tables for name in words if fnmatch.fnmatchcase(what, name)), otherwise)

    def alike(self, what: str, got, want, *, nan: bool = False) -> bool:
        """Are two values of what is seen the same? nan: NaN is like NaN."""
        if got is MISSING or want is MISSING:
            return got is want
        return same(got, want, nan=nan, **self.how(what))

    def alike_but_for_type(self, what: str, got, want, *, nan: bool = False) -> bool:
        """Are they the same, or would they be if they were of one type?"""
        return self.alike(what, got, want, nan=nan) or got is not MISSING and want is not MISSING \
            and same_but_for_type(got, want, **self.how(what))

    def how(self, what: str) -> dict:
        """How `compare` looks at what is seen."""
        close = self.close.get(what) if isinstance(self.close, dict) else self.close
        return {"exact": what == "exactly", "close": close or CLOSE, "tolerance": close or 1e-5}


@dataclass(frozen=True)
class Trace:
    """What was seen in a trial: `seen[rank][case]` by name; or how it `ended` before that, on whatever rank."""

    seen: list[list[dict]]
    ended: Wrong | None = None

    def names(self) -> list[str]:
        return list(dict.fromkeys(name for of_rank in self.seen for each in of_rank for name in each if name[0] != "_"))

    def value(self, what: str, case: int, rank: int):
        return self.seen[rank][case].get(what, MISSING)


def record(*args) -> list[dict]:
    """On a rank: what is seen of the answers in each case. args: the answers, the observer, the cases, their words."""
    *answers, observe, cases, texts = args
    seen, trip = [], next(_trips)
    for number, (case, text) in enumerate(zip(cases, texts, strict=True)):
        try:
            seen.append(observe(*answers, *case) if observe else call(*answers, *case))
        except BaseException as error:
            if text:
                error.add_note(text)
            raise
        _meet(f"trip {trip}, case {number}")
    return seen


def record_each(*args) -> list[list[dict] | None]:
    """On a world's only rank: what `record` sees of each of several answers by itself; None where it cannot be recorded."""
    *answers, observe, cases, texts = args
    seen = []
    for answer in answers:
        try:
            seen.append(record(answer, observe, cases, texts))
        except Exception:
            answer.error, answer.misfit = None, ""
            seen.append(None)
    return seen


def _meet(where: str) -> None:
    """Wait for the other ranks, so that none is in the next case while another is stuck in this one. It takes no
    collective, which might be paired with one of the answer's."""
    world_size, store = dist.get_world_size(), default_store()
    came = store.add(where, 1) if world_size > 1 else 1
    while came < world_size:
        time.sleep(0.0005)
        came = store.add(where, 0)


def call(answer: Answer, *case) -> dict:
    """What the answer returns, or raises, for a case. Cases share arguments, so each call gets copies."""
    given = tuple(map(copy.deepcopy, case))  # one by one: of a list that comes twice, two
    try:
        value = answer(*given)
    except Exception as error:
        if answer.misfit or isinstance(error, MemoryError) or waits_for_input(error) or blank_of(error):
            raise  # each has a sentence of its own
        kind = next(each.__name__ for each in type(error).__mro__ if each.__module__ == "builtins")  # one of a class of its own is one
        answer.error, value = None, Raised(kind, message_text(error) + line_text(error), type(error).__name__)
    if not can_travel(value):
        raise Wrong(f"it {NO_TRAVELLER.format(a(value))}", RAISED)
    return {"returned": value, "exactly": value, "changed": not same(given, case, nan=True)}
