"""Predictions: what is typed is understood or refused in one sentence, kept once, and set beside what was measured."""

import warnings

import pytest

from zerocourse.course.learner import predict as module
from zerocourse.course.learner.answer_forms import Curve, Number, OneOf, Order, Ordinal
from zerocourse.course.learner.folder import MARK
from zerocourse.course.learner.guesses import called, guess_in, without_guess
from zerocourse.course.learner.predict import PredictionError, observe, predict, somebody_guessed
from zerocourse.course.learner.record import FILE, events
from zerocourse.course.show.plots_curves import curves
from zerocourse.errors import BadInput

STEP = Ordinal("step")
THREE = Order("one", "two", "three")
AT = (1, 16, 1024)


@pytest.fixture(autouse=True)
def new_kernel(monkeypatch):
    monkeypatch.setattr(module, "_made", {})


def two_curves():
    return curves({"stage 1": [120, 50, 40, 30], "stage 2": [120, 40, 20, 15]}, [1, 4, 16, 1024], "7.5 billion", "ranks", "GB", log=True)


# what is typed

@pytest.mark.parametrize("unit, typed, answer", [
    ("GB", 12, 12e9), ("GB", "12", 12e9), ("GB", "12 GB", 12e9), ("GB", "12GiB", 12 * 2**30), ("GB", "1,200 MB", 1.2e9), ("GB", 1e3, 1e12),
    ("GB", 0, 0), ("GB", ".5", 5e8), ("s", "300 ms", 0.3), ("ms", 300, 0.3), ("%", 25, 0.25), ("%", "25 %", 0.25),
    ("times", "2x", 2), ("times", 1.5, 1.5), ("samples", 10, 10), ("samples", "1 sample", 1), ("bytes per parameter", "16 bytes", 16),
    ("parameters", "1.5e9", 1.5e9), ("", 3, 3), ("", "3", 3)])
def test_a_number_is_read_with_its_unit_or_in_that_of_the_cell(unit, typed, answer):
    assert Number(unit).read(typed) == pytest.approx(answer)


@pytest.mark.parametrize("form, typed, sentence", [
    ("GB", "12 s", """'12 s' is not a number in GB, or with another unit, such as "300 MB\""""), ("GB", "12 G", "is not a number in GB"),
    ("GB", "-3", "is not a number"), ("GB", -3, "is not a number"), ("GB", "about 3", "is not a number"), ("GB", None, "None"),
    ("GB", True, "True is not a number"), ("GB", float("nan"), "nan is not"), ("GB", [12], r"\[12\] is not"),
    ("s", "3 GB", "'3 GB' is not a number in s"), ("samples", "3 cards", "is not a number of samples"), ("", "3 GB", "'3 GB' is not a number$"),
    (OneOf("yes", "no"), "perhaps", "'perhaps' is not one of \"yes\", \"no\""), (OneOf("yes", "no"), True, "True is not one of"),
    (STEP, "stage 3", "'stage 3' is not the number of a step, such as 3"), (STEP, 13.5, "13.5 is not"), (STEP, True, "True is not"),
    (THREE, ["one", "two"], r"\['one', 'two'\] is not all of \"one\", \"two\", \"three\", in your order, in \[ \]"),
    (THREE, ["one", "one", "two"], "is not all of"), (THREE, ["one", "two", ...], "is not all of"), (THREE, 3, "3 is not all of"),
    (Curve("GB", AT), [1, 2], r"\[1, 2\] is not \[ \] with 3 numbers in GB, for 1, 16, 1,024"),
    (Curve("GB", AT), 5, "is not"), (Curve("GB", AT), "abc", "is not"),
    (Curve("GB", AT), [1, 2, "3 s"], "'3 s' is not a number in GB")])
def test_another_form_is_refused_in_one_sentence(form, typed, sentence):
    with pytest.raises(PredictionError, match=f"prediction 01.x: .*{sentence}") as refused:
        predict("01.x", typed, form)
    assert refused.value._render_traceback_() == [str(refused.value)] and "\n" not in str(refused.value)


@pytest.mark.parametrize("unit", ["Gb ", "G", "gigs!", "Samples"])
def test_a_unit_that_nobody_knows_is_the_author_s_mistake(unit):
    with pytest.raises(BadInput, match="is no unit: there are b, kb.*such as samples"):
        Number(unit)


def test_what_was_refused_is_not_compared():
    predict("01.x", 12, "GB")
    with pytest.raises(PredictionError):
        predict("01.x", "12 s", "GB")
    assert "no prediction 01.x to compare with" in str(observe("01.x", 24e9))


# you / found / ratio

