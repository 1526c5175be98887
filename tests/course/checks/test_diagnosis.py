"""What is said of an answer that nobody has seen before: true, whole, and of use."""

import math
from dataclasses import replace

import numpy
import pytest
import torch

from zerocourse.course.checks import case, judge
from zerocourse.course.checks.compare import difference, same_but_for_type
from zerocourse.course.checks.exercise import Exercise, _registered
from zerocourse.course.checks.lab import Lab
from zerocourse.course.checks.plain import decode, encode
from zerocourse.course.checks.trace import Trial
from zerocourse.course.checks.verdict import ALMOST, OF_TYPE
from zerocourse.course.checks.words import two_texts
from zerocourse.errors import BadInput


def made(reference, cases, mistakes=None, **more) -> Exercise:
    """An exercise in calls. Its sentences stand in the catalogue beside this file."""
    trials = more.pop("trials", (Trial(cases),))
    return Exercise("99.1", "Made up", 5, 1, (reference.__name__,), timeout=5.0, reference=reference, trials=trials,
                    mistakes=mistakes or {"nothing": (lambda *case: "nothing",)}, **more)


def verdict_on(exercise, answer):
    return judge(Lab(exercise, [answer]))


# right, but not of the asked type

def first_numbers(count, *, less=0):
    """The first numbers."""
    return [number - less for number in range(count)]


NUMBERS = made(first_numbers, [(3,), (12,)], {"one less": ({"less": 1},), "nothing": (lambda count: "nothing",)})


@pytest.mark.parametrize("answer, words", [
    (lambda count: range(count), "it returned a range where a list is right: range(0, 3) instead of [0, 1, 2]"),
    (lambda count: numpy.arange(count), "it returned an ndarray where a list is right"),
    (lambda count: torch.arange(count), "it returned a Tensor where a list is right"),
    (lambda count: set(range(count)), "it returned a set where a list is right"),
    (lambda count: [float(number) for number in range(count)], "at `[0]` it returned 0.0, a float: the number is right, but it has to be"),
    (lambda count: [number if number > 1 else bool(number) for number in range(count)], "at `[0]` it returned False, a bool, where 0"),
    (lambda count: list(range(count)) if count < 9 else range(count), "`first_numbers(12)`: it returned a range where a list"),
])
def test_right_values_of_another_type_have_a_verdict_of_their_own(answer, words):
    verdict = verdict_on(NUMBERS, answer)
    assert (verdict.status, verdict.code, verdict.heading) == ("failed", OF_TYPE, ALMOST) and words in verdict.message, verdict
    assert str(verdict).startswith(f"≈ 99.1 {ALMOST}: ") and f"≈ 99.1 {ALMOST}</b>" in verdict._repr_html_()


@pytest.mark.parametrize("answer", [lambda count: tuple(range(count)), lambda count: [numpy.int64(number) for number in range(count)]])
def test_a_tuple_is_a_list_and_numpys_numbers_are_numbers(answer):
    assert verdict_on(NUMBERS, answer).passed


@pytest.mark.parametrize("answer, code", [
    (lambda count: range(-1, count - 1), "one less"), (lambda count: torch.arange(-1, count - 1), "one less"),
    (lambda count: range(count) if count < 9 else range(-1, count - 1), "one less"),
    (lambda count: range(1, count + 1), "difference"), (lambda count: [str(number) for number in range(count)], "difference"),
    (lambda count: [number + 1e-12 for number in range(count)], "difference"),
])
def test_a_type_hides_no_mistake(answer, code):
    assert verdict_on(NUMBERS, answer).code == code


def halves(count):
    """Halves."""
    return torch.arange(count) / 2


@pytest.mark.parametrize("answer, code, words", [
    (lambda count: torch.arange(count).double() / 2, OF_TYPE, "it returned a tensor of torch.float64 where torch.float32 is right"),
    (lambda count: [number / 2 for number in range(count)], OF_TYPE, "a list, where a tensor of shape (3,) is right"),
    (lambda count: torch.arange(count).double() / 2.1, "difference", "float64 where torch.float32"),
])
def test_a_tensor_of_another_dtype_is_of_another_type(answer, code, words):
    verdict = verdict_on(made(halves, [(3,)]), answer)
    assert verdict.code == code and words in verdict.message, verdict


def test_a_later_trial_may_have_more_to_say():
    def answer(count):
        return range(count) if count == 3 else [0] * count

    both = made(first_numbers, (), trials=(Trial([(3,)]), Trial([(12,)])))
    assert verdict_on(both, answer).message.startswith("`first_numbers(12)`: at `[1]` it returned 0 where 1 is right")


