"""The program of a backward by its laws, for any forward: what must be in the list, in which order, and that no rank can stand still
for ever. No tensor and no process is needed for that.
"""

import pytest
from hypothesis import given as generated
from hypothesis import settings
from hypothesis import strategies as st

from zerocourse.simulation.program_clock import COMPUTE, COSTS, program_timing
from zerocourse.zero.passes import program as program_of_a_backward
from zerocourse.zero.passes.program import (
    END,
    FREE,
    GATHER,
    REDUCE,
    SHARE,
    START,
    SUM,
    WAIT,
    BackwardAction,
    Call,
    backward_program,
    finished_at,
    merge,
    text,
)

UNITS = tuple("abcde")
PARTS = (REDUCE,), (REDUCE, SHARE), (REDUCE, SUM), (REDUCE, SUM, SHARE)
FORWARDS = st.recursive(st.tuples(st.sampled_from(UNITS), st.just(())), lambda inner: st.tuples(
    st.sampled_from(UNITS), st.lists(inner, max_size=3).map(tuple)), max_leaves=8)


def given(*strategies):
    """As hypothesis has it, with fewer examples: a list is soon as odd as it gets."""
    return lambda test: settings(max_examples=40, deadline=None)(generated(*strategies)(test))


def calls_of(forwards) -> list[Call]:
    """Of a forward that ran these units, each with those that ran inside of it."""
    calls: list[Call] = []

    def run(unit, inside) -> None:
        began = len(calls)
        for each in inside:
            run(*each)
        calls.append(Call(unit, began))

    for each in forwards:
        run(*each)
    return calls


CALLS = st.lists(FORWARDS, min_size=1, max_size=5).map(calls_of)


@st.composite
def backwards(draw, gathers=st.booleans(), parts=st.sampled_from(PARTS)) -> tuple:
    """(calls, buckets, last, options) of a backward: units with none to several buckets, some of which are finished last."""
    calls = draw(CALLS)
    buckets = {unit: [f"{unit}{number}" for number in range(draw(st.integers(0, 3)))] for unit in (*UNITS, "root")}
    last = ["root", *draw(st.lists(st.sampled_from(UNITS), max_size=2, unique=True))]
    options = {"prefetch": draw(st.integers(0, 3)) if draw(gathers) else None, "in_flight": draw(st.integers(0, 6)), "parts": draw(parts)}
    return calls, buckets, last, options


def places(program: list[BackwardAction], *kinds: str) -> dict[tuple, int]:
    """Where the actions of these kinds stand, by kind, unit and bucket. Each is there once."""
    found = {(each.kind, each.unit, each.bucket): place for place, each in enumerate(program) if each.kind in kinds}
    assert len(found) == sum(each.kind in kinds for each in program), "an action stands twice in the list"
    return found


def trained(calls, last) -> list[str]:
    return list(dict.fromkeys([*last, *(call.unit for call in calls)]))


@given(backwards(gathers=st.just(True)))
def test_a_gather_stands_before_its_unit_is_needed(backward):
    """Nothing in front of it waits for something that comes later than the unit."""
    calls, buckets, last, options = backward
    program = backward_program(calls, buckets, last, **options)
    found, order = places(program, GATHER), [call.unit for call in reversed(calls)]
    assert {unit for _, unit, _ in found} == set(trained(calls, last)), "each unit is gathered"
    for (_, unit, _), place in found.items():
        needed = START if unit in last else order.index(unit)
        assert all(each.at <= needed for each in program[: place + 1]), (unit, text(program, calls))


@given(backwards(gathers=st.just(True)))
def test_so_many_units_are_gathered_ahead(backward):
    """Where the backward comes to a unit it asks for the one that is `prefetch` visits ahead; with in_flight=1, where a reduction
    gives its memory back first, when half of the unit is over."""
    calls, buckets, last, options = backward
    program, ahead = backward_program(calls, buckets, last, **options), options["prefetch"]
    order = [call.unit for call in reversed(calls)]
    visits = [unit for unit in dict.fromkeys(order) if unit not in last]
    at = {each.unit: (each.at, program[place - 1].kind) for place, each in enumerate(program) if each.kind == GATHER}
    assert all(at[unit][0] == START for unit in [*last, *visits[:ahead]])
    for number, unit in enumerate(visits[ahead:]):
        came = order.index(visits[number])
        half = ahead > 0 and options["in_flight"] == 1 and at[unit][1] in (SUM, SHARE, WAIT)
        assert at[unit][0] == came + 0.5 * half, unit


