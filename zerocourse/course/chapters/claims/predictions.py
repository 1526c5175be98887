"""What a reader says of each claim before the evidence, and how often that was right.

    mine = Predictions()
    mine.ask("numbers")             # the statements and, where ipywidgets is installed, a button for each answer
    mine.write("numbers", "t f")    # the same without buttons
    mine.score("numbers")           # after the evidence
"""

from collections.abc import Mapping

from ....errors import BadInput
from ...show import Shown, says, table
from .all_claims import CLAIMS, examine
from .claim import FALSE, ONLY_IF, TRUE, Claim

LETTERS = {"t": TRUE, "f": FALSE, "o": ONLY_IF}
OPEN = "?"


class Predictions:
    """said: name of the claim → one of "true", "false" and "true only if".

    claims: those that are asked about.   answers: name → what the evidence says; None: examine them.
    """

    def __init__(self, claims: Mapping[str, Claim] = CLAIMS, answers: Mapping[str, str] | None = None):
        self.claims, self.answers = claims, answers
        self.said: dict[str, str] = {}

    def of_group(self, group: str | None = None) -> list[str]:
        """The names of a group's claims, or of all. Raises BadInput."""
        names = [name for name, claim in self.claims.items() if group in (None, claim.group)]
        if not names:
            known = dict.fromkeys(claim.group for claim in self.claims.values())
            raise BadInput(f"there is no group {group!r}: there are {', '.join(known)}")
        return names

    def write(self, group: str, letters: str) -> None:
        """letters: for each claim of the group, in its order: t, f, o for “true only if”, or ?. Raises BadInput."""
        names, given = self.of_group(group), letters.split()
        if len(given) != len(names) or not {*given} <= {*LETTERS, OPEN}:
            raise BadInput(f"{letters!r} must be {len(names)} letters with spaces between, each one of t, f, o and ?")
        self.said |= {name: LETTERS[letter] for name, letter in zip(names, given, strict=True) if letter != OPEN}

    def ask(self, group: str) -> Shown:
        """The group's statements as a table, and the buttons above it."""
        names = self.of_group(group)
        self._show_buttons(names)
        return table([{"claim": name, "what is said": self.claims[name].statement} for name in names])

    def _show_buttons(self, names: list[str]) -> None:
        try:
            import ipywidgets
            from IPython.display import display
        except ImportError:
            return  # `write` does the same
        for name in names:
            buttons = ipywidgets.ToggleButtons(options=[OPEN, *LETTERS.values()], value=self.said.get(name, OPEN),
                                               description=name,
                                               style={"button_width": "90px", "description_width": "190px"})
            buttons.observe(lambda change, name=name: self._pressed(name, change["new"]), "value")
            display(buttons)

    def _pressed(self, name: str, answer: str) -> None:
        self.said.pop(name, None)
        if answer != OPEN:
            self.said[name] = answer

    def right(self, group: str | None = None) -> dict[str, bool]:
        """Of the claims that were predicted: was it right?"""
        return {name: self.said[name] == self._answer(name) for name in self.of_group(group) if name in self.said}

    def _answer(self, name: str) -> str:
        return examine(name).judgement.answer if self.answers is None else self.answers[name]

    def score(self, group: str | None = None) -> Shown:
        """How many predictions were right, beside those of readers who always give the same answer."""
        names, judged = self.of_group(group), self.right(group)
        answers = [self._answer(name) for name in names]
        yours = f"There is no prediction of yours for these {len(names)}."
        if judged:
            yours = f"You have predicted {len(judged)} of {len(names)}, and {sum(judged.values())} of these are right."
        return says("{yours} Who believes everything gets {believes} right, who believes nothing {doubts}, and who "
                    "always asks “under which condition?” "
                    "{asks}.", yours=yours, believes=answers.count(TRUE), doubts=answers.count(FALSE),
                    asks=answers.count(ONLY_IF))