@pytest.mark.parametrize("got, want, right", [
    (10**17 + 1.0, 10**17, True), (10**17, 10**17 + 1, False), (True, 1, True), (0, False, True), ("1", 1, False), (None, 0, False),
    ({"a": (1,)}, {"a": [1.0]}, True), ({"a": 1}, {"b": 1}, False), (range(2), (0, 1), True), ({10, 9}, [9, 10], True), ([2, 1], {1, 2}, True),
    ([1, 2, 3], [1, 2], False), (torch.tensor(2), 2, True), (torch.tensor([0.1]), [0.1], True), (0.1 + 1e-7, 0.1, False),
    (torch.ones(2), torch.ones(2, 1), False), (math.nan, math.nan, False),
])
def test_what_is_the_same_but_for_its_type(got, want, right):
    assert same_but_for_type(got, want) is right


@pytest.mark.parametrize("value", [numpy.arange(6).reshape(2, 3), numpy.array(2.5), numpy.array([True]), numpy.zeros((0, 2), "float32")])
def test_an_array_travels(value):
    back = decode(encode(value))
    assert back.dtype == value.dtype and back.shape == value.shape and (back == value).all()


def test_an_array_of_objects_does_not_travel():
    with pytest.raises(TypeError):
        encode(numpy.array([print], dtype=object))
    with pytest.raises(ValueError, match="no value that a rank may send"):
        decode({"array": ["object", [1], ""]})


# a case can be repeated

def longest_name(names, more):
    """The longest name."""
    return max(names, key=len)


LONG = [[f"{'a' * length}{length}" for length in range(30)], 1]


def test_a_case_that_is_cut_can_be_repeated(monkeypatch):
    exercise = made(longest_name, (), trials=(Trial([(["a"], 0), tuple(LONG)]), Trial([(1,)], lambda answer, number: {"seen": number}),
                                               Trial([(LONG[0][::-1], 2)])))
    exercise = replace(exercise, id="1.99")
    monkeypatch.setitem(_registered, "1.99", exercise)
    said = verdict_on(exercise, lambda names, more: names[-1] if more < 2 else "").message
    assert '(all of it is `longest_name(*case("1.99", 3))`, after `from zerocourse.course.checks import case`): it returned' in said
    given = case("1.99", 3)
    assert given == (LONG[0][::-1], 2) and case("1.99", 2) == tuple(LONG)
    given[0].clear()
    assert case("1.99", 3)[0]  # a copy
    with pytest.raises(BadInput, match=r"the check of 1.99 makes 3 plain calls: there is no call 4"):
        case("1.99", 4)


def test_a_case_that_is_whole_is_not_said_twice():
    assert "*case" not in verdict_on(NUMBERS, lambda count: [1]).message


# it returned None

def first_fit(sizes, size):
    """The first that fits."""
    return next((each for each in sizes if each >= size), None)


FIT = made(first_fit, [([1, 2, 3], 2), ([1, 4], 2)], {"must be less": (lambda sizes, size: next((each for each in sizes if each > size), None),),
                                                     "nothing": (lambda sizes, size: "nothing",)})


@pytest.mark.parametrize("answer, asks", [
    (lambda sizes, size: None, True), (lambda sizes, size: None if len(sizes) == 3 else 4, False),
    (lambda sizes, size: next((each for each in sizes[:2] if each > size), None), False),
])
def test_whether_it_ends_without_return_is_asked_where_it_returned_nothing_at_all(answer, asks):
    assert ("does it end without `return`?" in verdict_on(FIT, answer).message) is asks


def test_where_the_reason_is_known_nothing_is_asked():
    alone = made(first_fit, [([1, 2], 2)], FIT.mistakes)
    said = verdict_on(alone, lambda sizes, size: next((each for each in sizes if each > size), None)).message
    assert said == "`first_fit([1, 2], 2)`: it returned None where 2 is right. What fits exactly fits."


# no sentence compares a thing with itself

