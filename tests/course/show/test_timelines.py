"""What the events of a step say of its bytes, and the pictures that are drawn from them."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import worlds
from worlds import Case

from zerocourse.course import show
from zerocourse.course.chapters.infinity.plots_disk import io_lanes
from zerocourse.course.show import plots
from zerocourse.course.show.pictures import deep_step, svg
from zerocourse.course.show.pictures.pipeline_rows import pipeline_rows
from zerocourse.course.show.pictures.program_rows import program_rows
from zerocourse.course.show.pictures.timeline_lanes import IDLE, LEFT, LOOKS, Lane, LaneBlock, draw_lanes, legend_of
from zerocourse.course.show.timelines import RIGHT, WIDE
from zerocourse.course.trials.overlap_trial import recorded_trial
from zerocourse.errors import BadInput
from zerocourse.measure.backward_lanes import recorded_lanes
from zerocourse.measure.intervals import LINK, PYTHON, ROOT, Interval, computing, gaps, in_rows, waiting
from zerocourse.measure.ledger import Ledger
from zerocourse.measure.stage_meter import KINDS
from zerocourse.measure.storages import raw_grad
from zerocourse.parallel.pipeline import one_f_one_b, plan, simulate, zb_h1

ROOT_FOLDER = Path(__file__).parents[3]
STAGES = (0, 1, 2, 3)


def deep():
    return worlds.gpt(n_layer=6)


def two_counts(case: Case) -> list[tuple[dict, dict, int]]:
    """At every event of a step: the kinds it was recorded with, those that a ledger finds by reading every storage, and
    by how much the first may have more bytes of model states: slices that arrive from other ranks, less gradients that
    autograd has just brought and nobody has collected."""
    model, optimizer = worlds.sharded(case)
    worlds.train_plain(replace(case, steps=1), model, optimizer)
    stage, found = model.zero, []
    with Ledger(model, optimizer) as ledger, stage.meter.watched_by(ledger):
        kinds = stage.recorder.kinds

        def both() -> dict:
            counted = kinds()
            fresh = [raw_grad(param) for param in model.parameters()]
            found.append((counted, ledger.now().as_dict(), sum(flat.received_bytes for flat in stage.flats)
                          - sum(gradient.nbytes for gradient in fresh if gradient is not None)))
            return counted

        stage.recorder.kinds = both
        case.loss(model, 0, 0, stage.comm.rank).backward()
        optimizer.step()
    return found


@pytest.mark.parametrize("dtype", (None, torch.bfloat16))
@pytest.mark.parametrize("stage", STAGES)
def test_the_kinds_of_an_event_are_those_of_the_ledger(pool, stage, dtype):
    case = Case(stage, make=deep, param_dtype=dtype, options=(("in_flight", 2),))
    for events in pool(2).run(two_counts, case):
        assert len(events) > 20
        for counted, seen, apart in events:
            assert list(counted) == list(KINDS) and sum(counted.values()) == seen["alive_bytes"]
            states = seen["parameters_bytes"] + seen["gradients_bytes"] + seen["optimizer_bytes"] + apart
            assert sum(counted.values()) - counted["activations"] == states
            assert counted["optimizer"] == seen["optimizer_bytes"] and counted["activations"] >= 0


def event(rank, verb, unit, start, end, alive=0, **kinds) -> dict:
    return {"rank": rank, "step": 0, "verb": verb, "unit": unit, "start": start, "end": end, "bytes": 0, "alive": alive,
            "kinds": dict.fromkeys(KINDS, 0) | kinds if kinds else {}}


# Rank 0 computes h.0 at once and waits from 3 on: until 5 for rank 1, which issues its reduction late, then for the link.
STEP = [event(0, "forward", "root", 0, 2.5), event(0, "forward", "h.0", 1, 2), event(0, "backward", "h.0", 2.5, 3),
        event(0, "wait", "h.0", 3, 6), event(0, "reduce_scatter", "h.0", 3, 6), event(0, "step", "optimizer", 6.5, 7),
        event(1, "forward", "h.0", 1, 2), event(1, "backward", "h.0", 2, 5),
        event(1, "wait", "h.0", 5.5, 6), event(1, "reduce_scatter", "h.0", 5, 6), event(1, "step", "optimizer", 6, 8)]


def test_a_wait_is_for_the_rank_that_is_late_and_then_for_the_link():
    assert waiting(STEP, 0) == [(3, 5, "rank 1", "wait"), (5, 6, LINK, "wait")]
    assert waiting(STEP, 1) == [(5.5, 6, LINK, "wait")], "rank 0 had issued its own long before"
    alone = [each for each in STEP if each["rank"] == 0]
    assert waiting(alone, 0) == [(3, 6, LINK, "wait")]


def test_the_same_collective_again_is_not_the_first_one():
    """The second gather of a unit is late on rank 1, its first one was not."""
    gathers = [(0, 0.0, 1.0), (0, 4.0, 6.0), (1, 0.0, 1.0), (1, 5.0, 6.0)]
    events = [each for rank, start, end in gathers
              for each in (event(rank, "wait", "h.0", start, end), event(rank, "all_gather", "h.0", start, end))]
    assert waiting(events, 0) == [(0, 1, LINK, "wait"), (4, 5, "rank 1", "wait"), (5, 6, LINK, "wait")]


def test_every_moment_of_a_step_is_explained():
    """Blocks, waits and gaps fill the step of each rank, from the first event to the last."""
    assert [(gap.start, gap.end, gap.what) for gap in gaps(STEP, 0)] == [
        (0, 1, ROOT), (2, 2.5, ROOT), (6, 6.5, PYTHON), (7, 8, PYTHON)]
    for rank in (0, 1):
        filled = sorted([*computing(STEP, rank), *waiting(STEP, rank), *gaps(STEP, rank)])
        assert filled[0].start == 0 and filled[-1].end == 8
        assert all(one.end == other.start for one, other in pairwise(filled))


def test_a_block_begins_where_the_one_before_ends():
    events = [event(0, "backward", "h.1", 0, 2), event(0, "backward", "h.0", 1.9, 3)]
    assert computing(events, 0) == [(0, 2, "h.1", "backward"), (2, 3, "h.0", "backward")]
    assert computing([event(0, "forward", "root", 0, 1), event(0, "step", "optimizer", 1, 2)], 0)[0].what == "root"


def test_rows_hold_what_does_not_overlap():
    spans = [(0, 2), (1, 3), (2, 4), (3, 3.5), (3.2, 5)]
    rows = in_rows(Interval(*span, "h.0", "all_gather") for span in spans)
    assert [[each[:2] for each in row] for row in rows] == [[(0, 2), (2, 4)], [(1, 3), (3, 3.5)], [(3.2, 5)]]


def boxes(shown) -> list[dict[str, str]]:
    """The attributes of what has data in a picture."""
    return [each.attrib for each in ElementTree.fromstring(shown.svg).iter() if any(name.startswith("data-") for name in each.attrib)]


def with_bytes(scale: int) -> list[dict]:
    return [each | {"alive": 6 * scale, "kinds": dict.fromkeys(KINDS, 0) | {"parameters": 4 * scale, "in flight": 2 * scale}}
            for each in STEP]


@pytest.mark.parametrize("lanes", (True, False))
def test_compared_steps_share_their_axes(lanes):
    """A byte is as high and a second as long in each of them."""
    steps = {"ZeRO-2": with_bytes(10**6), "ZeRO-1": with_bytes(2 * 10**6)}
    shown = plots.compare(steps, {"ZeRO-1": {"peak": 15 * 10**6, "model states": 10**6}}, lanes=lanes)
    areas = [each for each in boxes(shown) if "data-alive" in each]
    assert {each["data-kind"] for each in areas} == {"parameters", "in flight"}, "a kind of which there is nothing is not drawn"
    assert len({round(float(each["height"]) / int(each["data-alive"]), 7) for each in areas}) == 1
    widths = [sum(float(each["width"]) for each in areas if (each["data-kind"], each["data-alive"]) == ("parameters", str(nbytes)))
              for nbytes in (4 * 10**6, 8 * 10**6)]
    assert widths[0] == pytest.approx(widths[1], abs=0.5) and widths[0] > 100
    assert "peak by formula: 15.0" in shown.svg and "model states by formula: 1.0" in shown.svg
    words = show.figure(shown).text
    assert "ZeRO-1: at most 12.0 MB" in words and re.search(r"ZeRO-2: at most 6.0 MB, .* and 6.0 MB at the end\.", words)


def test_compared_steps_have_their_legend_first():
    """So that it is on the screen with the first of them."""
    drawn = ElementTree.fromstring(plots.compare({"a": with_bytes(1), "b": with_bytes(1)}).svg).iter()
    height = {each.text: float(each.attrib["y"]) for each in drawn if each.text and "y" in each.attrib}
    assert height["waits"] < height["gathered blocks, buckets"] < height["a"] < height["b"]


def test_a_timeline_draws_blocks_waits_and_moves():
    shown = plots.timeline(with_bytes(10**6), "ZeRO-2, one step,", {"peak": 7 * 10**6})
    looks = [(each["data-look"], float(each["x"]), float(each["width"])) for each in boxes(shown) if "data-look" in each
             and "data-legend" not in each and float(each["y"]) < 200]
    left, second = LEFT, (WIDE - LEFT - RIGHT) / 8
    drawn = {(look, round((x - left) / second, 2), round(wide / second, 2)) for look, x, wide in looks}
    assert {("forward", 1, 1), ("waits", 3, 2), ("waits", 5, 1), ("step", 6.5, 0.5), ("reduce_scatter", 3, 3)} <= drawn
    words = re.findall(r">([^<>]+)</text>", shown.svg)
    assert {"0", "rank 1", "link", "computes", "reduce-scatter"} <= set(words) and not any("h." in word for word in words), "one name for a block"
    assert "ZeRO-2, one step, rank 0" in words and "peak by formula: 7.0" in words


def test_bytes_of_a_small_model_are_not_rounded_away():
    assert ">0.060<" in plots.timeline(with_bytes(10**4)).svg


def every_timeline() -> dict:
    """What the chapters draw of steps, backwards, schedules and the disk."""
    events = recorded_trial()["events"]["on"]
    backward = recorded_lanes(events[0])
    disk = [each | {"verb": {"all_gather": "read", "reduce_scatter": "write"}.get(each["verb"], each["verb"])} for each in events[0]]
    return {"timeline": plots.timeline(events[0]), "compare": plots.compare({"a": events[0], "b": events[0]}), "disk": io_lanes({"a": disk}),
            "backward": program_rows({"listed": backward, "recorded": backward}),
            "pipeline": pipeline_rows({"ZB-H1": simulate(plan("zb-h1", zb_h1, 4, 8)), "1F1B": simulate(plan("1f1b", one_f_one_b, 4, 8))})}


@pytest.mark.parametrize("name", ("timeline", "compare", "disk", "backward", "pipeline"))
def test_every_timeline_has_one_grammar(name):
    """Solid is what computes or moves, each with the look of its kind; hatched is a wait, and nothing else; idle is empty."""
    whole = list(ElementTree.fromstring(every_timeline()[name].svg))
    drawn = [(each, after) for each, after in pairwise(whole) if "data-look" in each.attrib]
    assert len(drawn) > 10
    for each, after in drawn:
        assert each.attrib["fill"] == LOOKS[each.attrib["data-look"]].fill
        if float(each.attrib["width"]) > 8:
            assert (after.tag.endswith("path") and "d" in after.attrib) == (each.attrib["data-look"] == "waits")
    entries = {each.attrib["data-legend"] for each, _ in drawn if "data-legend" in each.attrib}
    assert len(entries) <= 5 and len({each.attrib["data-look"] for each, _ in drawn if "data-legend" in each.attrib}) == len(entries)
    frames = [each for each in whole if each.attrib.get("stroke") == IDLE]
    assert frames and all(each.attrib["fill"] == "none" for each in frames)


def test_one_function_draws_all_lanes():
    """Nobody else in the course puts blocks into rows by their times."""
    others = [path.name for path in (ROOT_FOLDER / "zerocourse" / "course").rglob("*.py")
              if re.search(r"\bin_rows\(|broken_barh", path.read_text()) and path.name != "timeline_lanes.py"]
    assert others == []


def test_a_legend_of_six_is_refused():
    lanes = [Lane("all", [LaneBlock(0, 1, kind) for kind in LOOKS])]
    with pytest.raises(BadInput, match="7 entries .* 5 is the most"):
        legend_of(svg.Drawing(), 0, lanes)
    with pytest.raises(BadInput, match="'sleeps': a timeline has blocks of forward"):
        draw_lanes(svg.Drawing(), [Lane("one", [LaneBlock(0, 1, "sleeps")])], 0, 1, 1)


def test_the_deep_model_shows_what_theory_says(pool):
    """The peaks of its stages are those of the formula, and far enough apart for the eye."""
    peaks = [max(each["alive"] for each in recorded) for recorded in pool(2).run(deep_step.record_here, STAGES)[0].values()]
    for peak, stage in zip(peaks, STAGES, strict=True):
        assert peak == pytest.approx(deep_step.formulas(stage)["peak"], rel=0.01)
    assert all(higher > 1.15 * lower for higher, lower in pairwise(peaks))
