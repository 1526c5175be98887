"""Pictures of backwards draw what the program says, and a recorded backward follows its list."""

import re

import pytest

from zerocourse.course.show.pictures.program_rows import KINDS, program_rows
from zerocourse.course.trials.overlap_trial import recorded_trial
from zerocourse.errors import BadInput
from zerocourse.measure.backward_lanes import COMPUTES, GATHERS, REDUCTIONS, SUMS, WAITS, BackwardLanes, recorded_lanes
from zerocourse.simulation.program_clock import COMPUTE, program_timing
from zerocourse.zero.passes.program import GATHER, REDUCE, SHARE, SUM, Call, backward_program

BLOCKS = [f"h.{number}" for number in range(8)]
CALLS = [Call(name, number) for number, name in enumerate(BLOCKS)]
BUCKETS = {"root": ["root[0]", "root[1]"]} | {name: [name] for name in BLOCKS}


def timed(**options):
    return program_timing(backward_program(CALLS, BUCKETS, ["root"], **options), CALLS, BUCKETS, ["root"])


def test_every_action_that_takes_time_is_drawn_where_it_runs():
    timing = timed(prefetch=1, parts=(REDUCE, SUM, SHARE))
    lanes = timing.lanes.lanes
    drawn = re.findall(r'data-lane="(\w+)" data-name="(\S+?)" data-start="(\S+)" data-end="(\S+)"', program_rows({"hybrid": timing.lanes}).svg)
    assert sorted(drawn) == sorted((lane, each.what, f"{each.start:g}", f"{each.end:g}") for lane in KINDS for each in lanes[lane])
    for kind, lane in ((GATHER, GATHERS), (REDUCE, REDUCTIONS), (SUM, SUMS), (SHARE, SUMS)):
        assert {(timing.name(span), float(span.start)) for span in timing.spans(kind)} <= {(each.what, each.start) for each in lanes[lane]}
    halves = sum(span.end - span.start for span in timing.spans(COMPUTE))
    assert sum(each.end - each.start for each in lanes[COMPUTES]) == halves
    assert timing.lanes.waited == timing.waited == timing.takes - halves


def test_words_say_what_is_seen():
    words = program_rows({"prefetch=0": timed(prefetch=0).lanes}).text
    assert words.startswith("prefetch=0: 36 units, of which it waits 18. In order: gather of root, gather of h.7, reduction of h.7, ")
    assert program_rows({"local": timed(parts=()).lanes}).text == "local: 18 units, of which it waits 0. In order: nothing travels."


@pytest.mark.parametrize("mode, options", (("off", {"prefetch": 0}), ("on", {"prefetch": 2, "in_flight": 2})))
def test_the_recorded_backward_follows_its_list(mode, options):
    """The root has two buffers, and so two gathers."""
    recorded = recorded_lanes(recorded_trial()["events"][mode][0])
    assert recorded.begun == ["gather of root[0]", "gather of root[1]", *timed(**options).lanes.begun[1:]]
    assert all(wait.end <= each.start or wait.start >= each.end for wait in recorded.lanes[WAITS] for each in recorded.lanes[COMPUTES])


@pytest.mark.parametrize("backwards", ({}, {"nothing": BackwardLanes({lane: [] for lane in (*KINDS, WAITS)}, "ms")}))
def test_nothing_is_not_drawn(backwards):
    with pytest.raises(BadInput, match="nothing to draw"):
        program_rows(backwards)
