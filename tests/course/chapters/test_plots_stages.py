"""The pictures of chapter 08 say what they draw, and the recorded trial fits together."""

import pytest

from zerocourse.course.chapters.overlap.plots_overlap import bound_figure
from zerocourse.course.show.plots_stages import stages_figure
from zerocourse.course.trials.overlap_trial import Round, recorded_trial, summary
from zerocourse.formulas.time.step_time import speedup_bound


def test_the_bound():
    assert speedup_bound(1, 1) == 2 and speedup_bound(1, 0.25) == 1.25 == speedup_bound(0.25, 1)
    assert speedup_bound(1, 1, exposed=0.25) == 1.6
    figure = bound_figure({"even": 1, "slow": 4}, speedup_bound)
    assert "marked: even (2.00); slow (1.25)" in figure.get_label()
    curve = figure.axes[0].lines[0].get_ydata()
    assert max(curve) == pytest.approx(2) and curve[0] < 1.05 > curve[-1]


def test_all_stages_in_one_picture():
    counts = {"parameters_bytes": 4_000_000, "gradients_bytes": 2_000_000, "optimizer_bytes": 1_000_000, "peak_bytes": 9_500_000}
    figure = stages_figure({"one": counts, "two": counts}, {"one": {1: 3_000_000, 4: 12_000_000}, "two": {1: 5_000_000, 4: 6_000_000}})
    label = figure.get_label()
    assert "one: peak 9.5 (parameters 4, gradients 2, optimizer 1, what the peak adds 2.5); two" in label
    assert "one: 1 micro-batch 3, 4 micro-batches 12; two: 1 micro-batch 5, 4 micro-batches 6." in label
    assert label.endswith("in MB: one 7.0, two 7.0.")
    holds, sends = figure.axes
    assert [bar.get_x() + bar.get_width() for bar in holds.patches] == [4, 4, 6, 6, 7, 7, 9.5, 9.5]
    assert sorted(bar.get_width() for bar in sends.patches) == [3, 5, 6, 12]


def test_the_recorded_trial_is_one_round():
    """Chapter 08 shows it where a machine cannot have a limited link: its numbers belong together."""
    trial = recorded_trial()
    times = trial["compute"], trial["communication"]
    assert trial["bound"] == pytest.approx(speedup_bound(*times)) and trial["speedup"] == trial["off"] / trial["on"]
    assert trial["tight_bound"] == pytest.approx(speedup_bound(*times, trial["exposed"]))
    for mode in ("off", "on"):
        (events,) = trial["events"][mode]
        assert {event["rank"] for event in events} == {0}
        seconds = max(event["end"] for event in events) - min(event["start"] for event in events)
        assert seconds == pytest.approx(trial[mode], rel=0.3), "the events are those of the round"


def test_a_trial_reports_one_round_with_all_its_numbers():
    """Medians of each number by itself would not fit together: a bound would not be that of the times beside it."""
    rounds = [Round(1.0, 1.0, 0.1, 2.0, on) for on in (1.8, 1.0)] + [Round(1.0, 2.0, 0.1, 3.0, 2.5)]
    reported = summary(rounds)
    assert reported["round"] == 2 and not reported["noisy"]
    assert (reported["off"], reported["on"], reported["speedup"], reported["bound"]) == (3.0, 2.5, 1.2, 1.5)
