"""What a check has to say: a status and a sentence. It shows itself, as text and in a notebook."""

import re
from dataclasses import dataclass, field
from html import escape

PASSED, FAILED, NOT_DONE = "passed", "failed", "not done"
DIFFERENCE, STUCK, RAISED, MISUSED, OF_TYPE = "difference", "stuck", "raised", "misused", "type"  # codes
ALMOST = "right, but not of the asked type"  # what a verdict with the last of them says in place of its status
MARKS = {PASSED: "✓", FAILED: "✗", NOT_DONE: "○", ALMOST: "≈"}
COLOURS = {  # of about the same contrast, 4.3 to 1, on white and on the dark theme's #111
    PASSED: "#238a45", FAILED: "#d8402f", NOT_DONE: "#787878", ALMOST: "#a06f10"}
ORDINALS = "", "second ", "third ", "fourth "  # hints


class Wrong(Exception):
    """Ends a check: the answer is not right, and this sentence says why.

    code: as in `Verdict`.   error: the class name of the exception that the answer raised, where it raised one.
    """

    def __init__(self, sentence: str, code: str = DIFFERENCE, error: str = ""):
        super().__init__(sentence)
        self.code, self.error = code, error


class NotDone(Exception):
    """Ends a check: there is no answer yet."""


@dataclass(frozen=True)
class Verdict:
    """What a check has to say.

    status: "passed", "failed" or "not done".   printed: what the answer printed while it was checked.
    code: why it failed, for machines; None when it passed. A mistake of the exercise's table has its own code there.
    For the rest: "not done" (a blank), "difference" (wrong, and no known mistake explains it), "type" (every value is right, and
    one is not of the type that is asked for), "raised" (an exception),
    "misused" (it calls what it was given in a wrong way), "stuck" (the ranks disagree on a collective), "hung" (out of
    time), "died" (its process ended), "delegated" (it calls the package's own), "usage" (`check` itself was called
    wrongly), "broken" (the check failed, not the answer).
    numbers: for the board, by name (see `board`); none where the answer breaks a rule.
    hints: that are offered after several tries, as Markdown; they show themselves folded.
    """

    id: str
    status: str
    message: str
    printed: str = ""
    code: str | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    hints: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.status == PASSED

    @property
    def heading(self) -> str:
        """The status, or ALMOST."""
        return ALMOST if self.code == OF_TYPE else self.status

    def __str__(self) -> str:
        text = f"{MARKS[self.heading]} {self.id} {self.heading}: {self.message}"
        offer = f"\n  The {ORDINALS[len(self.hints) - 1]}hint above may help: open it." if self.hints else ""
        return text + "".join(f"\n  | {line}" for line in self.printed.splitlines()) + offer

    __repr__ = __str__

    def _repr_html_(self) -> str:
        printed = f'<pre style="margin:.4em 0 0">{escape(self.printed.rstrip())}</pre>' if self.printed else ""
        folded = "".join(f"<details><summary>Hint {number}</summary>{sentence_html(hint)}</details>"
                         for number, hint in enumerate(self.hints, 1))
        colour = COLOURS[self.heading]
        return (f'<div style="border-left:4px solid {colour};padding:.4em .8em"><b style="color:{colour}">'
                f"{MARKS[self.heading]} {escape(self.id)} {self.heading}</b><br>{sentence_html(self.message)}{printed}{folded}</div>")


def sentence_html(sentence: str) -> str:
    """With code between backticks."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", escape(sentence)).replace("\n", "<br>")


class Progress(dict):
    """Verdicts by id, None where there was no check; shows itself as a list."""

    def __init__(self, titles: dict[str, str], verdicts: dict[str, Verdict]):
        super().__init__({id: verdicts.get(id) for id in titles})
        self.titles = titles

    def __str__(self) -> str:
        done = sum(verdict is not None and verdict.passed for verdict in self.values())
        width = max(map(len, self.titles.values()), default=0)
        rows = [f"{MARKS[verdict.heading] if verdict else ' '} {id}  {self.titles[id]:{width}}  "
                f"{verdict.heading if verdict else 'not checked'}" for id, verdict in self.items()]
        return "\n".join([*rows, f"{done} of {len(self)} passed"])

    __repr__ = __str__
