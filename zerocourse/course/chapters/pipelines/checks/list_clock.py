"""The check of 17.6: a clock that runs lists."""

from ....checks import exercise


def lists(*words):
    """One list for each rank, from words such as "F0 F1 B0 B1"."""
    return [[(each[0], int(each[1:])) for each in text.split()] for text in words]


TWO = lists("F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2")
CASES = [(TWO, 1, 2, 0), (lists("F0 B0"), 1, 2, 5), (lists("F0 F1", "F0 F1"), 1, 2, 3), (lists("F0 B0", "B0 F0"), 1, 2, 0),
         (lists("F0 F1 F2 B0 B1 B2", "F0 F1 F2 B0 B1 B2"), 1, 2, 0), (TWO, 1, 2, 1),
         (lists("F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"), 2, 3, 1),
         (lists("F0 B0 F1 B1", "F0 B0 F1 B1", "F0 B0 F1 B1"), 1, 1, 2), (lists("F0 B0 F1 B1", "F0 F1 B0 B1"), 1, 2, 0),
         (lists("B0 F0", "F0 B0"), 1, 2, 0), (lists("F0", "F0 B0 F1"), 1, 1, 0),
         (lists("F0 B0 F1 F2 B1 B2"), 1, 2, 0)]


@exercise(
    "17.6", "A clock for lists", minutes=50, difficulty=3, cases=CASES,
    mistakes={
        "no transfers": {"late": lambda kind, transfer: 0},
        "gradients at once": {"late": lambda kind, transfer: transfer if kind == "F" else 0},
        "activations at once": {"late": lambda kind, transfer: transfer if kind == "B" else 0},
        "sending takes time": {"busy": lambda transfer: transfer},
        "idle inside": {"idle": lambda begun, ended, most: ended - begun},
        "from its begin": {"idle": lambda begun, ended, most: most - begun},
        "to its end": {"idle": lambda begun, ended, most: ended},
        "kept for ever": {"frees": False},
        "kept at the end": {"last": True},
        "kept at first": {"early": True},
        "one round": {"rounds": 1},
        "nobody waits": {"waits": ()},
        "gradients are there": {"waits": ("F",)},
        "its own forward": {"own": False},
        "half a run": ({"none": lambda waits: False}, {"none": all}),
        "end of rank 0": {"end": lambda clock: clock[0]},
    })
def run_lists(lists, forward, backward, transfer, *, late=lambda kind, transfer: transfer, busy=lambda transfer: 0,
              idle=lambda begun, ended, most: most, frees=True, last=False, early=False, rounds=10**6, waits=("F", "B"), own=True,
              none=any, end=max):
    """Each rank goes on when what it needs has arrived."""
    ranks, at, clock, work = len(lists), [0] * len(lists), [0] * len(lists), [0] * len(lists)
    done, begun, kept, most_kept = {}, {}, [0] * len(lists), [0] * len(lists)
    moved = True
    while moved and rounds:
        moved, rounds = False, rounds - 1
        for rank, actions in enumerate(lists):
            while at[rank] < len(actions):
                kind, number = actions[at[rank]]
                source = rank - 1 if kind == "F" else rank + 1
                needs = [(kind, source, number)] if 0 <= source < ranks and kind in waits else []
                if kind == "B" and rank == ranks - 1 and own:
                    needs = [("F", rank, number)]
                if any(need not in done for need in needs):
                    break
                arrived = max((done[need] + (late(kind, transfer) if need[1] != rank else 0) for need in needs), default=0)
                begin = max(clock[rank], arrived)
                begun.setdefault(rank, begin)
                seconds = forward if kind == "F" else backward
                done[kind, rank, number] = begin + seconds
                clock[rank] = begin + seconds + (busy(transfer) if 0 <= 2 * rank - source < ranks else 0)
                work[rank] += seconds
                kept[rank] += 1 if kind == "F" else -1 if frees else 0
                if not early or all(kind == "F" for kind, _ in actions[:at[rank]]):
                    most_kept[rank] = max(most_kept[rank], kept[rank])
                at[rank] += 1
                moved = True
    if none(at[rank] < len(actions) for rank, actions in enumerate(lists)):
        return None
    most = end(clock)
    return {"end": most, "idle": [idle(begun.get(rank, 0), clock[rank], most) - work[rank] for rank in range(ranks)],
            "kept": kept if last else most_kept}
