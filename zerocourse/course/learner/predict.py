"""A reader predicts before a cell measures, simulates or computes, and then sees both.

    predict("01.xl", 12, "GB")              # in a cell of its own, above the one that finds it
    observe("01.xl", 16 * params)           # the last line of that one: you 12.0 GB, found 24.9 GB, ratio 0.482

`...` is an answer that is still open. Several answers are a dictionary, name → answer; where each has a form of its own, the form is
a dictionary of the same names.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from matplotlib.figure import Figure

from ...errors import BadInput
from ..show import Shown, figure, put, sentence, table
from .answer_forms import AnswerForm, Number
from .folder import learner_folder
from .over_curves import draw_over, heights
from .record import events, remember

ALONE = ""  # the name of an answer that is the only one


class PredictionError(BadInput):
    """What was typed, or measured, has another form than the prediction. A notebook shows the sentence alone."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@dataclass(frozen=True)
class SomebodyGuessed:
    guess: object


def somebody_guessed(guess: object) -> SomebodyGuessed:
    """The guess in the course's own executed notebooks: somebody's, and most often wrong. It is shown as such and not recorded."""
    return SomebodyGuessed(guess)


@dataclass(frozen=True)
class Prediction:
    """answers: name → what its form has read.   who: "you" or "somebody".   late: names of the answers that came after the
    measurement, and do not count."""

    form: AnswerForm | Mapping[str, AnswerForm]
    answers: Mapping[str, object]
    who: str
    late: Collection[str]

    @property
    def given(self) -> dict[str, object]:
        return {name: answer for name, answer in self.answers.items() if answer is not None}

    def form_of(self, name: str) -> AnswerForm:
        """Raises BadInput for a name that is not asked for."""
        if not isinstance(self.form, Mapping):
            return self.form
        if name not in self.form:
            raise BadInput(f"{name!r} is not asked for: there is {', '.join(map(repr, self.form))}")
        return self.form[name]

    def say_each(self, answers: Mapping[str, object]) -> str:
        return "; ".join(f"{name}: {self.form_of(name).say(answer)}".removeprefix(": ") for name, answer in answers.items())

    def say(self) -> str:
        if not self.given:
            wants = "; ".join(dict.fromkeys(self.form_of(name).wants for name in self.answers))
            return f"No prediction yet: in place of ... write {wants}, or go on without one."
        said = self.say_each(self.given)
        still_open = ", ".join(name for name in self.answers if name not in self.given)
        return ("Noted" if self.who == "you" else "What somebody guessed, which is not the answer") + f": {said}." + (
            f" Still open: {still_open}." if still_open else "") + (
            " You had seen what was found, so this does not count." if self.late else "")


_made: dict[str, Prediction] = {}  # in this kernel


def predict(id: str, guess: object, form: str | AnswerForm | Mapping[str, AnswerForm] = "") -> Shown:
    """Take a prediction, keep it in the record of the learner's folder, and say how it was understood.

    id: the chapter's number and a name, such as "01.xl".   form: the unit of a number, "" for a plain one, or `Ordinal`, `OneOf`,
        `Order` or `Curve`; of several answers, name → form where they differ.
    Raises PredictionError for a guess of another form.
    """
    _made.pop(id, None)  # also where what is typed now is refused
    form = Number(form) if isinstance(form, str) else form
    who, typed = ("somebody", guess.guess) if isinstance(guess, SomebodyGuessed) else ("you", guess)
    late: set[str] = set()
    answers: dict[str, object] = {}
    made = Prediction(form, answers, who, late)
    try:
        for name, each in (typed if isinstance(typed, dict) else {ALONE: typed}).items():
            answers[name] = made.form_of(name).read(each)
    except BadInput as error:
        raise PredictionError(f"prediction {id}: {error}") from None
    if who == "you":
        for name, answer in made.given.items():
            if _note_guess(_full(id, name), made.form_of(name), answer):
                late.add(name)
    _made[id] = made
    return sentence(_made[id].say())


def observe(id: str, found: object) -> Shown:
    """Show *you / found / ratio*, and record what was found: measured, simulated or computed, as the cell says.

    found: so many bytes, seconds, shares of 1, factors or counts; an option; an order; of several answers, a dictionary; of
        curves, the figure of `plots_curves.curves`, which is shown with the predicted curves over its own.
    Raises PredictionError where something is predicted that is not found here.
    """
    made, drawn = _made.get(id), isinstance(found, Figure)
    named = heights(found) if drawn else found if isinstance(found, dict) else {ALONE: found}
    if made and (unknown := {*made.given} - {*named}):
        raise PredictionError(f"prediction {id}: {', '.join(map(repr, unknown))} is not found here: there is {', '.join(map(repr, named))}")
    values = {name: made.form_of(name).taken(value) for name, value in named.items() if name in made.answers} if made else {}
    for name, value in values.items():
        _note_measured(_full(id, name), made, name, value)
    if drawn:
        if made:
            draw_over(found, made.form, made.given, made.who)
        put(figure(found))
    return _said(id, made, values)


def _said(id: str, made: Prediction | None, values: Mapping[str, object]) -> Shown:
    """The comparison: a table, or a sentence where there is nothing to compare with."""
    if made is None:
        return sentence(f"There is no prediction {id} to compare with: run its cell first, if you want to make one.")
    if made.given:
        return table([({"": name} if name else {}) | made.form_of(name).row(made.who, made.answers[name], value) for name, value in values.items()])
    found = made.say_each(values)
    return sentence("You have made no prediction." + f" Found: {found}." * bool(found))


def _note_guess(id: str, form: AnswerForm, answer: object) -> bool:
    """Record a guess unless it is the last one. Returns whether it came after the measurement."""
    past, guess = _past(id), form.recorded(answer)
    last = next((event for event in reversed(past) if event["kind"] == "prediction"), None)
    if last and last.get("guess") == guess:
        return bool(last.get("late"))
    late = any(event["kind"] == "measured" for event in past)
    remember("prediction", id, guess=guess, unit=form.unit, quantity=form.quantity, late=late)
    return late


def _note_measured(id: str, made: Prediction, name: str, value: object) -> None:
    """Record a measurement, and how a guess that counts is judged, unless it is the last one."""
    guess = made.given.get(name) if made.who == "you" and name not in made.late else None
    form = made.form_of(name)
    what = {"value": form.recorded(value), "ratio": None, form.judged: form.judge(guess, value)}
    last = next((event for event in reversed(_past(id)) if event["kind"] == "measured"), {})
    if what != {key: last.get(key) for key in what}:
        remember("measured", id, **what)


def _full(id: str, name: str) -> str:
    return f"{id}/{name}" if name else id


def _past(id: str) -> list[dict]:
    """What the learner's folder remembers of it. Nothing where it cannot be read: `remember` says so."""
    try:
        folder = learner_folder()
        return [event for event in events(folder) if event["id"] == id] if folder else []
    except (OSError, BadInput):
        return []