@pytest.mark.parametrize("form, typed, noted, measured, row", [
    ("GB", 12, "12.0 GB", 24e9, "12.0 GB 24.0 GB 0.5"), ("GiB", 12, "12.0 GiB", 24 * 2**30, "12.0 GiB 24.0 GiB 0.5"),
    ("ms", 30, "30 ms", 0.01, "30 ms 10 ms 3"), ("%", 25, "25%", 0.75, "25% 75% 0.333"),
    ("times", 1.5, "1.5 times", 12, "1.5 times 12 times 0.125"), ("samples", 1, "1 sample", 10, "1 sample 10 samples 0.1"),
    ("", 3, "3", 6, "3 6 0.5"), ("messages", 3, "3 messages", 0, "3 messages 0 messages –"),
    ("messages", 0, "0 messages", 4, "0 messages 4 messages 0"),
    (STEP, 13, "step 13", 14, "step 13 step 14 -1"), (STEP, "Step 14", "step 14", 14, "step 14 step 14 0"),
    (STEP, "16", "step 16", 14, "step 16 step 14 +2"),
    (OneOf("yes", "no"), "Yes", "yes", "no", "yes no no"), (OneOf("1", "2"), 2, "2", "2", "2 2 yes"),
    (OneOf("yes", "no"), "no", "no", True, "no yes no"), (OneOf("yes", "no"), "no", "no", False, "no no yes"),
    (THREE, ["two", "One", "three"], "two, one, three", ["one", "two", "three"], "two, one, three one, two, three no"),
    (THREE, "one, two, three", "one, two, three", ["one", "two", "three"], "one, two, three one, two, three yes")])
def test_the_guess_stands_beside_what_is_measured(form, typed, noted, measured, row):
    assert str(predict("01.x", typed, form)) == f"Noted: {noted}."
    head, _, body = str(observe("01.x", measured)).splitlines()
    assert head.split()[:2] == ["you", "found"] and body.split() == row.split()


def test_several_answers_have_a_row_each_and_some_may_be_open():
    said = predict("01.x", {"parameters": 2, "gradients": ..., "optimizer": 8}, "bytes per parameter")
    assert str(said) == "Noted: parameters: 2 bytes per parameter; optimizer: 8 bytes per parameter. Still open: gradients."
    rows = [line.split("  ") for line in str(observe("01.x", {"parameters": 2, "gradients": 2, "optimizer": 12})).splitlines()[2:]]
    assert [[cell.strip() for cell in row if cell][::3] for row in rows] == [["parameters", "1"], ["gradients", "–"], ["optimizer", "0.667"]]
    with pytest.raises(PredictionError, match="'optimizer' is not found here: there is 'gradients', 'parameters'"):
        observe("01.x", {"gradients": 2, "parameters": 2})


def test_each_of_several_answers_may_have_a_form_of_its_own(folder):
    forms = {"next": OneOf("Gather h.1", "Reduce h.3"), "actions": OneOf("more", "as many")}
    for nonsense in ({"next": "as many", "actions": ...}, {"next": ..., "actions": "Gather h.1"}):
        with pytest.raises(PredictionError, match="prediction 01.x: .* is not one of"):
            predict("01.x", nonsense, forms)
    with pytest.raises(PredictionError, match="'last' is not asked for: there is 'next', 'actions'"):
        predict("01.x", {"last": "more"}, forms)
    assert str(predict("01.x", {"next": ..., "actions": ...}, forms)) == (
        'No prediction yet: in place of ... write one of "Gather h.1", "Reduce h.3"; one of "more", "as many", or go on without one.')
    assert str(observe("01.x", {"next": "Reduce h.3", "actions": "more"})) == (
        "You have made no prediction. Found: next: Reduce h.3; actions: more.")
    predict("01.y", {"next": "gather h.1", "actions": "more"}, forms)
    assert [line.split()[-1] for line in str(observe("01.y", {"next": "Reduce h.3", "actions": "more"})).splitlines()[2:]] == ["no", "yes"]
    assert [event["right"] for event in events(folder) if event["id"].startswith("01.y") and event["kind"] == "measured"] == [False, True]


@pytest.mark.parametrize("form, measured, found", [("GB", 24e9, " Found: 24.0 GB."), (OneOf("yes", "no"), "no", " Found: no."),
                                                   (THREE, "three, two, one", " Found: three, two, one.")])
def test_unanswered_is_allowed_and_said_in_one_sentence(form, measured, found):
    said = str(predict("01.x", ..., form))
    assert said.startswith("No prediction yet: in place of ... write ") and said.endswith(", or go on without one.")
    assert str(observe("01.x", measured)) == f"You have made no prediction.{found}"


@pytest.mark.parametrize("open_one", [{"a": ..., "b": ...}, {"a": [..., ...], "b": [..., ...]}])
def test_several_that_are_all_open_are_none(open_one):
    form = Curve("GB", (1, 2)) if open_one["a"] is not ... else "GB"
    assert str(predict("01.x", open_one, form)).startswith("No prediction yet")


