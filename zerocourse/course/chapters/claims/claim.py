"""A claim that circulates, the evidence for and against it, and the judgement that follows from the evidence by code.

A claim has two functions. `evidence` measures or computes, and returns numbers by name. `judge` looks at these numbers
and at nothing else, so a judgement changes when the numbers do. All sentences are filled in from the numbers too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from string import Formatter

from ....errors import BadInput
from ....formulas import units
from ...show import Shown, table

TRUE, FALSE, ONLY_IF, NOT_BUILT = ANSWERS = ("true", "false", "true only if", "not built yet")
MARKS = {TRUE: "✓", FALSE: "✗", ONLY_IF: "◐", NOT_BUILT: "○"}
KINDS = ("arithmetic", "bytes", "traffic", "time")  # of evidence: formulas alone; bytes held; bytes moved; seconds

Evidence = Mapping[str, object]


class Sentences(Formatter):
    """`str.format` with three formats more, for bytes: gb, gib and both. Without a format a value is as in a table."""

    def format_field(self, value: object, spec: str) -> str:
        if spec in ("gb", "gib", "both"):
            return getattr(units, spec)(value)
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

    Both may have `{names}` of the evidence. Raises BadInput for an unknown answer, and for a condition that is missing
    or that has no place.
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


def judged(holds: Sequence[bool], settles: str, condition: str) -> Judgement:
    """True where the claim holds in all cases, false where it holds in none, else true under the condition."""
    if all(holds):
        return Judgement(TRUE, settles)
    return Judgement(ONLY_IF, settles, condition) if any(holds) else Judgement(FALSE, settles)


@dataclass(frozen=True)
class Claim:
    """What somebody says, and how it is examined.

    name: short, and unique.   group: the part of the chapter.   kind: of the evidence, one of `KINDS`.
    statement: as it circulates.   evidence() -> numbers by name; None for a part that the package does not have yet.
    judge(evidence) -> Judgement.   true_in_it, would_change: sentences, filled in from the evidence.
    read: where a fact that is not measured here was read.
    """

    name: str
    group: str
    kind: str
    statement: str
    evidence: Callable[[], Evidence] | None
    judge: Callable[[Evidence], Judgement]
    true_in_it: str
    would_change: str
    read: str = ""

    def examine(self, evidence: Evidence | None = None) -> "Examined":
        """Judge by this evidence, or by the claim's own, which is collected now."""
        if evidence is None and self.evidence is None:
            return Examined(self, {}, Judgement(NOT_BUILT, "it is judged when its part of the package is there"))
        evidence = self.evidence() if evidence is None else evidence
        given = self.judge(evidence)
        return Examined(self, evidence, Judgement(given.answer, filled(given.settles, evidence),
                                                  filled(given.condition, evidence)))


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

    def shown(self) -> Shown:
        numbers = table([{"evidence": name.replace("_", " "), "": written(value)}
                         for name, value in self.evidence.items()]
                        or [{"evidence": "none yet", "": ""}])
        verdict = f"{MARKS[self.judgement.answer]} {self.judgement}"
        text = "\n\n".join([f"“{self.claim.statement}”", numbers.text, f"Verdict: {verdict}",
                            *(f"{heading}: {words}" for heading, words in self.sentences.items())])
        html = (f"<p><b>“{escape(self.claim.statement)}”</b></p>{numbers.html}<p><b>Verdict: {escape(verdict)}</b></p>"
                + "".join(f"<p><i>{heading}:</i> {escape(words)}</p>" for heading, words in self.sentences.items()))
        return Shown(text, html)

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