@given(backwards(gathers=st.just(True)))
def test_only_what_no_gather_follows_is_reduced_as_soon_as_it_is_full(backward):
    calls, buckets, last, options = backward
    program = backward_program(calls, buckets, last, **options)
    behind = 1 + max(place for place, each in enumerate(program) if each.kind == GATHER)
    assert not any(each.full for each in program[:behind])
    assert all(each.full == each.bucket for each in program[behind:] if each.kind == REDUCE)


@pytest.mark.parametrize("forwards, finished", (
    ([("a", ()), ("b", ()), ("c", ())], {"a": 3, "b": 2, "c": 1}),
    ([("a", ()), ("b", ()), ("a", ())], {"a": 3, "b": 2}),  # past the first of its two calls
    ([("a", ()), ("b", [("c", ()), ("d", ())])], {"a": 4, "b": 3, "c": 3, "d": 2}),  # past those that ran inside of it
    ([("a", [("a", ())])], {"a": 2})), ids=("in a row", "twice", "inside", "inside of itself"))
def test_when_the_gradients_of_a_unit_are_complete(forwards, finished):
    assert finished_at(calls_of(forwards)) == finished


@given(backwards())
def test_a_bucket_is_reduced_once_when_its_gradients_are_complete(backward):
    calls, buckets, last, options = backward
    program = backward_program(calls, buckets, last, **options)
    finished = finished_at(calls) | dict.fromkeys(last, END)
    wanted = {(unit, bucket): finished[unit] for unit in trained(calls, last) for bucket in buckets[unit]}
    assert {(each.unit, each.bucket): each.at for each in program if each.kind == REDUCE} == wanted
    assert len(wanted) == len(places(program, REDUCE))
    by_unit = {unit: [each.bucket for each in program if each.kind == REDUCE and each.unit == unit] for unit in buckets}
    assert all(reduced == buckets[unit][::-1] for unit, reduced in by_unit.items() if reduced), "the last bucket is full first"


@given(backwards())
def test_the_parts_of_a_reduction_follow_each_other_to_its_end(backward):
    calls, buckets, last, options = backward
    found = places(backward_program(calls, buckets, last, **options), REDUCE, SUM, SHARE, WAIT)
    stages = [*options["parts"], WAIT]
    for unit in trained(calls, last):
        for bucket in buckets[unit]:
            at = [found.pop((kind, unit, bucket)) for kind in stages]
            assert at == sorted(at)
    assert not found, "nothing else is reduced"


@given(backwards())
def test_so_many_units_are_in_the_first_part_of_their_reductions(backward):
    calls, buckets, last, options = backward
    reducing: set[tuple] = set()
    for kind, unit, bucket, *_ in backward_program(calls, buckets, last, **options):
        if kind == REDUCE:
            reducing.add((unit, bucket))
            assert len({each for each, _ in reducing}) <= max(1, options["in_flight"])
        elif kind in (SUM, SHARE, WAIT):
            reducing.discard((unit, bucket))


@pytest.mark.parametrize("in_flight", range(1, 8))
def test_a_long_model_has_so_many_under_way(in_flight):
    calls, under_way, most = [Call(number, number) for number in range(12)], 0, 0
    for kind, *_ in backward_program(calls, {unit: ["b"] for unit in (*range(12), "root")}, ["root"], prefetch=1, in_flight=in_flight):
        under_way += (kind == REDUCE) - (kind == WAIT)
        most = max(most, under_way)
    assert most == in_flight


@given(backwards())
def test_with_nothing_in_flight_a_unit_waits_for_its_own_reductions(backward):
    calls, buckets, last, options = backward
    rows = [(each.unit, each.kind) for each in backward_program(calls, buckets, last, **options | {"in_flight": 0})
            if each.kind not in (GATHER, FREE)]
    for place, (unit, kind) in enumerate(rows[:-1]):
        assert rows[place + 1][0] == unit or kind == WAIT, "another unit's reduction began before this one was over"


