"""What comes of a class's verdicts: tables for Canvas and Gradescope, pages, and what the next run need not grade again."""

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from exercise_sets import answering, filled

from zerocourse.cli import main
from zerocourse.course.checks import exercises
from zerocourse.course.checks.catalogue import VARIABLE
from zerocourse.course.checks.verdict import Verdict
from zerocourse.course.grading import gradebook
from zerocourse.course.grading.classroom import Row
from zerocourse.course.grading.grade_tables import WHO, read_roster, save_canvas, save_csv, save_gradescope
from zerocourse.course.grading.gradebook import Gradebook
from zerocourse.course.grading.notebook import Cell, read_cells
from zerocourse.course.grading.report.anonymous import MOST_LINES, anonymous
from zerocourse.course.grading.report.class_page import OF_ANY, class_page, examples, meaning
from zerocourse.course.grading.report.student_pages import save_report
from zerocourse.errors import BadInput

SET = "01_memory_math"
EXPORTED = """\ufeffStudent,ID,SIS User ID,SIS Login ID,Section,ZeRO 01 memory math (771),Final Score
    Points Possible,,,,,9,(read only)
"Lovelace, Ada",101,S1,student03,Autumn,,
"Babbage, Charles",102,S2,charles,Autumn,,
"""


def verdict_of(student: int, exercise: int) -> Verdict:
    """Of made-up students: every third has this exercise wrong, in one of four ways, and every seventh has a blank."""
    id = f"1.{exercise}"
    if (student + exercise) % 7 == 0:
        return Verdict(id, "not done", "not done yet", code="not done")
    if (student + exercise) % 3 == 0:
        codes = [*list(exercises()[id].mistakes)[:3], "raised"]
        return Verdict(id, "failed", f"`f({student})` is <wrong> & more", printed="<b>", code=codes[student % 4])
    return Verdict(id, "passed", "right")


def answer(student: int, exercise: int) -> Cell:
    who = f"student{student:02}"
    return Cell(f"1.{exercise}", f"# by {who}\ndef f{exercise}(x):\n    '''{who}'''\n    return {student // 6} < x  # mine")


@pytest.fixture
def thirty():
    """A class of thirty, the last of which handed in something else."""
    rows = [Row(f"student{number:02}/{SET}.ipynb", {f"1.{n}": verdict_of(number, n) for n in range(1, 6)},
                cells=tuple(answer(number, n) for n in range(1, 6))) for number in range(29)]
    return [*rows, Row(f"student29/{SET}.ipynb", problem="it is <not> a notebook")]


@pytest.fixture
def a_class(tmp_path):
    """A folder with one notebook in it, and the words that grade one of its answers."""
    (tmp_path / "class" / "ada").mkdir(parents=True)
    nbformat.write(answering(SET, "answer_1_1", "def count_params(*shape):\n    return 1"), tmp_path / "class" / "ada" / f"{SET}.ipynb")
    return tmp_path / "class"


class Page(HTMLParser):
    """Sees that what is opened is closed, and keeps the text."""

    def __init__(self, path: Path):
        super().__init__()
        self.open, self.text, self.tags = [], "", []
        self.feed(path.read_text(encoding="utf-8"))
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data if "style" not in self.open else ""


# whose

@pytest.mark.parametrize("name, student", [
    (f"ada/{SET}.ipynb", "ada"), (f"ada/set/{SET}.ipynb", "ada"), ("ada.ipynb", "ada"), (f"lovelaceada_101_5512_{SET}.ipynb", "lovelaceada_101_5512"),
    (f"lovelaceada_101_5512_{SET}-2.ipynb", "lovelaceada_101_5512"), (f"{SET}.ipynb", SET),
])
def test_whose_a_notebook_is(name, student):
    assert Row(name).student == student


# tables

def test_the_table_has_points_and_the_code_of_each_mistake(thirty, tmp_path):
    save_csv(thirty, tmp_path / "grades.csv")
    lines = list(csv.DictReader((tmp_path / "grades.csv").open(encoding="utf-8")))
    assert len(lines) == 30 and lines[29]["problem"] == "it is <not> a notebook"
    first = lines[1]  # 1.2 and 1.5 are wrong
    assert first["student"] == "student01" and first["1.2 code"] == list(exercises()["1.2"].mistakes)[1] and first["1.1 code"] == ""
    assert first["points"] == str(1 + 2 + 2) and first["of points"] == "9" and (first["passed"], first["of"]) == ("3", "5")


def test_canvas_gets_a_line_a_student_and_a_column_a_chapter(thirty, tmp_path):
    thirty.append(Row("student03/02_meta_device.ipynb", {"2.1": Verdict("2.1", "passed", "right")}))
    assert save_canvas(thirty, tmp_path / "canvas.csv") == []
    head, possible, *lines = csv.reader((tmp_path / "canvas.csv").open(encoding="utf-8"))
    assert head == [*WHO, "ZeRO 01 memory math", "ZeRO 02 meta device"] and possible == ["    Points Possible", "", "", "", "", "9", "1"]
    assert len(lines) == 30 and lines[1] == ["student01", "", "", "student01", "", "5", ""] and lines[3][-1] == "1"