@pytest.mark.parametrize("got, want, words", [
    (torch.tensor([1.5, 9.0]).double(), torch.tensor([1.5, 9.0]), ("[1.5, 9] in torch.float64", "[1.5, 9] in torch.float32")),
    (1.00001, 1.00002, ("1.00001", "1.00002")), ([1.00001], [1.00002], ("[1.00001]", "[1.00002]")), (2.0, 2, ("2.0", "2")),
    (torch.zeros(3, 12), torch.eye(3, 12), ("a tensor of shape (3, 12) with 0 at [0, 0]", "a tensor of shape (3, 12) with 1 at [0, 0]")),
    ([torch.zeros(3, 12)], [torch.eye(3, 12)], ("[a tensor of shape (3, 12)] with a tensor of shape (3, 12) with 0 at [0, 0] at [0]",
                                                "[a tensor of shape (3, 12)] with a tensor of shape (3, 12) with 1 at [0, 0] at [0]")),
    (torch.tensor([1.00001]), torch.tensor([1.00002]), ("[1] with 1.0000100135803223 at [0]", "[1] with 1.0000200271606445 at [0]")),
    ("1", 1, ("'1'", "1")), (3, 4, ("3", "4")), ("same", "same", ("same", "same")),
])
def test_two_values_that_differ_are_told_in_words_that_do(got, want, words):
    assert two_texts(got, want) == words


def seen_mean_of(answer, count):
    """What it has."""
    return {"mean": answer(count)}


def test_a_whole_sentence_does_not_compare_a_thing_with_itself():
    said = verdict_on(made(halves, (), trials=(Trial([(2,)], seen_mean_of),)), lambda count: torch.arange(count).double() / 2).message
    assert said == "rank 0 has [0, 0.5] in torch.float64, and [0, 0.5] in torch.float32 is right."


@pytest.mark.parametrize("got, want, words", [
    (torch.tensor([1.0000021]), torch.tensor([1.0]), "it returned 1.000002145767212 at index [0] where 1.0 is right"),
    (torch.tensor(3.0), torch.tensor(2.0), "it returned 3.0 where 2.0 is right"),
])
def test_an_element_is_told_in_digits_that_differ(got, want, words):
    assert difference(got, want) == words


# what it raises

def as_it_is(value):
    """The value."""
    return value


def test_an_eof_error_of_its_own_is_no_input():
    def too_short(file):
        raise EOFError("too short")

    def asks(file):
        return input()

    exercise = made(as_it_is, [(1,)])
    assert "it raised EOFError: too short (line " in verdict_on(exercise, too_short).message
    assert "it waits for input" in verdict_on(exercise, asks).message


def test_the_line_of_an_error_is_the_learners_own():
    def sums_a_float(value):
        from zerocourse.comm import Comm
        return Comm().all_reduce(0.0)

    said = verdict_on(made(as_it_is, [(1,)]), sums_a_float).message
    assert "(line " in said and "`return Comm().all_reduce(0.0)`)" in said, said


# two mistakes at once

def cost(sizes, ranks, *, each=8, least=0, rounded_up=True, with_one_more=0):
    """The cost."""
    share = -(-sum(sizes) // ranks) if rounded_up else sum(sizes) // ranks
    return max(each * share, 50 if least is not None else 0) + with_one_more


COST_MISTAKES = {"four": ({"each": 4},), "least": ({"least": None},), "floor": ({"rounded_up": False},),
                 "one more": ({"with_one_more": 1},), "nothing": (lambda sizes, ranks: "nothing",)}
COST = made(cost, [([10], 1), ([3, 4], 2), ([1], 2), ([100], 3), ([10, 7], 4)], COST_MISTAKES)
ANOTHER = "And there is another mistake: mend this one first."


@pytest.mark.parametrize("answer, code, another", [
    (lambda sizes, ranks: max(4 * -(-sum(sizes) // ranks), 50), "four", False),
    (lambda sizes, ranks: 4 * -(-sum(sizes) // ranks), "four", True),  # and no least
    (lambda sizes, ranks: max(8 * (sum(sizes) // ranks), 50) + 1, "one more", True),
    (lambda sizes, ranks: 8 * (sum(sizes) // ranks) + 1, "difference", False),  # three are too many
])
def test_of_two_mistakes_the_first_that_is_seen_is_told(answer, code, another):
    verdict = verdict_on(COST, answer)
    assert verdict.code == code and verdict.message.endswith(ANOTHER) is another, verdict


def test_a_mistake_is_told_though_one_case_has_another():
    """An edge that is treated otherwise hides no mistake that is there in most cases."""
    def answer(sizes, ranks):
        return max(4 * -(-sum(sizes) // ranks), 50 if sizes != [1] else 3)

    verdict = verdict_on(made(cost, [([20], 1), ([30, 4], 2), ([1], 2), ([100], 3), ([10, 70], 4)], COST_MISTAKES), answer)
    assert verdict.code == "four" and verdict.message.endswith(ANOTHER), verdict


def test_what_two_wrong_answers_have_in_common_by_chance_is_no_mistake():
    def answer(sizes, ranks):
        return 51 if sizes == [1] else 7 * sum(sizes) // ranks

    assert verdict_on(COST, answer).code == "difference"
