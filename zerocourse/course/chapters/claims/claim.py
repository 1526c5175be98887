"""A claim that circulates, the evidence for and against it, and the judgement that follows from the evidence by code.

A claim has two functions. `evidence` measures or computes, and returns numbers by name. `holds` looks at these numbers and
at nothing else, and says in which cases the claim holds, so a judgement changes when the numbers do. What is said of it
stands in `claims.toml`, and is filled in from the numbers too.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from string import Formatter

from ....errors import BadInput
from ....formulas import units
from ...show import Shown, table

TRUE, FALSE, ONLY_IF, NOT_BUILT = ANSWERS = ("true", "false", "true only if", "not built yet")
MARKS = {TRUE: "✓", FALSE: "✗", ONLY_IF: "◐", NOT_BUILT: "○"}
KINDS = ("arithmetic", "bytes", "traffic", "time")  # of evidence: formulas alone; bytes held; bytes moved; seconds

Evidence = Mapping[str, object]
Holds = bool | Iterable[bool] | Mapping[object, bool]
_judged: dict[str, tuple[Callable, Callable]] = {}  # by claim: evidence, and in which cases it holds


def judges(name: str, evidence: Callable[[], Evidence]) -> Callable[[Callable], Callable]:
    """The decorated function says of this evidence in which cases the claim `name` holds: see `Claim`."""
    return lambda holds: _judged.setdefault(name, (evidence, holds))[1]


def read_claims(file: Path = Path(__file__).with_name("claims.toml")) -> dict[str, "Claim"]:
    """All claims by name, in the order of the file; those of the modules that are imported by then have their functions."""
    return {name: Claim(name, group, *_judged.get(name, (None, None)), **words)
            for group, claims in tomllib.loads(file.read_text("utf-8")).items() for name, words in claims.items()}


class Sentences(Formatter):
    """`str.format` with three formats more, for bytes: gb, gib and both. Without a format a value is as in a table."""

    def format_field(self, value: object, spec: str) -> str:
        if spec in ("gb", "gib", "both"):
            return " or ".join(map(getattr(units, spec), value.values() if isinstance(value, Mapping) else [value]))
        if not spec and not isinstance(value, str):
            return written(value)
        return super().format_field(value, spec)


def filled(sentence: str, evidence: Evidence) -> str:
    """The sentence with the evidence's numbers in the place of `{name}`. Raises BadInput for an unknown name."""
    try:
        return Sentences().vformat(sentence, (), evidence)
    except KeyError as missing:
        raise BadInput(f"the evidence has no {missing} for {sentence!r}; it has {', '.join(evidence)}") from None


@dataclass(frozen=True)
class Judgement:
    """answer: one of `ANSWERS`.   settles: the number that settles it, in words.   condition: of a “true only if”.

    Raises BadInput for an unknown answer, and for a condition that is missing or that has no place.
    """

    answer: str
    settles: str = ""
    condition: str = ""

    def __post_init__(self):
        if self.answer not in ANSWERS:
            raise BadInput(f"the answer is {self.answer!r}: it must be one of {', '.join(ANSWERS)}")
        if bool(self.condition) != (self.answer == ONLY_IF):
            raise BadInput(f"“{self.answer}” has the condition {self.condition!r}: “{ONLY_IF}” needs one, the others "
                           f"have none")

    def __str__(self) -> str:
        return f"{self.answer} {self.condition}".rstrip()


@dataclass(frozen=True)
class Claim:
    """What somebody says, and how it is examined.

    name: short, and unique.   group: the part of the chapter.
    evidence() -> numbers by name; None for a part that the package does not have yet.
    holds(evidence) -> whether the claim holds: a bool, or one for each case, which may have names. With more names for the
        sentences it is a pair, (that, names).
    The others are sentences, described in `claims.toml`, which has them.
    """

    name: str
    group: str
    evidence: Callable[[], Evidence] | None
    holds: Callable[[Evidence], Holds | tuple[Holds, Evidence]] | None
    kind: str
    statement: str
    settles: str
    true_in_it: str
    would_change: str
    condition: str = ""
    settles_true: str = ""
    settles_false: str = ""
    read: str = ""

    def judge(self, evidence: Evidence) -> Judgement:
        """True where it holds in all cases, false where it holds in none, else true under the condition."""
        found = self.holds(evidence)
        holds, names = found if isinstance(found, tuple) else (found, {})
        cases = holds if isinstance(holds, Mapping) else dict(enumerate([holds] if isinstance(holds, bool) else holds))
        answer = TRUE if all(cases.values()) else ONLY_IF if any(cases.values()) else FALSE
        own = {TRUE: self.settles_true, FALSE: self.settles_false}.get(answer) or self.settles
        names = {**evidence, "holding": [case for case, it_does in cases.items() if it_does], **names}
        return Judgement(answer, filled(own, names), filled(self.condition, names) if answer == ONLY_IF else "")

    def examine(self, evidence: Evidence | None = None) -> "Examined":
        """Judge by this evidence, or by the claim's own, which is collected now."""
        if evidence is None and self.evidence is None:
            return Examined(self, {}, Judgement(NOT_BUILT, "it is judged when its part of the package is there"))
        evidence = self.evidence() if evidence is None else evidence
        return Examined(self, evidence, self.judge(evidence))


@dataclass(frozen=True, repr=False)
class Examined:
    """A claim with its evidence and the judgement. It shows itself."""

    claim: Claim
    evidence: Evidence
    judgement: Judgement

    @cached_property
    def sentences(self) -> dict[str, str]:
        """What is said below the evidence, by heading."""
        said = {"The number that settles it": self.judgement.settles}
        if self.judgement.answer != NOT_BUILT:
            said |= {"What is true in it": filled(self.claim.true_in_it, self.evidence),
                     "What would change the verdict": filled(self.claim.would_change, self.evidence)}
        return said | ({"Read in": self.claim.read} if self.claim.read else {})

    def heard(self) -> Shown:
        """What is said, and the evidence, without a verdict."""
        numbers = table([{"evidence": name.replace("_", " "), "": written(value)}
                         for name, value in self.evidence.items()]
                        or [{"evidence": "none yet", "": ""}])
        return Shown(f"“{self.claim.statement}”\n\n{numbers.text}", f"<p><b>“{escape(self.claim.statement)}”</b></p>{numbers.html}")

    def judged(self) -> Shown:
        """The verdict, and what is said about it."""
        verdict = f"{MARKS[self.judgement.answer]} {self.judgement}"
        return Shown("\n\n".join([f"Verdict: {verdict}", *(f"{heading}: {words}" for heading, words in self.sentences.items())]),
                     f"<p><b>Verdict: {escape(verdict)}</b></p>"
                     + "".join(f"<p><i>{heading}:</i> {escape(words)}</p>" for heading, words in self.sentences.items()))

    def shown(self) -> Shown:
        both = self.heard(), self.judged()
        return Shown("\n\n".join(each.text for each in both), "".join(each.html for each in both))

    def __repr__(self) -> str:
        return self.shown().text

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        return self.shown()._repr_mimebundle_(include, exclude)


def written(value: object) -> str:
    """A value of the evidence in a table: thousands separated, and four digits of what is not whole."""
    if isinstance(value, Mapping):
        return "; ".join(f"{written(key)}: {written(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(written, value)) or "none"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e12 else f"{value:.4g}"
    return f"{value:,}" if type(value) is int else str(value)
