"""What the events of a step say of its bytes, and the pictures that are drawn from them."""

import io
import re
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import worlds
from PIL import Image
from worlds import Case

from zerocourse.course import show
from zerocourse.course.show import plots
from zerocourse.course.show.pictures import deep_step
from zerocourse.measure.intervals import LINK, PYTHON, ROOT, Interval, computing, gaps, in_rows, waiting
from zerocourse.measure.ledger import Ledger
from zerocourse.measure.stage_meter import KINDS
from zerocourse.measure.storages import raw_grad

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


def heights(axes) -> dict[str, float]:
    """The top of each stacked area at the end, by its name."""
    return {area.get_label(): area.get_paths()[0].vertices[:, 1].max() for area in axes.collections}


def with_bytes(scale: int) -> list[dict]:
    return [each | {"alive": 6 * scale, "kinds": dict.fromkeys(KINDS, 0) | {"parameters": 4 * scale, "in flight": 2 * scale}}
            for each in STEP]


@pytest.mark.parametrize("lanes", (True, False))
def test_compared_steps_share_their_axes(lanes):
    steps = {"ZeRO-2": with_bytes(10**6), "ZeRO-1": with_bytes(2 * 10**6)}
    figure = plots.compare(steps, {"ZeRO-1": {"peak": 15 * 10**6, "model states": 10**6}}, lanes=lanes)
    alive = figure.axes[1::2] if lanes else figure.axes
    assert len({axes.get_ylim() for axes in alive}) == 1 and alive[0].get_ylim()[0] == 0
    assert alive[0].get_ylim()[1] > 15
    assert not lanes or len({axes.get_xlim() for axes in figure.axes}) == 1
    assert heights(alive[1]) == {"parameters": 8, "in flight": 12}, "a kind of which there is nothing is not drawn"
    assert heights(alive[0]) == {"parameters": 4, "in flight": 6}
    assert {"peak: 15.0", "model states: 1.0"} <= {text.get_text() for text in alive[1].texts}
    words = show.figure(figure).text
    assert "ZeRO-1: at most 12.0 MB" in words and re.search(r"ZeRO-2: at most 6.0 MB, .* and 6.0 MB at the end\.", words)


def test_a_timeline_draws_blocks_waits_and_gaps():
    figure = plots.timeline(with_bytes(10**6), "ZeRO-2, one step,", {"peak": 7 * 10**6})
    lanes, alive = figure.axes[:2]
    drawn = [(patch.get_label(), patch.get_x() / 1e3, patch.get_width() / 1e3) for patch in lanes.patches]
    assert {("forward", 1, 1), ("backward", 2.5, 0.5), ("rank", 3, 2), (LINK, 5, 1), ("step", 6.5, 0.5), (PYTHON, 7, 1),
            ("reduce_scatter", 3, 3)} <= set(drawn)
    words = {text.get_text() for text in lanes.texts}
    assert {"0", "rank 1", "step"} <= words and not any("h." in word for word in words), "one kind of label for a block"
    assert lanes.get_title("left") == "ZeRO-2, one step, rank 0" and "peak: 7.0" in [text.get_text() for text in alive.texts]
    waits = [patch for patch in lanes.patches if patch.get_label() in ("rank", LINK)]
    assert all(patch.get_hatch() for patch in waits), "a wait is known without its colour"


def test_bytes_of_a_small_model_are_not_rounded_away():
    _, alive = plots.timeline(with_bytes(10**4)).axes[:2]
    assert "0.060" in [text.get_text() for text in alive.texts]


def test_a_figure_is_sharp_and_small():
    shown = show.figure(plots.timeline(with_bytes(10**6)), "a timeline of one step")
    with Image.open(io.BytesIO(shown.png)) as image:
        assert image.width == 2 * shown.width and image.mode == "P"
    assert len(shown.png) < 100_000
    assert f'alt="a timeline of one step" width="{shown.width}"' in shown._repr_mimebundle_()[0]["text/html"]


def test_the_deep_model_shows_what_theory_says(pool):
    """The peaks of its stages are those of the formula, and far enough apart for the eye."""
    peaks = [max(each["alive"] for each in recorded) for recorded in pool(2).run(deep_step.record_here, STAGES)[0].values()]
    for peak, stage in zip(peaks, STAGES, strict=True):
        assert peak == pytest.approx(deep_step.formulas(stage)["peak"], rel=0.01)
    assert all(higher > 1.15 * lower for higher, lower in pairwise(peaks))
