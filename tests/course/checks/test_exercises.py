"""Every exercise of every chapter: its solution, the package's own, its blank, its wrong answers, and its notebooks."""

import functools
import inspect
import random
import re

import nbformat
import pytest
from exercise_sets import IDS, SETS, answers_to, exercise_of
from test_notebooks import SECONDS, nbval
from wrong_answers import bank

from tools.exercises import EXERCISES, SOLUTIONS, problems
from zerocourse.course.checks import check, exercises
from zerocourse.course.checks.compare import difference
from zerocourse.course.learner.copies import SOLUTION

EVERY_EXERCISE = pytest.mark.parametrize("name", IDS)
EVERY_SET = pytest.mark.parametrize("name", [f"chapter{stem}" for stem in SETS])
LEARNERS_LINES = 20  # at least, in the longest exercise of a chapter
DRAWS = 50


def test_a_set_for_each_chapter_that_has_exercises():
    assert sorted({each.chapter for each in exercises().values()}) == [int(stem[:2]) for stem in SETS]


# the exercises

@EVERY_EXERCISE
def test_the_solution_passes(name):
    """As its set says, in an output that `test_solutions_give_the_same_outputs_again` computes and compares."""
    exercise = exercise_of(name)
    path = next(SOLUTIONS.glob(f"{exercise.chapter:02}_*.ipynb"))
    cell = next(cell for cell in notebook(path).cells
                if cell.metadata.get("nbgrader", {}).get("grade_id") == f"check_{exercise.id.replace('.', '_')}")
    said = [output.data["text/plain"] for output in cell.outputs if "data" in output]
    assert "nbval-check-output" in cell.metadata.tags and [text.startswith(f"✓ {exercise.id} passed") for text in said] == [True], said


@functools.cache
def notebook(path):
    return nbformat.read(path, as_version=4)


@pytest.mark.parametrize("name", [name for name in IDS if exercise_of(name).own])
def test_the_packages_own_passes(name):
    exercise = exercise_of(name)
    verdict = check(exercise.id, *exercise.own, own_allowed=True)
    assert verdict.passed, verdict


@pytest.mark.parametrize("name", [name for name in IDS if exercise_of(name).own])
def test_calling_the_packages_own_does_not_pass(name):
    exercise = exercise_of(name)
    verdict = check(exercise.id, *exercise.own)
    assert verdict.status == "failed" and "write it yourself" in verdict.message, verdict


@EVERY_EXERCISE
def test_a_blank_is_not_done_yet(name):
    exercise = exercise_of(name)
    verdict = check(exercise.id, *answers_to(exercise, EXERCISES))
    assert verdict.status == "not done" and "is still a blank" in verdict.message, verdict


@EVERY_EXERCISE
def test_wrong_answers_fail_each_with_its_own_sentence(name):
    exercise = exercise_of(name)
    entries = bank().get(exercise.id, [])
    if exercise.mistakes:  # its mutants are wrong answers (test_checks.py); those written by hand guard the harness
        codes = [(code, check(exercise.id, *_answers(exercise, answer)).code) for code, answer in entries]
        assert codes and all(wanted == got for wanted, got in codes), codes
        return
    phrases = {phrase for phrase, _ in entries}
    assert len(phrases) >= 3, f"{exercise.id} has {len(phrases)} different wrong answers"
    said = [(phrase, check(exercise.id, *_answers(exercise, answer))) for phrase, answer in entries]
    for phrase, verdict in said:
        found = [other for other in phrases if other in verdict.message]
        assert verdict.status == "failed" and found == [phrase], f"{phrase!r} was wanted, found {found} in: {verdict}"


def _answers(exercise, answer) -> list:
    """A wrong answer; where an exercise has several, those that are not in it are the solution's."""
    if len(exercise.answers) == 1:
        return [answer]
    known = zip(exercise.answers, answers_to(exercise, SOLUTIONS), strict=True)
    return [getattr(answer, name, solution) for name, solution in known]


@pytest.mark.parametrize("name", [name for name in IDS if exercise_of(name).own and exercise_of(name).sample])
def test_solution_and_package_agree_on_random_inputs(name):
    exercise = exercise_of(name)
    draw, (solution, *_), (own, *_) = random.Random(name), answers_to(exercise, SOLUTIONS), exercise.own
    for _ in range(DRAWS):
        args = exercise.sample(draw)
        unequal = difference(solution(*args), own(*args))
        assert not unequal, f"{exercise.answers[0]}{args}: {unequal}"


@EVERY_EXERCISE
def test_an_answer_is_described_well_enough_to_work_from(name):
    exercise = exercise_of(name)
    assert 5 <= exercise.minutes <= 90 and exercise.difficulty in (1, 2, 3)
    for answer in answers_to(exercise, EXERCISES):
        assert len(inspect.getdoc(answer) or "") >= 60, f"{answer.__name__} needs a docstring"


# the sets

@EVERY_SET
def test_a_set_is_in_order_and_its_exercises_fresh(name):
    found = list(problems(SETS[name.removeprefix("chapter")]))
    assert not found, f"{name}: " + "\n".join(found)


@EVERY_SET
def test_a_set_has_five_exercises_with_hints_and_a_long_one(name):
    stem = name.removeprefix("chapter")
    found = exercises(int(stem[:2]))
    cells = nbformat.read(SETS[stem], as_version=4).cells
    texts = {match[1]: cell.source for cell in cells if (match := re.match(r"## (\d+\.\d+)", cell.source))}
    assert len(found) >= 5 and all("<details><summary>" in text for text in texts.values())
    assert min(each.minutes for each in found.values()) <= 15
    longest = max(found.values(), key=lambda each: each.minutes)
    assert longest.minutes >= 45
    lines = 0
    for cell in cells:
        if any(re.search(rf"^(def|class) {answer}\b", cell.source, re.M) for answer in longest.answers):
            for blank in SOLUTION.finditer(cell.source):
                lines += sum(bool(line.strip()) and not line.strip().startswith("#") for line in blank[0].splitlines())
    assert lines >= LEARNERS_LINES, f"the longest exercise of {name} is {lines} lines"


@EVERY_SET
@pytest.mark.timeout(SECONDS + 20)
def test_solutions_give_the_same_outputs_again(name):
    ended = nbval(SETS[name.removeprefix("chapter")])
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
