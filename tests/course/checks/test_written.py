"""Cells in which a learner writes a chapter's core: their checks, what the chapter goes on with, and that nothing gives it away."""

import re

import nbformat
import pytest
import torch.distributed as dist
from wrong_answers import bank

from tools.notebooks import SOLUTION, chapters
from tools.written import blank_with_solution
from zerocourse.classics import ring
from zerocourse.course import checks
from zerocourse.course.checks import check, ours, written_cells, yours_or_ours
from zerocourse.course.checks.exercise import Exercise
from zerocourse.course.show.cells.sources import code_of
from zerocourse.errors import BadInput
from zerocourse.launch import Ranks

CELLS = {f"chapter{each.chapter:02}-{id}": each for id, each in written_cells().items()}  # so that -k chapter05 chooses a chapter
EVERY_CELL = pytest.mark.parametrize("name", CELLS)
NOT_YET: set[str] = set()  # cells that their chapters do not have yet; it only shrinks
KINDS = 4  # of wrong answers, at least, that are handed in by hand


def blanks(exercise: Exercise) -> list:
    """What a learner finds: functions that are still to be written."""
    space: dict = {"__name__": "__main__"}
    for name in exercise.answers:
        exec(compile(f"def {name}(*args, **kwargs):\n    raise NotImplementedError('your turn')", "<a cell>", "exec"), space)
    return [space[name] for name in exercise.answers]


@EVERY_CELL
def test_ours_passes_and_calling_it_does_not(name):
    exercise = CELLS[name]
    passes, delegated = check(exercise.id, *exercise.own, own_allowed=True), check(exercise.id, *exercise.own)
    assert passes.passed and delegated.code == "delegated", f"{passes} {delegated}"


@EVERY_CELL
def test_a_blank_is_not_done_and_the_chapter_goes_on_with_ours(name, capsys):
    exercise = CELLS[name]
    given = blanks(exercise)
    verdict = check(exercise.id, *given)
    assert verdict.status == "not done", verdict
    chosen = yours_or_ours(exercise.id, *given)
    assert (chosen if isinstance(chosen, tuple) else (chosen,)) == exercise.own
    assert capsys.readouterr().out.startswith(f"Not done yet: `{exercise.answers[0]}`")


@EVERY_CELL
def test_wrong_answers_by_hand_are_told_their_mistake(name):
    exercise = CELLS[name]
    handed_in = bank().get(exercise.id, [])
    assert len({code for code, _ in handed_in}) >= KINDS and len(exercise.mistakes) >= KINDS
    for code, answer in handed_in:
        answers = [getattr(answer, each, own) for each, own in zip(exercise.answers, exercise.own, strict=True)] \
            if isinstance(answer, type) else [answer]
        verdict = check(exercise.id, *answers, own_allowed=isinstance(answer, type))
        assert (verdict.status, verdict.code) == ("failed", code), verdict


# in their chapters

def notebook_of(exercise: Exercise):
    return nbformat.read(chapters([f"{exercise.chapter:02}"])[0], as_version=4)


def test_every_cell_is_in_its_chapter():
    there = {id for path in chapters() for id in re.findall(r'check\(\\"(\d+\.w\d+)', path.read_text())}
    assert set(written_cells()) - there == NOT_YET and there <= set(written_cells())


@pytest.mark.parametrize("name", [name for name, each in CELLS.items() if each.id not in NOT_YET])
def test_blank_check_choice_and_ours_follow_each_other(name):
    exercise = CELLS[name]
    code = [cell for cell in notebook_of(exercise).cells if cell.cell_type == "code"]
    names = ", ".join(exercise.answers)
    at = next(number for number, cell in enumerate(code) if f'check("{exercise.id}", {names})' in cell.source)
    blank, checked, chosen, shown = code[at - 1 : at + 3]
    for begins in re.findall(r"^def .*?(?=^ *### BEGIN)", blank_with_solution(exercise), re.S | re.M):
        assert begins in blank.source, f"the blank does not begin as tools.written has it: {begins}"
    assert SOLUTION in blank.source and blank.metadata.nbgrader.solution
    assert checked.outputs[0].data["text/plain"].startswith(f"✓ {exercise.id} passed")
    assert re.fullmatch(rf'[\w, ]+ = yours_or_ours\("{exercise.id}", {names}\)', chosen.source)
    assert shown.source == f'ours("{exercise.id}")' and shown.metadata.tags == ["ours"]


