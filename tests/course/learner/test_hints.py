"""After three answers that did not pass, `check` offers the next hint, in this session or by the record of the learner's folder."""

import linecache

import pytest

import zerocourse.course.checks as checks
from zerocourse.course.checks import check
from zerocourse.course.learner.hints import due, hints, recorded_tries
from zerocourse.course.learner.record import remember

RIGHT = "(16, 4, 2, 0)[stage] * params + (0, 12, 14, 16)[stage] * -(-params // ranks)"


@pytest.fixture(autouse=True)
def a_new_session(monkeypatch):
    monkeypatch.setattr(checks, "_tries", {})


def answer(number: int, body: str):
    """A function that stands in a cell of its own, as in a notebook."""
    name, source = f"<cell {number}>", f"def state_bytes(params, stage, ranks):\n    return {body}\n"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space: dict = {}
    exec(compile(source, name, "exec"), space)
    return space["state_bytes"]


def test_hints_are_found_in_the_order_of_the_task():
    found = hints("1.2")
    assert len(found) == 2 and found[0].startswith("Of the 16 bytes") and found[1].startswith("`-(-a // b)`")
    assert hints("1.3")[0].startswith("Either halve") and hints("1.77") == [] == hints("99.1")


def test_every_exercise_finds_its_hints():
    none = [id for id in checks.exercises() if "w" not in id and not hints(id)]
    assert none == []


@pytest.mark.parametrize("tries, count", [(0, 0), (2, 0), (3, 1), (5, 1), (6, 2), (99, 2)])
def test_each_three_tries_earn_a_hint(tries, count):
    assert due("1.2", tries) == hints("1.2")[:count]


def test_the_third_wrong_answer_is_offered_a_hint_and_the_same_one_twice_is_one():
    verdicts = [check("1.2", answer(number, f"{number} * params")) for number in (1, 1, 2, 3, 4)]
    assert [len(verdict.hints) for verdict in verdicts] == [0, 0, 0, 1, 1]
    offered = verdicts[3]
    assert str(offered).endswith("\n  The hint above may help: open it.") and "Of the 16" not in str(offered)
    assert "<details><summary>Hint 1</summary>Of the 16 bytes" in offered._repr_html_()
    assert "hint" not in str(verdicts[2]) and "<details" not in verdicts[2]._repr_html_()


def test_a_blank_is_no_try_and_a_right_answer_ends_them():
    for number in range(3):
        check("1.2", answer(number, "(_ for _ in ()).throw(NotImplementedError('your turn'))"))
    assert checks._tries == {}
    for number in range(3):
        check("1.2", answer(number, f"{number} * params"))
    assert check("1.2", answer(9, RIGHT)).passed and not check("1.2", answer(4, "7 * params")).hints


def test_tries_are_remembered_between_kernels(folder, monkeypatch):
    for number in (1, 2):
        check("1.2", answer(number, f"{number} * params"))
    assert recorded_tries("1.2") == 2 and recorded_tries("1.3") == 0
    monkeypatch.setattr(checks, "_tries", {})
    assert len(check("1.2", answer(3, "3 * params")).hints) == 1
    remember("verdict", "1.2", passed=False, code="not done", hash="blank", points=0)
    assert recorded_tries("1.2") == 3
    remember("verdict", "1.2", passed=True, code=None, hash="right", points=1)
    assert recorded_tries("1.2") == 0
