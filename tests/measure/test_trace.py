"""Recorded steps as traces for Perfetto: the format, and that nothing of a step is lost in it."""

import json
from collections import Counter, defaultdict

import pytest

from zerocourse.course.chapters.overlap.recorded_step import recorded_step
from zerocourse.course.show.pictures import deep_step
from zerocourse.measure import perfetto
from zerocourse.measure.stage_meter import KINDS
from zerocourse.models.gpt2 import GPTConfig

SMALL = GPTConfig(3, 2, 16, block_size=8, vocab_size=64)


@pytest.fixture(scope="module")
def steps(pool) -> dict[str, list[dict]]:
    """Recorded steps by name: of both ranks at each stage, under a ledger; and the one that exercise 8.3 shows."""
    by_rank = pool(2).run(deep_step.record_here, (0, 1, 2, 3), SMALL)
    stages = {f"stage {stage}": [event for recorded in by_rank for event in recorded[stage]] for stage in range(4)}
    return stages | {"recorded": recorded_step()}


NAMES = ("stage 0", "stage 1", "stage 2", "stage 3", "recorded")


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_has_the_format_that_perfetto_reads(steps, name, tmp_path):
    """Chrome's Trace Event Format: what each phase must have, and of which type."""
    written = json.loads(perfetto.write(steps[name], tmp_path / "trace.json").read_text())
    assert set(written) == {"traceEvents", "displayTimeUnit"} and written["displayTimeUnit"] in ("ms", "ns")
    named = set()
    for entry in written["traceEvents"]:
        assert entry["ph"] in ("X", "C", "M") and type(entry["pid"]) is type(entry["tid"]) is int
        assert isinstance(entry["name"], str) and isinstance(entry["args"], dict)
        if entry["ph"] == "M":
            named.add((entry["name"], entry["pid"], entry["tid"]))
            assert entry["name"].rpartition("_")[0] in ("process", "thread", "process_sort", "thread_sort")
        else:
            assert isinstance(entry["ts"], float) and entry["ts"] >= 0
        if entry["ph"] == "X":
            assert isinstance(entry["dur"], float) and entry["dur"] >= 0
        if entry["ph"] == "C":
            assert all(type(value) is int for value in entry["args"].values())
    blocks = [entry for entry in written["traceEvents"] if entry["ph"] == "X"]
    assert {("thread_name", entry["pid"], entry["tid"]) for entry in blocks} <= named
    assert {("process_name", rank, 0) for rank in (0, 1)} <= named


@pytest.mark.parametrize("name", NAMES)
def test_blocks_of_a_lane_lie_apart_or_inside_each_other(steps, name):
    """Perfetto drops a block that begins inside of another one and ends after it."""
    lanes = defaultdict(list)
    for entry in perfetto.trace(steps[name])["traceEvents"]:
        if entry["ph"] == "X":
            lanes[entry["pid"], entry["tid"]].append((entry["ts"], entry["ts"] + entry["dur"]))
    for lane, spans in lanes.items():
        for start, end in spans:
            crossing = [other for other in spans if other[0] < start < other[1] - 0.002 and end > other[1] + 0.002]
            assert not crossing, (lane, (start, end), crossing)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_a_step_is_lost(steps, name):
    events, shown = steps[name], perfetto.trace(steps[name])["traceEvents"]
    begin = min(event["start"] for event in events)
    blocks = Counter((entry["pid"], entry["name"]) for entry in shown if entry["ph"] == "X")
    words = {"all_gather": "all-gather", "reduce_scatter": "reduce-scatter"}
    for key, count in Counter((event["rank"], f"{words.get(event['verb'], event['verb'])} {event['unit']}")
                              for event in events if event["verb"] != "wait").items():
        assert blocks[key] == count, key
    for rank in (0, 1):
        waits = sum(event["end"] - event["start"] for event in events if event["verb"] == "wait" and event["rank"] == rank)
        still = sum(entry["dur"] for entry in shown if entry["ph"] == "X" and entry["pid"] == rank
                    and entry["name"].startswith("waits for"))
        assert still == pytest.approx(waits * 1e6, abs=1), "microseconds"
        ends = sorted((event["end"], event["alive"]) for event in events if event["rank"] == rank)
        counters = sorted((entry["ts"], sum(entry["args"].values())) for entry in shown
                          if entry["ph"] == "C" and entry["pid"] == rank)
        assert [total for _, total in counters] == [alive for _, alive in ends]
        assert [ts for ts, _ in counters] == pytest.approx([(end - begin) * 1e6 for end, _ in ends], abs=0.01)


def test_counters_are_by_kind_where_the_step_knows_them(steps):
    for name, wanted in (("stage 3", list(KINDS)), ("recorded", ["alive"])):
        counters = [entry for entry in perfetto.trace(steps[name])["traceEvents"] if entry["ph"] == "C"]
        assert counters and all(list(entry["args"]) == wanted for entry in counters)


def test_a_trace_of_nothing_is_empty():
    assert perfetto.trace([]) == {"traceEvents": [], "displayTimeUnit": "ms"}


def test_a_block_that_begins_inside_of_another_and_ends_after_it_begins_later():
    blocks = [("backward", "h.2", 0.0, 2.0), ("reshard", "h.2", 0.5, 0.6), ("backward", "h.1", 1.9, 3.0), ("step", "optimizer", 3.0, 4.0)]
    events = [{"rank": 0, "step": 0, "verb": verb, "unit": unit, "start": start, "end": end, "bytes": 0, "alive": 0}
              for verb, unit, start, end in blocks]
    drawn = [(entry["name"], entry["ts"], entry["dur"]) for entry in perfetto.trace(events)["traceEvents"]
             if entry["ph"] == "X" and entry["tid"] == perfetto.COMPUTE]
    assert drawn == [("backward h.2", 0, 2e6), ("reshard h.2", 5e5, 1e5), ("backward h.1", 2e6, 1e6), ("step optimizer", 3e6, 1e6)]
