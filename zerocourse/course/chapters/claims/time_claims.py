"""Claims about time: what overlap can bring, and what happens when the number of ranks changes."""

from ....formulas.time.step_time import speedup_bound
from ...trials.overlap_trial import recorded_trial
from ..checkpoints import elastic_trial
from .claim import Evidence, judges


def prefetch() -> Evidence:
    trial, gain = recorded_trial(), 0.23
    return {"claimed_gain": gain, "best_gain_at_communication_over_computing": {ratio: speedup_bound(1, ratio) - 1
                                                            for ratio in (0.05, gain, 1, 1 / gain, 20)},
            "low_ratio": gain, "high_ratio": 1 / gain,
            "largest_gain_of_all": max(speedup_bound(1, 10 ** (power / 100)) - 1 for power in range(-200, 201)),
            "measured_communication_over_computing": trial["communication"] / trial["compute"], "measured_gain": trial["speedup"] - 1}


@judges("prefetch: 23 %", prefetch)
def can_be(e):
    """At the best ratio, and at each."""
    return [e["claimed_gain"] <= e["largest_gain_of_all"], e["claimed_gain"] <= min(e["best_gain_at_communication_over_computing"].values())]


def elastic() -> Evidence:
    attempts = elastic_trial.recorded()
    rows = [row for attempt in attempts for row in attempt["rows"] if row["rank"] == 0]
    steps = [row["step"] for row in rows]
    return {"attempts": len(attempts), "ranks_of_each": [attempt["rows"][0]["ranks"] for attempt in attempts],
            "processes": len({row["pid"] for row in rows}), "steps": len(set(steps)),
            "steps_computed_twice": len(steps) - len(set(steps))}


@judges("elastic: no restart", elastic)
def the_same_process(e):
    return e["processes"] == 1
