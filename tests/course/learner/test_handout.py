"""The learner's folder: what was touched is never overwritten, the rest is renewed, and a refusal leaves nothing behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from zerocourse import cli
from zerocourse.course.learner import handout
from zerocourse.course.learner.folder import MARK, VARIABLE
from zerocourse.course.learner.handout import TUTOR, hand_out, reset
from zerocourse.course.learner.manifest import read_manifest
from zerocourse.errors import BadInput

FIVE, SIX, SET = "notebooks/05_zero1.ipynb", "notebooks/06_zero2.ipynb", "exercises/05_zero1.ipynb"


def notebook(*sources: str) -> str:
    return nbformat.writes(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each, id=str(at)) for at, each in enumerate(sources)])) + "\n"


@pytest.fixture
def course(monkeypatch) -> dict[str, str]:
    """A course of three notebooks that a test can change, in place of the real one."""
    made = {FIVE: notebook("1 + 1"), SIX: notebook("2 + 2"), SET: notebook("def f(): ...")}


    def copies_of_all(ours=True):
        return {name: text if ours else text.replace("1 + 1", "no ours") for name, text in made.items()}

    monkeypatch.setattr(handout, "copies_of_all", copies_of_all)
    return made


@pytest.fixture
def folder(tmp_path, course) -> Path:
    hand_out(tmp_path / "mine")
    return tmp_path / "mine"


def seen(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file() and MARK not in path.parts}


def test_everything_is_written_and_again_nothing(tmp_path, course):
    folder = tmp_path / "a" / "new one"
    assert hand_out(folder).written == list(course) and seen(folder) == course
    again = hand_out(folder, update=True)
    assert seen(folder) == course and not any((again.written, again.renewed, again.kept, again.older, again.removed))


def test_what_is_touched_is_never_overwritten(folder, course):
    """Not by `course`, not by --update; a newer version comes beside it, once."""
    mine = notebook("1 + 1", "my own cell")
    (folder / FIVE).write_text(mine)
    for update in (False, True):
        assert not hand_out(folder, update).kept and seen(folder) == course | {FIVE: mine}  # there is nothing newer
    course[FIVE] = notebook("1 + 1 # newer")
    assert hand_out(folder).older == [FIVE] and seen(folder)[FIVE] == mine
    assert hand_out(folder, update=True).kept == {FIVE: "notebooks/newer_05_zero1.ipynb"}
    assert seen(folder) == course | {FIVE: mine, "notebooks/newer_05_zero1.ipynb": course[FIVE]}
    (folder / "notebooks/newer_05_zero1.ipynb").unlink()  # read, and thrown away
    assert not hand_out(folder, update=True).kept and seen(folder) == course | {FIVE: mine}


def test_the_newer_version_beside_is_renewed_until_it_is_touched(folder, course):
    (folder / FIVE).write_text(notebook("mine"))
    newest = {}
    for number, beside in ((2, "newer_05"), (3, "newer_05"), (4, "newer_2_05"), (5, "newer_2_05")):
        course[FIVE] = notebook(f"version {number}")
        newest[f"notebooks/{beside}_zero1.ipynb"] = course[FIVE]
        assert hand_out(folder, update=True).kept == {FIVE: f"notebooks/{beside}_zero1.ipynb"}
        if number == 3:
            newest["notebooks/newer_05_zero1.ipynb"] = notebook("I work in this one")
            (folder / "notebooks/newer_05_zero1.ipynb").write_text(newest["notebooks/newer_05_zero1.ipynb"])
    assert seen(folder) == course | {FIVE: notebook("mine")} | newest


def test_what_is_not_touched_is_renewed_on_request(folder, course):
    course |= {FIVE: notebook("newer"), "notebooks/07_zero3.ipynb": notebook("a new chapter")}
    done = hand_out(folder)
    assert (done.written, done.renewed, done.older) == (["notebooks/07_zero3.ipynb"], [], [FIVE])
    done = hand_out(folder, update=True)
    assert (done.written, done.renewed, done.older) == ([], [FIVE], []) and seen(folder) == course


def test_opening_a_notebook_is_no_touch_and_running_it_is(folder, course):
    opened, ran = (json.loads((folder / name).read_text()) for name in (FIVE, SIX))
    opened["metadata"]["language_info"] = {"name": "python", "version": "3.13.1"}
    opened["cells"][0]["metadata"]["trusted"] = True
    ran["cells"][0] |= {"execution_count": 1, "outputs": [{"output_type": "stream", "name": "stdout", "text": ["4\n"]}]}
    for name, saved in ((FIVE, opened), (SIX, ran)):
        (folder / name).write_text(json.dumps(saved))
    course |= {FIVE: notebook("newer"), SIX: notebook("newer, too")}
    done = hand_out(folder, update=True)
    assert done.renewed == [FIVE] and list(done.kept) == [SIX] and json.loads(seen(folder)[SIX]) == ran


def test_who_takes_the_newer_version_over_has_it(folder, course):
    (folder / FIVE).write_text(notebook("mine"))
    course[FIVE] = notebook("newer")
    hand_out(folder, update=True)
    (folder / "notebooks/newer_05_zero1.ipynb").replace(folder / FIVE)
    course[FIVE] = notebook("newest")
    assert hand_out(folder, update=True).renewed == [FIVE] and seen(folder) == course


def test_a_chapter_that_is_no_more_goes_unless_it_is_touched(folder, course):
    (folder / FIVE).write_text(notebook("mine"))
    del course[FIVE], course[SIX]
    assert not hand_out(folder).removed
    assert hand_out(folder, update=True).removed == [SIX] and seen(folder) == course | {FIVE: notebook("mine")}


def test_what_the_learner_deleted_comes_back(folder, course):
    (folder / SIX).unlink()
    assert hand_out(folder).written == [SIX] and seen(folder) == course


@pytest.mark.parametrize("other", ("a link", "a folder", "bytes"))
def test_what_is_no_notebook_is_the_learners(folder, course, other):
    elsewhere = folder / "elsewhere.ipynb"
    (folder / FIVE).rename(elsewhere)
    if other == "a link":
        (folder / FIVE).symlink_to(elsewhere)
    elif other == "a folder":
        (folder / FIVE).mkdir()
    else:
        (folder / FIVE).write_bytes(b"\xff\xfe\x00")
    course[FIVE] = notebook("newer")
    assert list(hand_out(folder, update=True).kept) == [FIVE]
    assert elsewhere.read_text() == notebook("1 + 1") and (folder / FIVE).is_dir() == (other == "a folder")
    assert reset(folder, 5).set_aside == {FIVE: "notebooks/mine_05_zero1.ipynb"} and (folder / FIVE).read_text() == notebook("newer")


def test_reset_gives_one_chapter_back_and_keeps_the_learners(folder, course):
    mine = {FIVE: notebook("mine"), SIX: notebook("mine, too"), SET: notebook("def f(): return 5")}
    for again, aside in ((1, "mine_"), (2, "mine_2_")):
        for name, text in mine.items():
            (folder / name).write_text(text)
        done = reset(folder, 5)
        assert done.set_aside == {name: name.replace("/", f"/{aside}") for name in (FIVE, SET)}
        assert {name: seen(folder)[name] for name in course} == course | {SIX: mine[SIX]}
        assert [seen(folder)[name] for name in done.set_aside.values()] == [mine[FIVE], mine[SET]]
        assert len(seen(folder)) == 3 + 2 * again
    assert not reset(folder, 5).set_aside  # there is nothing to give back


def test_reset_takes_the_newest_and_clears_the_copy_beside(folder, course):
    (folder / FIVE).write_text(notebook("mine"))
    course[FIVE] = notebook("newer")
    hand_out(folder, update=True)
    reset(folder, 5)
    assert seen(folder) == course | {"notebooks/mine_05_zero1.ipynb": notebook("mine")}
    assert read_manifest(folder).offered == {} and not hand_out(folder, update=True).renewed


def test_a_class_folder_stays_one(tmp_path, course):
    folder = tmp_path / "class"
    hand_out(folder, ours=False)
    assert "no ours" in seen(folder)[FIVE] and not hand_out(folder, update=True).renewed
    reset(folder, 5)
    assert "no ours" in seen(folder)[FIVE]


# refusals

def refused(*words: str | Path) -> str:
    """What the command says, in one sentence."""
    ended = subprocess.run([sys.executable, "-m", "zerocourse", "course", *words], capture_output=True, text=True, timeout=60,
                           env={name: value for name, value in os.environ.items() if name != VARIABLE})
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 1), ended
    return ended.stderr


def test_a_bad_folder_or_chapter_gets_one_sentence_and_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    (tmp_path / "course" / MARK).mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    assert "is a file: name a folder" in refused(tmp_path / "file")
    assert "is a file: name a folder" in refused(tmp_path / "file" / "deeper")
    assert "holds other things, such as thesis.tex" in refused(tmp_path / "full")
    assert "lies inside of a learner's folder" in refused(tmp_path / "course" / "inside")
    assert "is not a learner's folder" in refused(tmp_path / "new", "--reset", "05")
    assert "there is no chapter 77: the chapters are 00, 01," in refused(tmp_path / "course", "--reset", "77")
    assert "--reset" in refused(tmp_path / "course", "--reset", "five")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("text", ("{", "[]", '{"files": 5}', '{"pages": {}}'))
def test_a_damaged_manifest_is_named_and_changes_nothing(folder, course, text):
    (folder / MARK / "manifest.json").write_text(text)
    course[FIVE] = notebook("newer")
    before = seen(folder)
    with pytest.raises(BadInput, match=r"manifest.json is damaged"):
        hand_out(folder, update=True)
    assert seen(folder) == before
    (folder / MARK / "manifest.json").unlink()
    assert list(hand_out(folder, update=True).kept) == [FIVE]  # as the sentence says


@pytest.mark.parametrize("there", (True, False))
def test_a_full_disk_leaves_everything_as_it_was(tmp_path, course, monkeypatch, there):
    folder = tmp_path / "deep" / "mine"
    if there:
        hand_out(folder)
        (folder / FIVE).write_text(notebook("mine"))
    before, write = sorted(tmp_path.rglob("*")), Path.write_text
    course |= {FIVE: notebook("newer"), SIX: notebook("newer")}

    def full(path, text, *more):
        if SIX.rpartition("/")[2] in path.name:
            write(path, text[:3])
            raise OSError(28, "No space left on device")
        return write(path, text, *more)

    monkeypatch.setattr(Path, "write_text", full)
    for change in [lambda: hand_out(folder, update=True)] + [lambda: reset(folder, 6)] * there:
        with pytest.raises(OSError, match="No space left"):
            change()
        assert sorted(tmp_path.rglob("*")) == before


# the command

def test_the_command_says_what_it_did(folder, course, capsys, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(folder / "notebooks")  # the folder in which one is
    (folder / FIVE).write_text(notebook("mine"))
    course |= {FIVE: notebook("newer"), SIX: notebook("newer")}
    assert cli.main(["course"]) == 0
    assert f"there are newer versions of {FIVE}, {SIX}: zerocourse course" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["course", "--update", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(folder), "written": [], "renewed": [SIX], "removed": [], "set_aside": {},
                                                   "kept": {FIVE: "notebooks/newer_05_zero1.ipynb"}, "older": []}
    assert cli.main(["course", "--reset", "05"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"{FIVE} is given back; yours is beside it, mine_05_zero1.ipynb" in said


def test_without_a_name_it_makes_learning(tmp_path, course, capsys, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["course"]) == 0
    tutor = tmp_path / "learning" / TUTOR
    assert "Write no answers" in tutor.read_text()
    tutor.write_text("mine")
    assert cli.main(["course", "learning", "--update"]) == 0 and tutor.read_text() == "mine"
    tutor.unlink()
    assert seen(tmp_path / "learning") == course
    assert "2 chapters and 1 sets of exercises are new in learning" in capsys.readouterr().out
