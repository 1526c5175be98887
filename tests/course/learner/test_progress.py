"""What `zerocourse progress` says of a record, and its picture of the predictions."""

import json
import math
import xml.etree.ElementTree as ElementTree

import pytest

from zerocourse.cli import main
from zerocourse.course.learner.folder import MARK, VARIABLE
from zerocourse.course.learner.record import FILE, remember
from zerocourse.course.learner.remembered.calibration import apart, calibration_figure, calibration_lines, column, typical_factor
from zerocourse.course.learner.remembered.summary import KINDS, kind_of, summarized


def predicted(id: str, ratio: float | None, quantity: str = "bytes", **more) -> None:
    remember("prediction", id, guess=1.0, unit="GB", quantity=quantity, late=False)
    remember("measured", id, value=1.0, ratio=ratio, **more)


def checked(id: str, code: str | None = None) -> None:
    remember("verdict", id, passed=code is None, code=code, hash="abc", points=0 if code else 1)


def test_in_a_clone_it_is_the_folder_that_make_lab_has_made(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "")  # given back at the end: the command sets it for its process
    assert main(["progress"]) == 2 and "zerocourse course" in capsys.readouterr().err
    (tmp_path / "learning" / MARK).mkdir(parents=True)
    remember_in = {"kind": "verdict", "id": "1.1", "passed": True, "code": None, "hash": "abc", "points": 1, "time": 1.0}
    (tmp_path / "learning" / MARK / FILE).write_text(json.dumps(remember_in) + "\n")
    assert said(capsys)["chapters"]["1"]["passed"] == 1