@given(backwards(gathers=st.just(True)), st.booleans())
def test_what_was_gathered_is_freed_once_after_it_was_needed(backward, reshards):
    calls, buckets, last, options = backward
    program = backward_program(calls, buckets, last, **options, reshards=reshards)
    found, finished = places(program, GATHER, REDUCE, FREE), finished_at(calls) | dict.fromkeys(last, END)
    freed = {unit: place for (kind, unit, _), place in found.items() if kind == FREE}
    assert set(freed) == (set(trained(calls, last)) if reshards else set())
    for unit, place in freed.items():
        assert program[place].at == finished[unit]
        assert all(other < place for (kind, each, _), other in found.items() if each == unit and kind != FREE)


@given(backwards(gathers=st.just(False)))
def test_without_gathers_only_reductions_are_left(backward):
    """Stage 2's list is stage 3's without Gather and Free, where a gather does not make a reduction wait."""
    calls, buckets, last, options = backward
    kinds = {each.kind for each in backward_program(calls, buckets, last, **options)}
    assert kinds <= {*options["parts"], WAIT}
    assert not backward_program(calls, buckets, last, **options | {"parts": ()})


@given(backwards(), st.randoms(use_true_random=False))
def test_every_rank_writes_the_same_list(backward, random):
    """It follows from the calls alone: not from what stands for a unit, nor from the order in which the units are known."""
    calls, buckets, last, options = backward
    program = backward_program(calls, buckets, last, **options)
    shuffled = random.sample(sorted(buckets), len(buckets))
    assert backward_program(list(calls), {unit: buckets[unit] for unit in shuffled}, last, **options) == program
    objects = {unit: object() for unit in buckets}
    elsewhere = backward_program([Call(objects[unit], began) for unit, began in calls],
                                 {objects[unit]: of_unit for unit, of_unit in buckets.items()}, [objects[unit] for unit in last], **options)
    assert elsewhere == [each._replace(unit=objects[each.unit]) for each in program]


@given(backwards())
def test_no_program_can_stand_still_for_ever(backward):
    """On the clock every collective of the list ends, and takes its time; nothing is quicker than what a lane has to do."""
    calls, buckets, last, options = backward
    program = backward_program(calls, buckets, last, **options)
    timing = program_timing(program, calls, buckets, last)
    for kind in (GATHER, *options["parts"]):
        listed = [each.unit if each.bucket is None else each.bucket for each in program if each.kind == kind]
        assert [timing.name(span) for span in timing.spans(kind)] == listed, "a lane keeps the order of the list"
    computed = sum(span.end - span.start for span in timing.spans(COMPUTE))
    assert computed == COSTS[COMPUTE] * (len(calls) + len(last)) and timing.takes == computed + timing.waited


@given(st.lists(CALLS, min_size=1, max_size=3))
def test_merged_calls_have_those_of_each_rank_in_their_order(records):
    merged = merge(records)
    units = [call.unit for call in merged]
    for record in records:
        rest = iter(units)
        assert all(call.unit in rest for call in record), (record, units)
    assert set(units) == {call.unit for record in records for call in record}
    assert [call.unit for call in merge([merged, *records])] == units, "to merge again changes nothing"


@given(CALLS, st.integers(1, 3))
def test_ranks_that_ran_the_same_merge_to_it(calls, ranks):
    assert [call.unit for call in merge([calls] * ranks)] == [call.unit for call in calls]


@given(backwards())
def test_the_text_has_a_line_for_each_action(backward):
    calls, buckets, last, options = backward
    program = backward_program(calls, buckets, last, **options)
    lines = text(program, calls).splitlines()
    assert len(lines) == len(program)
    for line, each in zip(lines, program, strict=True):
        assert line.split()[:2] == [each.kind, each.unit if each.bucket is None else each.bucket]


def test_the_list_in_the_docstring_is_what_is_written():
    blocks = [f"block {number}" for number in range(3)]
    calls = [Call(block, place) for place, block in enumerate(blocks)]
    written = text(backward_program(calls, {unit: [unit] for unit in ["root", *blocks]}, ["root"], prefetch=1), calls)
    assert "\n".join(f"    {line}" for line in written.splitlines()) in program_of_a_backward.__doc__
