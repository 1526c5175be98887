"""Pictures of schedules draw what is simulated: every action once, where and when it runs."""

import re
from fractions import Fraction

import pytest

from zerocourse.course.chapters.pipelines.flight_film import flight_film
from zerocourse.course.chapters.pipelines.plots_held import held_by_ranks, held_over_time
from zerocourse.course.chapters.pipelines.plots_waits import drawn_waits
from zerocourse.course.chapters.pipelines.sleeping import eager_1f1b, measured
from zerocourse.course.show.pictures.pipeline_rows import pipeline_rows
from zerocourse.errors import BadInput
from zerocourse.parallel.pipeline import Costs, Schedule, gpipe, interleaved, one_f_one_b, pipedream, plan, simulate, zb_h1

TIMINGS = {"GPipe": simulate(plan("gpipe", gpipe, 4, 8)), "1F1B": simulate(plan("1f1b", one_f_one_b, 4, 8)),
           "interleaved": simulate(plan("interleaved", interleaved, 4, 8, 2), Costs(Fraction(1, 2), 1)),
           "ZB-H1": simulate(plan("zb-h1", zb_h1, 4, 8))}


def test_every_action_is_drawn_where_it_runs():
    drawn = pipeline_rows(TIMINGS).svg
    boxes = re.findall(r'data-rank="(\d+)" data-kind="(\w)" data-stage="(\d+)" data-micro="(\d+)" data-start="(\S+)" '
                       r'data-end="(\S+)"', drawn)
    expected = [(str(span.rank), span.action.kind, str(span.action.stage), str(span.action.micro_batch), str(span.start),
                 str(span.end)) for timing in TIMINGS.values() for span in timing.spans]
    assert sorted(boxes) == sorted(expected)


def test_words_say_what_is_seen():
    words = pipeline_rows({"1F1B": TIMINGS["1F1B"]}).text
    assert words == ("1F1B: 4 ranks and 8 micro-batches take 33 units, the bubble is 3/11, and the ranks hold up to 4, 3, 2, 1 "
                     "micro-batches.")


def test_updates_and_second_stages_are_marked():
    with_steps = pipeline_rows({"PipeDream": simulate(plan("pipedream", pipedream, 2, 3))}).svg
    assert with_steps.count('stroke-width="3"') == 6
    assert pipeline_rows({"interleaved": TIMINGS["interleaved"]}).svg.count('stroke-width="2"') == 4 * 8 * 2
    assert "gradients of weights" not in with_steps and "gradients of weights" in pipeline_rows({"a": TIMINGS["ZB-H1"]}).svg


@pytest.mark.parametrize("timings", ({}, {"nothing": simulate(Schedule("nothing", [[]], [0], 0))}))
def test_nothing_is_not_drawn(timings):
    with pytest.raises(BadInput, match="nothing to draw"):
        pipeline_rows(timings)


# Schedules on ranks that sleep ---------------------------------------------------------------------------------------

def test_real_ranks_have_the_order_of_the_clock(pool):
    """With transfers as long as a forward: twice the warm-up before 1F1B, which GPipe beats too."""
    schedules = {"GPipe": gpipe, "1F1B": one_f_one_b, "eager": eager_1f1b}
    late = Costs(transfer=1)
    plans = {name: plan(name, order, 3, 6) for name, order in schedules.items()}
    clock = {name: simulate(each, late).makespan for name, each in plans.items()}
    real = {name: measured(pool(3), each, 0.02, late, rounds=3) for name, each in plans.items()}
    assert clock["1F1B"] > clock["GPipe"] == clock["eager"]
    assert real["1F1B"].makespan > max(real["GPipe"].makespan, real["eager"].makespan)
    assert all(clock[name] <= timing.makespan for name, timing in real.items())
    assert [(span.rank, span.action) for span in real["eager"].spans] == [
        (rank, action) for rank, actions in enumerate(plans["eager"].actions) for action in actions if not action.is_transfer]
    assert [real["eager"].in_flight(rank) for rank in range(3)] == [5, 3, 1]


def test_what_a_rank_keeps_over_time_is_what_its_list_says():
    for name, timing in TIMINGS.items():
        for rank in range(4):
            moments, held = held_over_time(timing, rank)
            assert moments == sorted(moments) and (held[0], held[-1]) == (0, 0)
            assert max(held) == timing.in_flight(rank), f"{name}, rank {rank}"
    assert "GPipe: at most 8, 8, 8, 8" in held_by_ranks({name: TIMINGS[name] for name in ("GPipe", "1F1B")}).get_label()


@pytest.mark.parametrize("name", ("GPipe", "1F1B", "ZB-H1"))
def test_a_film_shows_each_action_at_its_moment_and_what_is_kept(name):
    timing, film = TIMINGS[name], flight_film(name, TIMINGS[name])
    moments = sorted({span.start for span in timing.spans})
    most = [0] * 4
    for moment, frame in zip(moments, film.frames, strict=True):
        drawn = "".join(frame.drawing.parts)
        now = {(str(span.rank), span.action.kind, str(span.action.micro_batch)) for span in timing.spans if span.start <= moment < span.end}
        assert set(re.findall(r'data-rank="(\d)" data-kind="(\w)" data-micro="(\d)"', drawn)) == now
        kept = re.findall(r'data-rank="(\d)" data-kept="(\d)"', drawn)
        most = [max(most[rank], sum(of == str(rank) for of, _ in kept)) for rank in range(4)]
    assert most == [timing.in_flight(rank) for rank in range(4)]
    assert film.frames[0].words == "After 0.0 units. Rank 0 begins F0. The ranks keep 1, 0, 0, 0 micro-batches."


def test_a_ring_of_waits_is_drawn_where_its_ranks_stand():
    figure = drawn_waits(plan("1F1B", one_f_one_b, 2, 4), "blocking")
    arrows = [(tuple(each.xy), tuple(each.xyann)) for each in figure.axes[0].texts if getattr(each, "arrow_patch", None)]
    lists = plan("1F1B", one_f_one_b, 2, 4).actions
    down, up = [str(action) for action in lists[0]], [str(action) for action in lists[1]]
    assert arrows == [((up.index("RECV F1 of stage 1"), 1), (down.index("SEND F1 of stage 0"), 0)),
                      ((down.index("RECV B0 of stage 0"), 0), (up.index("SEND B0 of stage 1"), 1))]
    with pytest.raises(BadInput, match="every list of 1F1B comes to its end"):
        drawn_waits(plan("1F1B", one_f_one_b, 2, 4), "bounded")