def test_canvas_knows_students_and_columns_by_its_own_gradebook(thirty, tmp_path):
    (tmp_path / "exported.csv").write_text(EXPORTED, encoding="utf-8")
    thirty.append(Row(f"babbagecharles_102_7788_{SET}.ipynb", {"1.1": Verdict("1.1", "passed", "right")}))
    missing = save_canvas(thirty, tmp_path / "canvas.csv", tmp_path / "exported.csv")
    head, _, *lines = csv.reader((tmp_path / "canvas.csv").open(encoding="utf-8"))
    assert head[-1] == "ZeRO 01 memory math (771)"
    assert [line[:5] for line in lines] == [["Lovelace, Ada", "101", "S1", "student03", "Autumn"],
                                            ["Babbage, Charles", "102", "S2", "charles", "Autumn"]]
    assert lines[1][5] == "1" and "student04" in missing and len(missing) == 29


@pytest.mark.parametrize("text", ["", "name,points\nada,3\n", "Student,ID\n    Points Possible,\n", "\0"])
def test_a_roster_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "exported.csv").write_text(text)
    with pytest.raises(BadInput, match=r"--roster is .*exported\.csv, which"):
        read_roster(tmp_path / "exported.csv")


def test_gradescope_gets_a_test_for_each_exercise_and_a_leaderboard(tmp_path):
    save_gradescope([Verdict("13.1", "passed", "right"), Verdict("13.7", "failed", "no", code="all kept",
                                                                    numbers={"bytes kept in all cases": 15190})],
                    tmp_path / "results.json")
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["score"] == 1 and found["tests"][1] == {
        "number": "13.7", "name": "Beat this number", "score": 0, "max_score": 3, "status": "failed", "output": "no",
        "extra_data": {"code": "all kept"}}
    assert found["leaderboard"] == [{"name": "13.7 bytes kept in all cases", "value": 15190, "order": "asc"}]


# pages

def test_a_class_of_thirty_has_a_page_that_names_nobody_and_a_page_each(thirty, tmp_path):
    save_report(thirty, tmp_path / "report")
    about = Page(tmp_path / "report" / "index.html")
    assert "student" not in about.text.replace("30 students", "") and "it is <not>" not in about.text
    assert len(list((tmp_path / "report" / "students").iterdir())) == 30
    assert about.text.count("Answers with a mistake") == 5 and "`f(" not in about.text and "is <wrong> & more" in about.text
    assert [tag for tag, _ in about.tags].count("pre") == 15  # three for each exercise
    bars = [attributes["aria-label"] for tag, attributes in about.tags if attributes.get("class") == "bar"]
    passed = [sum(row.verdicts[f"1.{n}"].passed for row in thirty[:29]) for n in range(1, 6)]
    assert [words.split(" passed")[0] for words in bars] == list(map(str, passed))
    mine = Page(tmp_path / "report" / "students" / "student01.html")
    assert "student01" in mine.text and "student02" not in mine.text and "5 of 9 points" in mine.text and "<b>" in mine.text
    assert "could not be graded: it is <not> a notebook" in Page(tmp_path / "report" / "students" / "student29.html").text
    listed = Page(tmp_path / "report" / "students.html")
    assert [attributes["href"] for tag, attributes in listed.tags if tag == "a"][1:] == [f"students/student{number:02}.html" for number in range(30)]


def test_pages_need_no_network_and_have_no_script(thirty, tmp_path):
    save_report(thirty, tmp_path)
    for path in tmp_path.rglob("*.html"):
        assert not re.search(r"https?:|<script|src=", path.read_text(encoding="utf-8"))


def test_examples_are_of_different_mistakes_first_and_never_one_answer_twice(thirty):
    shown = examples(thirty[:29], "1.1")
    assert len(shown) == 3 and len({code for code, *_ in shown}) == 3
    same = [Row(f"s{n}/x.ipynb", {"1.1": Verdict("1.1", "failed", "no", code="raised")}, cells=(Cell("1.1", f"f = 1  # by s{n}"),)) for n in range(4)]
    assert len(examples(same, "1.1")) == 1


def test_an_example_has_no_comments_and_no_docstrings():
    said = anonymous('"""Ada"""\n# Ada\n%time x\ndef f(x):\n    "Ada"\n    # Ada\n    return "#" + x  # Ada\nclass A:\n    "Ada"')
    assert "Ada" not in said and 'return \'#\' + x' in said and "pass" in said
    assert anonymous("def f(:  # Ada\n    1") == "def f(:\n    1"
    assert anonymous("\n".join(f"x{n} = {n}" for n in range(MOST_LINES + 5))).endswith("… and 5 lines more")


def test_every_mistake_of_every_exercise_has_a_meaning():
    for asked in exercises().values():
        for code in (*asked.mistakes, *OF_ANY):
            said = meaning(asked, code)
            assert said and not re.search(r"[{}]", said) and not said.startswith((",", " ")), (asked.id, code)


