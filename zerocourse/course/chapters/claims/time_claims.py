"""Claims about time: what overlap can bring, and what happens when the number of ranks changes."""

import json

from ....formulas.step_time import speedup_bound
from ...trials.overlap_trial import recorded_trial
from ..checkpoints.elastic_trial import RECORDED
from .claim import FALSE, ONLY_IF, TRUE, Claim, Evidence, Judgement

GROUP = "time"


# -- prefetch brings 23 % ----------------------------------------------------------------------------------------------

def prefetch() -> Evidence:
    trial, gain = recorded_trial(), 0.23
    return {"claimed_gain": gain, "best_gain_at_M_over_C": {ratio: speedup_bound(1, ratio) - 1
                                                            for ratio in (0.05, gain, 1, 1 / gain, 20)},
            "low_ratio": gain, "high_ratio": 1 / gain,
            "largest_gain_of_all": max(speedup_bound(1, 10 ** (power / 100)) - 1 for power in range(-200, 201)),
            "measured_M_over_C": trial["communication"] / trial["compute"], "measured_gain": trial["speedup"] - 1}


def judge_prefetch(e: Evidence) -> Judgement:
    settles = "the bound goes from nothing to {largest_gain_of_all:.0%}; measured here: {measured_gain:.0%}"
    if e["claimed_gain"] > e["largest_gain_of_all"]:
        return Judgement(FALSE, settles)
    if e["claimed_gain"] <= min(e["best_gain_at_M_over_C"].values()):
        return Judgement(TRUE, settles)
    return Judgement(ONLY_IF, settles, "communication takes at least {low_ratio:.2f} and at most {high_ratio:.1f} "
                     "times as long as computing, and enough of it is hidden")


# -- elastic training needs no restart ---------------------------------------------------------------------------------

def elastic() -> Evidence:
    attempts = json.loads(RECORDED.read_text())
    rows = [row for attempt in attempts for row in attempt["rows"] if row["rank"] == 0]
    steps = [row["step"] for row in rows]
    return {"attempts": len(attempts), "ranks_of_each": [attempt["rows"][0]["ranks"] for attempt in attempts],
            "processes": len({row["pid"] for row in rows}), "steps": len(set(steps)),
            "steps_computed_twice": len(steps) - len(set(steps))}


def judge_elastic(e: Evidence) -> Judgement:
    return Judgement(TRUE if e["processes"] == 1 else FALSE,
                     "{processes} processes in {attempts} attempts, and {steps_computed_twice} steps computed twice")


CLAIMS = (
    Claim("prefetch: 23 %", GROUP, "time", "Prefetching parameters makes ZeRO-3 23 % faster.", prefetch, judge_prefetch,
          "It can, and by much more: {measured_gain:.0%} on our limited link, where communication takes "
          "{measured_M_over_C:.2f} times as long as computing.",
          "The time that communication takes for each second of computing. Without it no percentage of this kind says "
          "anything. We looked for the source of this one, and have not found it.",
          "a measurement that was kept, zerocourse/course/trials/recorded_trial.json"),
    Claim("elastic: no restart", GROUP, "time", "With elastic training, workers come and go without a restart.",
          elastic, judge_elastic,
          "The job does not end, and nobody has to do anything: torchrun's agent starts the workers again, and they go "
          "on from a checkpoint.",
          "Processes that survive and form new groups among themselves. Here every change of the number of ranks "
          "({ranks_of_each}) made new processes.",
          "a run that was kept, zerocourse/course/chapters/checkpoints/recorded_restarts.json"),
)