@pytest.mark.parametrize("name", [name for name, each in CELLS.items() if each.id not in NOT_YET])
def test_nothing_above_gives_it_away(name):
    """No line of ours, but the very short ones, stands above in a source or in what a cell shows."""
    exercise = CELLS[name]
    lines = {line.partition("  #")[0].strip() for own in exercise.own for line in code_of(own).rpartition('"""')[2].splitlines()}
    lines = {line for line in lines if len(line) >= 25}
    above = []
    for cell in notebook_of(exercise).cells:
        if f'check("{exercise.id}"' in cell.source:
            break
        shown = ["".join(output.get("data", {}).get("text/plain", output.get("text", ""))) for output in cell.get("outputs", [])]
        above += [re.sub(rf"{SOLUTION}.*?### END SOLUTION", "", cell.source, flags=re.S), *shown]
    assert [line for line in lines if any(line in text for text in above)] == []


# with whose function a chapter goes on

def my_ring(parts, rank, pass_on):
    n = len(parts)
    for number, add in [(rank - 1, True), (rank, False)]:
        for turn in range(n - 1):
            pass_on((number - turn) % n, (number - turn - 1) % n, add)


def crashing_ring(parts, rank, pass_on):
    pass_on(rank, (rank - 1) % len(parts), True)
    len(parts) / (len(parts) - len(parts))


def no_sum(parts, rank, pass_on):
    return None


@pytest.fixture
def new_session(monkeypatch):
    monkeypatch.setattr(checks, "_last", {})
    monkeypatch.setattr(checks, "_passed", {})


@pytest.mark.parametrize("before, given, goes_on, words", [
    ([my_ring], my_ring, my_ring, "The chapter goes on with **your** `turn_the_ring`."),
    ([no_sum, my_ring], my_ring, my_ring, "The chapter goes on with **your** `turn_the_ring`."),
    ([no_sum], no_sum, ring.turn_the_ring, "Your `turn_the_ring` did not pass the check yet, so the chapter goes on with **ours**."),
    ([my_ring], no_sum, ring.turn_the_ring, "The check has not seen this version of your `turn_the_ring`, so"),
    ([my_ring, no_sum], no_sum, ring.turn_the_ring, "Your `turn_the_ring` did not pass the check yet, so"),
    ([], my_ring, ring.turn_the_ring, "The check has not seen this version of your `turn_the_ring`, so"),
    ([], None, ring.turn_the_ring, "The check has not seen this version of your `turn_the_ring`, so"),
])
def test_the_chapter_goes_on_with_what_has_passed_as_it_is_now(new_session, capsys, before, given, goes_on, words):
    for answer in before:
        check("04.w1", answer)
    assert yours_or_ours("04.w1", given) is goes_on
    assert capsys.readouterr().out.startswith(words)


def test_an_answer_that_cannot_be_sent_to_ranks_has_not_passed(new_session, capsys):
    held = open(__file__)

    def holds_a_file(parts, rank, pass_on):
        return held

    assert check("04.w1", holds_a_file).status == "failed"
    assert yours_or_ours("04.w1", holds_a_file) is ring.turn_the_ring
    held.close()


def test_an_exception_is_one_sentence_with_its_line(new_session):
    message = check("04.w1", crashing_ring).message
    assert "it raised ZeroDivisionError: division by zero (line " in message and "\n" not in message
    assert message.endswith("`len(parts) / (len(parts) - len(parts))`)")


def test_ours_is_folded_until_an_answer_has_passed(new_session):
    shown = ours("04.w1")
    assert "def turn_the_ring(parts, rank, pass_on):" in shown.text and shown.html.startswith("<details><summary>Our version")
    check("04.w1", my_ring)
    assert not ours("04.w1").html.startswith("<details>")


def test_a_cell_that_is_not_there_is_said():
    for ask in (lambda: yours_or_ours("04.w9", my_ring), lambda: ours("04.w9")):
        with pytest.raises(BadInput, match=r"there is no exercise '04.w9': there are 4.1, .*04.w1"):
            ask()


def sum_by(turns):
    import torch
    buffer = torch.arange(7.0) * (dist.get_rank() + 1)
    return ring.ring_all_reduce(buffer, turns), buffer.tolist()


def test_a_learners_function_runs_in_real_ranks(new_session):
    check("04.w1", my_ring)
    with Ranks(3, quiet=True, oversubscribe=True) as three:
        sums = three.run(sum_by, yours_or_ours("04.w1", my_ring))
    assert [values for _, values in sums] == [[6.0 * place for place in range(7)]] * 3
    assert sum(sent for sent, _ in sums) == 2 * 2 * 7  # each of 7 elements makes 2 (N - 1) moves