def test_what_is_measured_must_be_an_answer():
    predict("01.x", "yes", OneOf("yes", "no"))
    with pytest.raises(BadInput, match="'maybe' is not one of"):
        observe("01.x", "maybe")


def test_somebody_s_guess_is_called_that():
    said = predict("01.x", somebody_guessed(12), "GB")
    assert str(said) == "What somebody guessed, which is not the answer: 12.0 GB." and said.html == f"<div>{said}</div>"
    assert str(observe("01.x", 24e9)).split()[:3] == ["somebody", "found", "ratio"]


# a curve over the curve

def test_predicted_points_are_drawn_over_the_curve_of_their_name(capsys):
    predict("01.c", {"stage 2": [120, ..., 3], "stage 1": ["120 GB", "60000 MB", 30]}, Curve("GB", AT))
    figure = two_curves()
    said = str(observe("01.c", figure))
    drawn = {line.get_label(): line for line in figure.axes[0].lines}
    guess = drawn["your guess (hollow)"]
    assert guess.get_color() == drawn["stage 2"].get_color() and guess.get_marker() == drawn["stage 2"].get_marker()
    assert list(guess.get_xdata()) == [1, 1024] and list(guess.get_ydata()) == [120, 3] and guess.get_markerfacecolor() == "none"
    assert list(figure.axes[0].lines[-1].get_ydata()) == [120, 60, 30]
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["stage 1", "stage 2", "your guess (hollow)"]
    assert "what you predicted at 1, 16, 1024: stage 2 120 GB, –, 3.00 GB; stage 1 120 GB, 60.0 GB, 30.0 GB" in capsys.readouterr().out
    assert [line.split() for line in said.splitlines()[2:]] == [
        ["stage", "1", "16", "60.0", "GB", "40.0", "GB", "1.5"], ["stage", "2", "1,024", "3.00", "GB", "15.0", "GB", "0.2"]]


def test_a_guess_above_the_axes_is_seen():
    predict("01.c", {"a": [5, 100]}, Curve("MB", (1, 2)))
    figure = curves({"a": [1, 2]}, [1, 2], "title of it", "ranks", "MB")
    observe("01.c", figure)
    assert figure.axes[0].get_ylim() == (0, 105)


def test_an_open_curve_leaves_the_figure_as_it_is(capsys):
    predict("01.c", {"stage 1": [..., ..., ...]}, Curve("GB", AT))
    figure = two_curves()
    assert str(observe("01.c", figure)).startswith("You have made no prediction. Found: stage 1: 120 GB, 40.0 GB, 30.0 GB.")
    assert len(figure.axes[0].lines) == 2 and "stage 1 goes from 120" in capsys.readouterr().out


def test_a_curve_is_shown_where_nothing_was_predicted(capsys):
    assert "no prediction 01.c" in str(observe("01.c", two_curves()))
    assert "stage 1 goes from 120" in capsys.readouterr().out


@pytest.mark.parametrize("guess, at, sentence", [({"stage 7": [1, 2]}, (1, 16), "'stage 7' is not found here: there is 'stage 1', 'stage 2'"),
                                                 ({"stage 1": [1, 2]}, (1, 3), r"predicted at \[3\] and not measured there")])
def test_a_curve_that_is_not_in_the_figure_is_refused(guess, at, sentence):
    predict("01.c", guess, Curve("GB", at))
    with pytest.raises(BadInput, match=sentence):
        observe("01.c", two_curves())


# the record

def kept(folder) -> list[dict]:
    return [{key: value for key, value in event.items() if key != "at"} for event in events(folder)]


def test_a_prediction_and_its_measurement_are_remembered_once(folder):
    for _ in range(2):  # a kernel that begins again runs the same cells
        predict("01.x", "12000 MB", "GB")
        predict("01.x", 12, "GB")
        observe("01.x", 24e9)
        module._made.clear()
    assert kept(folder) == [{"kind": "prediction", "id": "01.x", "guess": 12, "unit": "GB", "quantity": "bytes", "late": False},
                            {"kind": "measured", "id": "01.x", "value": 24, "ratio": 0.5}]


def test_each_of_several_answers_has_its_own_events(folder):
    predict("01.x", {"a": "yes", "b": ...}, OneOf("yes", "no"))
    observe("01.x", {"a": "no", "b": "no"})
    assert [(event["kind"], event["id"], event.get("right"), event.get("ratio")) for event in kept(folder)] == [
        ("prediction", "01.x/a", None, None), ("measured", "01.x/a", False, None), ("measured", "01.x/b", None, None)]


