"""Wrong answers of chapter 14."""

from itertools import combinations

import torch
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


@wrong("14.5", "all again")
def nothing_is_kept(device, layers):
    for layer in range(layers):
        device.fetch(layer), device.forward(layer), device.drop(layer)
    for layer in range(layers - 1, -1, -1):
        device.fetch(layer), device.backward(layer), device.drop(layer)


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


@wrong("14.5", "no room")
def fetches_before_it_drops(device, layers):
    steps = [("forward", layer) for layer in range(layers)] + [("backward", layer) for layer in reversed(range(layers))]
    for what, layer in steps:
        if layer not in device.there:
            device.fetch(layer)
        getattr(device, what)(layer)
        while len(device.there) > device.room:
            device.drop(min(device.there))
    for layer in list(device.there):
        device.drop(layer)


@wrong("14.5", "the last alone")
def room_for_two_halves(device, layers):
    for layer in range(layers):
        device.fetch(layer)
        device.forward(layer)
        if layer + 1 < layers:
            device.drop(layer)
    for layer in reversed(range(layers)):
        if layer + 1 < layers:
            device.fetch(layer)
        device.backward(layer)
        device.drop(layer)


@wrong("14.6", "no limit")
def among_placed_boxes(edges, held, limit):
    names, best = list(held), sum(held.values())
    for bits in range(2 ** len(names)):
        host = {name for i, name in enumerate(names) if bits >> i & 1}
        moved = sum(n for a, b, n in edges if a in held and b in held and (a in host) != (b in host))
        if moved <= limit:
            best = min(best, sum(size for name, size in held.items() if name not in host))
    return best


@wrong("14.6", "inside too")
def counts_all_edges_at_the_host(edges, held, limit):
    hosts = [set(host) for count in range(len(held) + 1) for host in combinations(held, count)]
    return min(sum(size for name, size in held.items() if name not in host) for host in hosts
               if sum(n for a, b, n in edges if a in host or b in host) <= limit)


@wrong("14.7", "as listed")
def pauses_as_listed(rows):
    first, last = min(row["start"] for row in rows), max(row["end"] for row in rows)
    compute = [row for row in rows if row["lane"] == "compute"]
    spans = list(zip([first, *(row["end"] for row in compute)], [*(row["start"] for row in compute), last], strict=True))
    lanes = dict.fromkeys(("down", "update", "up"), 0)
    for row in rows:
        if row["lane"] in lanes:
            lanes[row["lane"]] += sum(max(0, min(end, row["end"]) - max(begin, row["start"])) for begin, end in spans)
    return {"step": last - first, "idle": sum(end - begin for begin, end in spans), "waits_for": max(lanes, key=lanes.get)}


@wrong("14.3", "first at once")
def both_in_one_step(x, gradient, rates, after):
    values, waiting = [], None
    for k, rate in enumerate(rates):
        new = rate * gradient(x, k)
        if k <= after:
            x = x - new
        if k >= after:
            x, waiting = x - (waiting or 0), new
        values.append(x)
    return [*values, x - (waiting or 0)]


# 14.w1 --------------------------------------------------------------------------------------------------------------

@wrong("14.w1", "fp32 down")
def as_deepspeed_does(link, params, masters, optimizer):
    for param, master in zip(params, masters, strict=True):
        master.grad = link.down(param.grad.to(torch.float32))
    optimizer.step()
    with torch.no_grad():
        for param, master in zip(params, masters, strict=True):
            param.copy_(link.up(master.to(param.dtype)))


@wrong("14.w1", "fp32 up")
def rounds_on_the_device(link, params, masters, optimizer):
    for param, master in zip(params, masters, strict=True):
        master.grad = link.down(param.grad).to(master.dtype)
    optimizer.step()
    for param, master in zip(params, masters, strict=True):
        param.data.copy_(link.up(master))


@wrong("14.w1", "not shown")
def a_new_name(link, params, masters, optimizer):
    for param, master in zip(params, masters, strict=True):
        master.grad = link.down(param.grad).float()
    optimizer.step()
    for param, master in zip(params, masters, strict=True):
        param = link.up(master.bfloat16())


@wrong("14.w1", "another tensor")
def new_data(link, params, masters, optimizer):
    for i, param in enumerate(params):
        masters[i].grad = link.down(param.grad).float()
    optimizer.step()
    for i, param in enumerate(params):
        param.data = link.up(masters[i].detach().bfloat16())


# 14.w2 --------------------------------------------------------------------------------------------------------------

@wrong("14.w2", "no queue")
def each_alone(ready, hands):
    return [moment + sum(hands) for moment in ready]


@wrong("14.w2", "one at a time")
def one_after_the_other(ready, hands):
    ends, now = [], 0
    for moment in ready:
        now = max(now, moment) + sum(hands)
        ends.append(now)
    return ends


@wrong("14.w2", "not ready")
def as_hands_get_free(ready, hands):
    free, ends = [0] * len(hands), []
    for _ in ready:
        for i in range(len(hands)):
            free[i] += hands[i]
        ends.append(free[-1])
    return ends


@wrong("14.w2", "slowest hand alone")
def the_bottleneck(ready, hands):
    ends, now = [], 0
    for moment in ready:
        now = max(now, moment) + max(hands)
        ends.append(now)
    return ends
