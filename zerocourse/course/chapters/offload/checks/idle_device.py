"""The check of 14.7: what a step with offload waits for."""

from collections import defaultdict

from ....checks import Trial, exercise

COMPUTE, HOST_LANES = "compute", ("down", "update", "up")


def lanes(compute, n, down, update, up, first, start=0):
    """A step: the device computes until `compute`; n blocks go through three hands, the first from `first` on."""
    rows, free = [{"lane": COMPUTE, "start": start, "end": compute}], dict.fromkeys(HOST_LANES, 0)
    for number in range(n):
        at = first + number
        for lane, takes in zip(HOST_LANES, (down, update, up), strict=True):
            begin = max(at, free[lane])
            at = free[lane] = begin + takes
            rows.append({"lane": lane, "start": begin, "end": at})
    return rows


SLOW_HOST, SLOW_UP = lanes(50, 4, 3, 20, 4, 52), lanes(40, 5, 6, 3, 9, 20)
EARLY_DOWN = lanes(100, 4, 22, 4, 6, 8)  # the way down is the busiest lane, and it is nearly over when the device stops
LATER = [row | {"start": row["start"] + 1000, "end": row["end"] + 1000} for row in lanes(60, 3, 5, 11, 10, 45)]
LATE = [{"lane": lane, "start": start, "end": end} for lane, start, end in  # the device waits before its first work, too
        (("up", 0, 30), (COMPUTE, 30, 50), ("down", 50, 55), ("update", 55, 65))]
BITS = [{"lane": lane, "start": start, "end": end} for lane, start, end in  # a long piece reaches in, several short ones lie inside
        ((COMPUTE, 0, 50), ("down", 30, 55), ("update", 60, 66), ("update", 70, 76), ("update", 80, 86), ("up", 88, 95))]
GAP = [{"lane": lane, "start": start, "end": end} for lane, start, end in
       ((COMPUTE, 0, 10), ("down", 8, 30), ("update", 30, 45), ("up", 45, 52), (COMPUTE, 52, 70), ("update", 55, 69))]

PAUSES = [{"lane": lane, "start": start, "end": end} for lane, start, end in  # the longest pause is not the most of them; rows in any order
          ((COMPUTE, 20, 30), (COMPUTE, 0, 10), ("up", 40, 47), ("up", 30, 37), ("update", 10, 20), (COMPUTE, 47, 50), (COMPUTE, 37, 40))]

UNSORTED = [{"lane": lane, "start": start, "end": end} for lane, start, end in
            ((COMPUTE, 50, 60), (COMPUTE, 0, 10), ("down", 10, 30), ("up", 60, 90), ("update", 90, 102))]


def overlap(row, spans):
    return sum(max(0, min(row["end"], end) - max(row["start"], begin)) for begin, end in spans)


def pauses(rows, key=lambda row: row["start"]):
    """(begin, end) of the times in which the device computes nothing."""
    at, found = min(row["start"] for row in rows), []
    for row in sorted((row for row in rows if row["lane"] == COMPUTE), key=key):
        found.append((at, row["start"]))
        at = row["end"]
    return [*found, (at, max(at, *(row["end"] for row in rows)))]


def idle_in(pauses):
    return lambda rows, spans: sum(end - begin for begin, end in pauses(rows))


@exercise(
    "14.7", "Read this timeline", minutes=25, difficulty=2,
    trials=[Trial([(SLOW_HOST,), (SLOW_UP,)]), Trial([(EARLY_DOWN,), (LATER,), (GAP,), (LATE,), (BITS,), (PAUSES,), (UNSORTED,)])],
    mistakes={
        "sum": {"step": lambda rows: sum(row["end"] - row["start"] for row in rows)},
        "from zero": {"step": lambda rows: max(row["end"] for row in rows)},
        "device alone": {"step": lambda rows: sum(row["end"] - row["start"] for row in rows if row["lane"] == COMPUTE)},
        "others' work": {"idle": lambda rows, spans: sum(row["end"] - row["start"] for row in rows if row["lane"] != COMPUTE)},
        "after the last": ({"idle": lambda rows, spans: sum(end - begin for begin, end in pauses(rows)[-1:])},
                           {"pauses": lambda rows: pauses(rows)[-1:]}),
        "before the first": ({"pauses": lambda rows: pauses(rows)[1:]}, {"pauses": lambda rows: pauses(rows)[1:], "idle": idle_in(pauses)}),
        "longest pause": {"pauses": lambda rows: [max(pauses(rows), key=lambda span: span[1] - span[0])], "idle": idle_in(pauses)},
        "as listed": {"pauses": lambda rows: pauses(rows, lambda row: 0)},
        "touches": {"counts": lambda row, spans: (row["end"] - row["start"]) * (overlap(row, spans) > 0)},
        "busiest": {"counts": lambda row, spans: row["end"] - row["start"]},
        "pieces": {"counts": lambda row, spans: int(overlap(row, spans) > 0)},
        "longest piece": {"longest": True},
        "ends last": {"choose": lambda rows, busy:
                      max(rows, key=lambda row: (row["end"], row["lane"] != COMPUTE))["lane"]},
        "begins first": {"choose": lambda rows, busy: min((row for row in rows if row["lane"] != COMPUTE),
                                                          key=lambda row: row["start"])["lane"]},
    })
def read_lanes(rows, *, step=lambda rows: max(row["end"] for row in rows) - min(row["start"] for row in rows),
               pauses=pauses, idle=lambda rows, spans: sum(end - begin for begin, end in spans), counts=overlap,
               choose=lambda rows, busy: max(busy, key=busy.get), longest=False):
    """The step's length, the device's idle time, and the lane that is busy for most of it."""
    spans, busy = pauses(rows), defaultdict(int)
    for row in rows:
        if row["lane"] != COMPUTE:
            busy[row["lane"]] = max(busy[row["lane"]], counts(row, spans)) if longest else busy[row["lane"]] + counts(row, spans)
    return {"step": step(rows), "idle": idle(rows, spans), "waits_for": choose(rows, busy)}
