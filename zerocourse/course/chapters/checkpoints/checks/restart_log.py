"""The checks of 12.1 and 12.2: what a log of attempts says, and how often to save."""

import math
from itertools import pairwise

from .....formulas.time.interruptions import best_interval as own_interval
from ....checks import Trial, exercise

# 12.1 ---------------------------------------------------------------------------------------------------------------

def log(*attempts, every=5):
    """Rows of a run that saves every so many steps, from (first step, last step, ranks) of each attempt."""
    return [{"attempt": number, "step": step, "ranks": ranks, "saved": step % every == 0}
            for number, (first, last, ranks) in enumerate(attempts, 1) for step in range(first, last + 1)]


LOGS = [log((1, 13, 4), (11, 22, 4), (21, 30, 4)), log((1, 9, 4), (6, 12, 3), (11, 15, 2)),
        log((1, 9, 4), (6, 18, 3), (16, 25, 4)), log((1, 3, 2), (1, 12, 2)),
        log((1, 12, 3)), log((1, 10, 2), (11, 20, 2)), log((1, 14, 4), (11, 13, 4), (11, 20, 4)), log((1, 8, 2), (6, 7, 1)),
        log((1, 3, 2), (1, 4, 2), every=9), [row for row in log((1, 7, 4), (6, 6, 4), (6, 12, 4)) if row["attempt"] != 2]]


@exercise(
    "12.1", "Read the log", minutes=10, difficulty=1,
    trials=[Trial([(each,)]) for each in LOGS],
    mistakes={
        "all rows": {"twice": lambda rows: len(rows)},
        "steps once": {"twice": lambda rows: len({r["step"] for r in rows if sum(o["step"] == r["step"] for o in rows) > 1})},
        "last step": {"twice": lambda rows: len(rows) - max(r["step"] for r in rows) if rows[-1]["attempt"] < 2 else
                      sum(1 for r in rows if r["attempt"] == 2 and any(o["attempt"] == 1 and o["step"] == r["step"]
                                                                     for o in rows))},
        "attempts with a step": {"restarts": lambda rows: len({row["attempt"] for row in rows}) - 1},
        "first row": {"safe": lambda rows: max((row["step"] for row in rows if row["saved"]), default=rows[0]["step"])},
        "attempts": {"restarts": lambda rows: rows[-1]["attempt"]},
        "latest row": {"safe": lambda rows: rows[-1]["step"]},
        "saves": {"safe": lambda rows: sum(r["saved"] for r in rows)},
        "first save": {"safe": lambda rows: next((r["step"] for r in rows if r["saved"]), 0)},
        "ranks": {"changes": lambda rows: len({r["ranks"] for r in rows}) - 1},
        "not again": {"changes": lambda rows: sum(r["ranks"] != rows[0]["ranks"] for r in rows) > 0},
    })
def read_log(rows, *, twice=lambda rows: len(rows) - len({row["step"] for row in rows}),
             restarts=lambda rows: rows[-1]["attempt"] - 1,
             safe=lambda rows: max((row["step"] for row in rows if row["saved"]), default=0),
             changes=lambda rows: sum(one["ranks"] != other["ranks"] for one, other in pairwise(rows))):
    """What a log says."""
    return {"restarts": restarts(rows), "wasted": twice(rows), "safe": safe(rows), "changes": int(changes(rows))}


# 12.2 ---------------------------------------------------------------------------------------------------------------

@exercise(
    "12.2", "How often to save", minutes=10, difficulty=1,
    own=lambda save, mean, machines: own_interval(save, mean / machines), replaces=("zerocourse.formulas.time.interruptions:*",),
    sample=lambda random: (random.uniform(1, 100), random.uniform(1e5, 1e8), random.randint(1, 4000)),
    trials=[Trial([(50.0, 10000.0, 1), (8.0, 4e6, 1)], close=1e-6),  # a search for the minimum finds no more digits than that
            Trial([(8.0, 4e6, 16), (30.0, 1e8, 2048)], close=1e-6)],
    mistakes={
        "no two": {"two": 1},
        "no root": {"root": lambda value: value},
        "one machine": {"of_all": lambda mean, machines: mean},
        "more machines": {"of_all": lambda mean, machines: mean * machines},
        "root of machines": {"of_all": lambda mean, machines: mean / math.sqrt(machines)},
        "divided after": lambda save, mean, machines: save_every(save, mean, 1) / machines,
        "the save too": lambda save, mean, machines: save_every(save, mean, machines) + save,
        "turned over": lambda save, mean, machines: 1 / save_every(save, mean, machines),
        "minutes": lambda save, mean, machines: save_every(save, mean, machines) / 60,
        "half the mean": {"two": 0.5},
    })
def save_every(save, mean, machines, *, two=2, root=math.sqrt,
               of_all=lambda mean, machines: mean / machines):
    """Seconds of training between two saves."""
    return root(two * save * of_all(mean, machines))