def said(capsys, *words: str) -> dict:
    assert main(["progress", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_chapters_kinds_and_predictions_are_counted(folder, capsys):
    for id, code in (("1.1", "difference"), ("1.1", None), ("1.2", "raised"), ("6.7", None), ("17.5", None), ("03.w1", None)):
        checked(id, code)
    predicted("01.total", 0.5)
    predicted("03.choice", None, "choice", right=True)
    remember("prediction", "01.open", guess=2.0, unit="GB", quantity="bytes", late=False)
    found = said(capsys)
    assert found["chapters"]["1"] == {"title": "memory math", "passed": 1, "exercises": 5, "points": 1, "of_points": 9, "predictions": 2,
                                      "measured": 1}
    assert list(found["chapters"]) == ["1", "3", "6", "17"]
    assert found["kinds"]["find the bug"]["passed"] == found["kinds"]["beat this number"]["passed"] == 1
    assert found["kinds"]["write"] == {"passed": 1, "tried": 2, "exercises": found["kinds"]["write"]["exercises"]}
    assert found["checked"]["1.1"] == {"tries": 2, "passed": True, "code": None, "points": 1, "hash": "abc"}
    assert found["predictions"]["01.total"] == {"quantity": "bytes", "ratio": 0.5, "right": None}
    assert main(["progress"]) == 0
    text = capsys.readouterr().out
    assert "01       memory math     1 of 5   1 of 9                1 of 2" in text
    assert "written in chapters: 1 of 1 tried passed" in text and "no numbers 1 of 1 were right" in text
    assert all(len(line) <= 80 for line in text.splitlines() if "calibration.png" not in line)  # a path is not broken


def test_the_picture_is_saved_as_png_or_svg(folder, capsys):
    predicted("01.total", 0.5)
    assert said(capsys)["picture"] == str(folder / "calibration.png")
    assert (folder / "calibration.png").read_bytes().startswith(b"\x89PNG")
    said(capsys, "--picture", "mine.svg")
    assert ElementTree.parse(folder / "mine.svg").getroot().tag.endswith("svg")


def test_without_predictions_there_is_no_picture(folder, capsys):
    checked("1.1")
    assert said(capsys)["picture"] is None and not list(folder.glob("*.png"))
    assert main(["progress"]) == 0 and "no prediction yet that was measured" in capsys.readouterr().out


def test_an_empty_record_says_so(folder, capsys):
    assert main(["progress"]) == 0 and "Nothing is done yet" in capsys.readouterr().out


@pytest.mark.parametrize("words, sentence", [
    (["nowhere"], "nowhere is no learner's folder"), (["--picture", "x.gif"], "its name must end in .png or .svg"),
    (["--picture", "nowhere/x.png"], "it must be a file in a folder that is there"),
])
def test_bad_input_is_one_sentence_and_leaves_nothing(folder, capsys, words, sentence):
    predicted("01.total", 0.5)
    before = sorted(folder.rglob("*"))
    assert main(["progress", *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1 and sorted(folder.rglob("*")) == before


def test_outside_of_a_folder_it_says_how_to_make_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert main(["progress"]) == 2 and "make one with `zerocourse course" in capsys.readouterr().err


def test_a_record_with_odd_values_is_read(folder, capsys):
    for line in ('{"kind": "measured", "id": "01.total", "ratio": 3}', '{"kind": "prediction", "id": "x", "guess": 1}',
                 '{"kind": "measured", "id": "x", "ratio": NaN}', '{"kind": "verdict", "id": "5", "passed": "yes", "points": []}',
                 '{"kind": "prediction", "id": "02.y", "guess": 1, "quantity": 7}', '{"kind": "measured", "id": "02.y", "ratio": -2}',
                 '{"kind": "measured", "id": "02.y", "ratio": true}', '{"kind": "new", "id": "1.1"}'):
        with open(folder / MARK / FILE, "a") as file:
            file.write(line + "\n")
    found = said(capsys)
    assert found["predictions"] == {"x": {"quantity": "other", "ratio": None, "right": None}, "02.y": {"quantity": "7", "ratio": -2, "right": None}}
    assert found["picture"] is None and found["checked"]["5"]["passed"] is False


def test_the_first_guess_that_was_judged_counts_and_what_passed_has_passed():
    events = [{"kind": "prediction", "id": "01.a", "guess": 1, "quantity": "bytes"}, {"kind": "measured", "id": "01.a", "ratio": 0.1},
              {"kind": "prediction", "id": "01.a", "guess": 10, "quantity": "bytes"}, {"kind": "measured", "id": "01.a", "ratio": 1.0},
              {"kind": "verdict", "id": "1.1", "passed": True, "code": None}, {"kind": "verdict", "id": "1.1", "passed": False, "code": "x"}]
    summary = summarized(events)
    assert summary.ratios() == {"bytes": {"01.a": 0.1}} and summary.checked["1.1"].passed and summary.checked["1.1"].code == "x"


@pytest.mark.parametrize("title, kind", [("Find the bugs: a step", "find the bug"), ("Find the condition", "write"), ("Fix the hang", "find the bug"),
                                         ("Read exactly", "write"), ("Read a desync report", "read"), ("Read these timelines", "read"),
                                         ("Beat 1F1B", "beat this number"), ("The fewest bytes on the device", "beat this number"),
                                         ("Choose the mesh", "choose and defend"), ("Cut a row", "write")])
def test_kinds_by_title(title, kind):
    assert kind_of(title) == kind and kind in KINDS


def test_half_of_the_predictions_are_within_the_typical_factor():
    assert typical_factor([0.5, 2, 2]) == pytest.approx(2) and typical_factor([1]) == 1


def test_the_text_form_has_each_prediction_at_its_place():
    head, line = calibration_lines({"bytes": {"a": 1.0, "b": 0.1, "c": 10.0, "d": 10.0, "e": 1e9}}, 80)
    strip = line.split()[1]
    assert strip[column(0.1, 1e6, len(strip))] == strip[len(strip) // 2] == "o" and strip[-1] == "o"  # to a billion: the end is a million
    assert head.split()[0] == "1/1,000,000" and strip[column(10, 1e6, len(strip))] == "2" and len(line) <= 80


def test_the_figure_says_what_it_shows_and_has_a_mark_for_each():
    figure = calibration_figure({"bytes": {"a": 0.5, "b": 2.0}, "seconds": {"c": 30.0}})
    axes, = figure.axes
    assert [len(line.get_xdata()) for line in axes.lines[1:]] == [2, 1] and axes.get_xlim()[1] > 100 and "log" in axes.get_xscale()
    assert "bytes: 0.5, 2; half of them are within a factor of 2." in figure.get_label()


def test_marks_that_would_lie_on_each_other_stand_apart():
    heights = apart([1.0, 1.0, 1.0, 5.0], 0, 0.1)
    assert len(set(heights[:3])) == 3 and heights[3] == 0
    assert math.isclose(max(map(abs, heights)), 0.16)