def test_a_page_without_mistakes_or_answers():
    assert "1 passed, 0 failed" in class_page([Row("ada.ipynb", {"1.1": Verdict("1.1", "passed", "right")})])
    assert "1 of them could not be graded" in class_page([Row("ada.ipynb", problem="no")])


# what the next run need not grade again

def test_verdicts_are_kept_until_an_answer_or_the_examiner_changes(tmp_path, monkeypatch):
    cells, other = [Cell("1.1", "x"), Cell(None, "y")], [Cell("1.1", "x"), Cell(None, "z")]
    verdict, unsure = Verdict("1.1", "failed", "no", code="raised", numbers={"a": 1}), Verdict("1.2", "failed", "slow", code="hung")
    late = Verdict("1.3", "failed", "its cell did not end within 20 s", code="raised")
    Gradebook(tmp_path / "grades.json").keep("ada.ipynb", cells, [verdict, unsure, late])
    book = Gradebook(tmp_path / "grades.json")
    assert book.known("ada.ipynb", cells) == {"1.1": verdict} and book.known("ada.ipynb", other) == book.known("bob.ipynb", cells) == {}
    with monkeypatch.context() as another:
        another.setattr(gradebook, "PACKAGE", gradebook.PACKAGE / "course")
        assert Gradebook(tmp_path / "grades.json").known("ada.ipynb", cells) == {}
    monkeypatch.setenv(VARIABLE, "zh-CN")
    assert Gradebook(tmp_path / "grades.json").known("ada.ipynb", cells) == {}
    assert [path.name for path in tmp_path.iterdir()] == ["grades.json"]


@pytest.mark.parametrize("text", ["", "[]", '{"examiner": 1}', '{"examiner": 1, "notebooks": {"a": {}}}', '{"examiner": 1, "notebooks": 3}'])
def test_a_file_with_something_else_is_not_overwritten(a_class, capsys, text):
    (a_class / "grades.json").write_text(text)
    assert main(["check", "--folder", str(a_class)]) == 2
    assert "something else is in it" in capsys.readouterr().err and (a_class / "grades.json").read_text() == text
    assert sorted(path.name for path in a_class.iterdir()) == ["ada", "grades.json"]


# bad input

@pytest.mark.parametrize("words, sentence", [
    (["--report", "{file}"], "--report is"), (["--canvas", "nowhere/canvas.csv"], "--canvas is"), (["--roster", "{file}"], "without --canvas"),
    (["--canvas", "c.csv", "--roster", "nowhere.csv"], "--roster is"), (["--canvas", "c.csv", "--roster", "{file}"], "no gradebook of Canvas"),
    (["--gradescope", "r.json"], "with --folder"), (["--csv", "{file}"], "one of the notebooks"), (["--canvas", "{file}"], "one of the notebooks"),
    (["--csv", "g.json"], "name a file that ends in .csv"), (["--csv", "g.csv", "--canvas", "g.csv"], "another output"),
])
def test_bad_input_is_one_sentence_and_leaves_nothing(a_class, capsys, monkeypatch, words, sentence):
    file = a_class / "ada" / f"{SET}.ipynb"
    before = file.read_bytes()
    monkeypatch.chdir(a_class.parent)
    assert main(["check", "--folder", "class", *(word.format(file=file) for word in words)]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1
    assert [path for path in a_class.parent.rglob("*") if path.is_file()] == [file] and file.read_bytes() == before


def test_the_roster_is_not_overwritten(a_class, capsys):
    (a_class / "roster.csv").write_text(EXPORTED, encoding="utf-8")
    assert main(["check", "--folder", str(a_class), "--canvas", str(a_class / "roster.csv"), "--roster", str(a_class / "roster.csv")]) == 2
    assert "which is the roster" in capsys.readouterr().err and (a_class / "roster.csv").read_text(encoding="utf-8") == EXPORTED


@pytest.mark.parametrize("option", ["--report", "--canvas", "--roster", "--csv"])
def test_what_is_for_a_class_is_refused_without_one(capsys, option):
    assert main(["check", "1.1", option, "somewhere"]) == 2 and "without --folder" in capsys.readouterr().err


def test_one_notebook_for_gradescope(tmp_path, capsys):
    nbformat.write(filled(SET), tmp_path / "mine.ipynb")
    words = ["check", "1.1", "--answers", str(tmp_path / "mine.ipynb"), "--gradescope"]
    assert main([*words, str(tmp_path / "nowhere" / "results.json")]) == 2
    assert main([*words, str(tmp_path / "results.json")]) == 0
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["score"] == 1 and found["tests"][0]["number"] == "1.1" and "leaderboard" not in found


def test_the_cells_of_a_solution_are_what_is_hashed():
    """Outputs and text do not change what is graded."""
    from exercise_sets import SETS
    assert gradebook.answers_hash(read_cells(SETS[SET])) != gradebook.answers_hash(read_cells(SETS[SET])[:-1])
