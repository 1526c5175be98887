"""Wrong answers of chapter 14."""

from itertools import combinations

from wrong_answers import wrong


@wrong("14.1", "down only")
def counts_what_arrives(edges, on_host):
    total = 0
    for start, end, nbytes in edges:
        if start not in on_host and end in on_host:
            total += nbytes
    return total


@wrong("14.2", "each micro-batch")
def sends_all(params, ranks, micro_batches, fp32_gradients, parameters):
    own = params // ranks
    down = (4 if fp32_gradients else 2) * micro_batches * own
    return down, 4 * micro_batches * own if parameters else 2 * own


@wrong("14.3", "no flush")
def forgets_the_last(x, gradient, rates, after):
    kept, values = None, []
    for k, rate in enumerate(rates):
        new = rate * gradient(x, k)
        if k < after:
            x = x - new
        else:
            x, kept = x - (kept or 0), new
        values.append(x)
    return [*values, x]


@wrong("14.4", "last only")
def overwrites(grads, mean_over_ranks):
    for grad in grads:
        host = mean_over_ranks(grad) if grad is grads[-1] else None
    return host / len(grads)


@wrong("14.5", "no queue")
def all_at_once(ready, sizes, rate):
    return [moment + size / rate for moment, size in zip(ready, sizes, strict=True)]


@wrong("14.6", "below")
def stays_below(edges, held, limit):
    best = sum(held.values())
    for count in range(len(held) + 1):
        for host in map(set, combinations(held, count)):
            moved = sum(n for a, b, n in edges if (a in host) != (b in host))
            if moved < limit or moved == limit == 0:
                best = min(best, sum(n for name, n in held.items() if name not in host))
    return best


@wrong("14.7", "busiest")
def adds_lanes(rows):
    first, last = min(row["start"] for row in rows), max(row["end"] for row in rows)
    lanes = {}
    for row in rows:
        lanes[row["lane"]] = lanes.get(row["lane"], 0) + row["end"] - row["start"]
    idle = last - first - lanes.pop("compute")
    return {"step": last - first, "idle": idle, "waits_for": sorted(lanes, key=lanes.get)[-1]}