def test_of_a_place_it_is_remembered_whether_it_is_right(folder):
    predict("01.x", 13, STEP)
    observe("01.x", 14)
    guess, value = kept(folder)
    assert guess["guess"] == 13 and guess["quantity"] == "place" and value["value"] == 14 and value["right"] is False


def test_of_a_curve_the_ratio_that_is_farthest_from_1_is_remembered(folder):
    predict("01.c", {"stage 1": [120, 60, 3]}, Curve("GB", AT))
    observe("01.c", two_curves())
    guess, value = kept(folder)
    assert guess["guess"] == [120, 60, 3] and guess["quantity"] == "bytes" and value["value"] == [120, 40, 30] and value["ratio"] == 0.1


def test_the_last_guess_before_the_measurement_counts_and_a_later_one_does_not(folder):
    predict("01.x", 6, "GB")
    predict("01.x", 12, "GB")
    observe("01.x", 24e9)
    said = predict("01.x", 24, "GB")
    assert str(said) == "Noted: 24.0 GB. You had seen what was found, so this does not count."
    assert str(observe("01.x", 24e9)).splitlines()[-1].split() == ["24.0", "GB", "24.0", "GB", "1"]
    assert [(event["guess"], event["late"]) for event in kept(folder) if event["kind"] == "prediction"] == [(6, False), (12, False), (24, True)]
    assert [event["ratio"] for event in kept(folder) if event["kind"] == "measured"] == [0.5, None]
    module._made.clear()
    assert "does not count" in str(predict("01.x", 24, "GB")) and len(kept(folder)) == 5


def test_who_measured_without_a_prediction_has_seen_the_answer(folder):
    predict("01.x", ..., "GB")
    observe("01.x", 24e9)
    assert "does not count" in str(predict("01.x", 24, "GB"))
    observe("01.x", 24e9)
    assert [event["kind"] for event in events(folder)] == ["measured", "prediction"]


def test_each_other_value_that_is_measured_is_remembered_once(folder):
    predict("01.x", 12, "GB")
    for value in (24e9, 25e9, 25e9):
        observe("01.x", value)
    assert [event["value"] for event in events(folder) if event["kind"] == "measured"] == [24, 25]


def test_somebody_s_guess_is_not_remembered(folder):
    predict("01.x", somebody_guessed(12), "GB")
    observe("01.x", 24e9)
    assert [(event["kind"], event["ratio"]) for event in kept(folder)] == [("measured", None)]


@pytest.mark.parametrize("broken", ["record", "folder"])
def test_a_record_that_cannot_be_read_stops_no_lesson(folder, broken, monkeypatch):
    if broken == "record":
        (folder / MARK / FILE).mkdir()
    else:
        monkeypatch.setenv("ZEROCOURSE_FOLDER", str(folder / "typo"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predict("01.x", 12, "GB")
        assert "0.5" in str(observe("01.x", 24e9))


# where the guess stands in a cell

@pytest.mark.parametrize("source, guess, copy", [
    ('predict("01.x", somebody_guessed(12), "GB")  # 12', "somebody_guessed(12)", 'predict("01.x", ..., "GB")  # 12'),
    ('x = 1\npredict("01.é", "12 GB", "GB")', '"12 GB"', 'x = 1\npredict("01.é", ..., "GB")'),
    ('predict("01.x", somebody_guessed({\n    "é": [120, 60, "ü"],\n    "two": -3}), form)',
     'somebody_guessed({\n    "é": [120, 60, "ü"],\n    "two": -3})',
     'predict("01.x", {\n    "é": [..., ..., ...],\n    "two": ...}, form)'),
    ('predict("01.x", somebody_guessed(["b", "a"]), Order("a", "b"))', 'somebody_guessed(["b", "a"])',
     'predict("01.x", [..., ...], Order("a", "b"))'),
    ('from it import observe, predict, somebody_guessed\npredict("01.x", somebody_guessed("no"), OneOf("yes", "no"))',
     'somebody_guessed("no")', 'from it import observe, predict\npredict("01.x", ..., OneOf("yes", "no"))'),
    ("%time\nx = 1", None, "%time\nx = 1"), ("observe(1, 2)", None, "observe(1, 2)"), ('model.predict("01.x", 2)', None, 'model.predict("01.x", 2)')])
def test_a_learner_s_copy_has_no_guess(source, guess, copy):
    assert guess_in(source) == guess and without_guess(source) == copy


def test_which_predictions_a_cell_makes_and_compares():
    assert called('predict("01.x", 1, "GB")\nobserve("01.y", 2)', "predict") == ["01.x"]
    assert called('predict("01.x", 1, "GB")\nobserve("01.y", 2)', "observe") == ["01.y"] and called("%%ranks\nobserve(", "observe") == []
    assert called("observe()\nobserve(name, 2)", "observe") == []
