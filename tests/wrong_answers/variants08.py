"""Wrong answers of chapter 08, the same mistakes by another hand."""

from collections import deque
from itertools import accumulate, islice

from wrong_answers import wrong

# 8.1 ----------------------------------------------------------------------------------------------------------------

@wrong("8.1", "seconds of the step")
def returns_the_denominator(compute, communication, exposed):
    hidden = communication - exposed
    before, after = compute + communication, exposed
    after += compute if compute >= hidden else hidden
    return min(before, after)


@wrong("8.1", "divided by the shorter one")
def over_the_minimum(compute, communication, exposed):
    try:
        return (compute + communication) / min([compute, communication])
    except ZeroDivisionError:
        return float("inf")


@wrong("8.1", "left out the exposed seconds")
def the_longer_lane(compute, communication, exposed):
    lanes = sorted([compute, communication])
    return sum(lanes) / lanes[-1]


@wrong("8.1", "exposed seconds twice")
def exposed_before_and_in(compute, communication, exposed):
    step = max(compute, communication)
    step += exposed
    before = compute + communication
    return before / step


@wrong("8.1", "never added them")
def only_what_is_left(compute, communication, exposed):
    communication_left = communication
    communication_left -= exposed
    if compute > communication_left:
        return (compute + communication) / compute
    return (compute + communication) / communication_left


@wrong("8.1", "turned the fraction over")
def new_over_old(compute, communication, exposed):
    old = compute + communication
    new = max(exposed + compute, communication)
    return new / old


@wrong("8.1", "let all communication hide")
def compute_is_all(compute, communication, exposed):
    without = compute + communication
    with_overlap = compute
    return without / with_overlap


# 8.2 ----------------------------------------------------------------------------------------------------------------

def _like_the_last(recorded, so_far):
    return len(so_far) <= len(recorded) and recorded[len(so_far) - 1] == so_far[-1]


@wrong("8.2", "first place in the recorded order")
def after_its_name(recorded, so_far, depth):
    places = {}
    for place, unit in enumerate(recorded):
        places.setdefault(unit, place)
    now = so_far[-1]
    if now not in places:
        return []
    following = recorded[places[now] + 1:places[now] + depth + 1]
    return list(dict.fromkeys(unit for unit in following if unit != now))


@wrong("8.2", "trusted the record")
def counts_and_looks(recorded, so_far, depth):
    coming = deque(recorded)
    for _ in so_far:
        if coming:
            coming.popleft()
    result = {}
    for unit in list(coming)[:depth]:
        result[unit] = True
    result.pop(so_far[-1], None)
    return [*result]


@wrong("8.2", "began with the unit that computes now")
def slice_from_here(recorded, so_far, depth):
    if not _like_the_last(recorded, so_far):
        return []
    result = []
    for unit in recorded[len(so_far) - 1:len(so_far) - 1 + depth]:
        if unit not in result:
            result.append(unit)
    return result


@wrong("8.2", "one unit more")
def up_to_and_with(recorded, so_far, depth):
    result, k = [], 0
    while _like_the_last(recorded, so_far) and k <= depth and len(so_far) + k < len(recorded):
        unit = recorded[len(so_far) + k]
        if unit != so_far[-1] and unit not in result:
            result.append(unit)
        k += 1
    return result


@wrong("8.2", "start of the order again")
def twice_the_record(recorded, so_far, depth):
    if not _like_the_last(recorded, so_far):
        return []
    endless = recorded * (depth // len(recorded) + 2)
    names = dict.fromkeys(endless[len(so_far):len(so_far) + depth])
    names.pop(so_far[-1], None)
    return list(names)


@wrong("8.2", "whole now, or named one twice")
def plain_slice(recorded, so_far, depth):
    *before, now = so_far
    place = len(before)
    if place >= len(recorded) or recorded[place] != now:
        return []
    return [recorded[i] for i in range(place + 1, min(place + 1 + depth, len(recorded)))]


@wrong("8.2", "farther than `depth` places")
def until_there_are_enough(recorded, so_far, depth):
    result = []
    if _like_the_last(recorded, so_far):
        for unit in recorded[len(so_far):]:
            if len(result) == depth:
                break
            if unit not in (*result, so_far[-1]):
                result.append(unit)
    return result


@wrong("8.2", "nearest unit is gathered first")
def put_in_front(recorded, so_far, depth):
    result = deque()
    if _like_the_last(recorded, so_far):
        for unit in recorded[len(so_far):len(so_far) + depth]:
            if unit != so_far[-1] and unit not in result:
                result.appendleft(unit)
    return list(result)


@wrong("8.2", "only the present place counts")
def whole_prefix(recorded, so_far, depth):
    here = len(so_far)
    if recorded[:here] != so_far:
        return []
    return [unit for unit in dict.fromkeys(recorded[here:here + depth]) if unit != so_far[-1]]


# 8.3 ----------------------------------------------------------------------------------------------------------------

def _most(blocks, width):
    sums = [0, *accumulate(blocks)]
    return max(sums[min(i + width, len(blocks))] - sums[i] for i in range(len(blocks)))


@wrong("8.3", "left out the root")
def blocks_alone(root, blocks, room):
    for depth in reversed(range(len(blocks))):
        if _most(blocks, depth + 1) <= room:
            return depth
    return None


@wrong("8.3", "so it is depth + 1")
def windows_of_depth(root, blocks, room):
    depth = len(blocks) - 1
    while depth >= 0 and root + _most(blocks, depth) > room:
        depth -= 1
    return None if depth < 0 else depth


@wrong("8.3", "largest block depth + 1 times")
def worst_block_everywhere(root, blocks, room):
    worst = sorted(blocks)[-1]
    best = None
    for depth in range(len(blocks)):
        if root + (depth + 1) * worst > room:
            break
        best = depth
    return best


@wrong("8.3", "first depth + 1 blocks only")
def cumulative(root, blocks, room):
    fits = [root + total <= room for total in accumulate(blocks)]
    return sum(fits) - 1 if any(fits) else None


@wrong("8.3", "to the last byte fits")
def less_than_room(root, blocks, room):
    best = None
    for depth in range(len(blocks)):
        if all(root + sum(blocks[i:i + depth + 1]) < room for i in range(len(blocks))):
            best = depth
    return best


@wrong("8.3", "Where not even one block fits, None is right: a depth")
def zero_is_the_least(root, blocks, room):
    return max([depth for depth in range(len(blocks)) if root + _most(blocks, depth + 1) <= room], default=0)


@wrong("8.3", "counted depth + 2 blocks")
def with_the_one_just_done(root, blocks, room):
    best = None
    for depth in range(len(blocks)):
        whole = [sum(block for j, block in enumerate(blocks) if i - 1 <= j <= i + depth) for i in range(len(blocks))]
        if root + max(whole) <= room:
            best = depth
    return best


@wrong("8.3", "also the last one")
def last_block_unseen(root, blocks, room):
    if blocks[0] + root > room:
        return None
    deepest = len(blocks) - 1
    for i in range(len(blocks) - 1):
        if root + blocks[i] > room:
            return None
        held, depth = root + blocks[i], 0
        for block in blocks[i + 1:]:
            held += block
            if held > room:
                deepest = min(deepest, depth)
                break
            depth += 1
    return deepest


# 8.4 ----------------------------------------------------------------------------------------------------------------

_TRAVELS, _COMPUTES = ("all_gather", "reduce_scatter"), ("forward", "backward", "step")


def _sweep(events, counts):
    """Seconds of the segments in which counts(how many of each verb are going on) is true, weighted with it."""
    edges = []
    for event in events:
        edges += [(event["start"], 1, event["verb"]), (event["end"], -1, event["verb"])]
    going, total, before = {}, 0.0, 0.0
    for time, change, verb in sorted(edges):
        total += (time - before) * counts(lambda *verbs: sum(going.get(each, 0) for each in verbs))
        going[verb] = going.get(verb, 0) + change
        before = time
    return total


@wrong("8.4", "added up all collectives")
def length_of_everything_sent(events):
    total = 0.0
    for event in events:
        if event["verb"] in _TRAVELS:
            total -= event["start"]
            total += event["end"]
    return total


@wrong("8.4", "added up the waits")
def stands_still(events):
    return _sweep(events, lambda going: going("wait"))


@wrong("8.4", "counted waiting as computing")
def without_the_waits(events):
    return _sweep(events, lambda going: going(*_TRAVELS) > 0 and not going(*_COMPUTES))


@wrong("8.4", "subtracted all compute from all")
def sums_and_difference(events):
    length = {}
    for event in events:
        length[event["verb"]] = length.get(event["verb"], 0.0) + event["end"] - event["start"]
    travels = sum(length.get(verb, 0.0) for verb in _TRAVELS)
    computes = sum(length.get(verb, 0.0) for verb in _COMPUTES)
    return travels - computes if travels > computes else 0.0


@wrong("8.4", "left out `step`")
def passes_only(events):
    def exposed(going):
        return going(*_TRAVELS) > 0 and (going("wait") > 0 or not going("forward", "backward"))
    return _sweep(events, exposed)


@wrong("8.4", "travel together once each")
def weighted_by_messages(events):
    def exposed(going):
        return going(*_TRAVELS) if going("wait") or not going(*_COMPUTES) else 0
    return _sweep(events, exposed)


# 8.5 ----------------------------------------------------------------------------------------------------------------

@wrong("8.5", "All gathers left at once")
def depth_is_ignored(x, layers, parameters, depth):
    waiting = deque(range(len(layers)))
    list(map(parameters.gather, waiting))
    while waiting:
        i = waiting.popleft()
        weight = parameters.wait(i)
        x = layers[i](x, weight)
        parameters.free(i)
    return x


@wrong("8.5", "had not left")
def gathers_after_computing(x, layers, parameters, depth):
    started = 0
    for i, layer in enumerate(layers):
        if i == started:
            parameters.gather(i)
            started += 1
        x = layer(x, parameters.wait(i))
        parameters.free(i)
        while started < min(len(layers), i + 1 + depth):
            parameters.gather(started)
            started += 1
    return x


@wrong("8.5", "nothing was freed")
def frees_all_at_the_end(x, layers, parameters, depth):
    ahead = iter(range(len(layers)))
    for _ in range(depth + 1):
        if (i := next(ahead, None)) is not None:
            parameters.gather(i)
    for i, layer in enumerate(layers):
        x = layer(x, parameters.wait(i))
        if (j := next(ahead, None)) is not None:
            parameters.gather(j)
    for i in range(len(layers)):
        parameters.free(i)
    return x


@wrong("8.5", "nothing overlaps: wait for")
def a_queue_of_weights(x, layers, parameters, depth):
    queue, started = deque(), 0
    for i, layer in enumerate(layers):
        while started < len(layers) and len(queue) <= depth:
            parameters.gather(started)
            queue.append(parameters.wait(started))
            started += 1
        x = layer(x, queue.popleft())
        parameters.free(i)
    return x


@wrong("8.5", "freed before the next gather begins")
def frees_the_one_before(x, layers, parameters, depth):
    started, before = 0, None
    for i, layer in enumerate(layers):
        while started <= i + depth and started < len(layers):
            parameters.gather(started)
            started += 1
        if before is not None:
            parameters.free(before)
        x = layer(x, parameters.wait(i))
        before = i
    parameters.free(before)
    return x


@wrong("8.5", "after the last one there")
def one_ahead_of_the_end(x, layers, parameters, depth):
    for i in range(min(depth + 1, len(layers))):
        parameters.gather(i)
    i = 0
    while i < len(layers):
        x = layers[i](x, parameters.wait(i))
        parameters.free(i)
        parameters.gather(i + depth + 1)
        i += 1
    return x


@wrong("8.5", "gathered already")
def every_window_anew(x, layers, parameters, depth):
    n = len(layers)
    for i in range(n):
        window = list(range(n))[i:i + depth + 1]
        for j in window:
            parameters.gather(j)
        weight = parameters.wait(window[0])
        x = layers[i](x, weight)
        parameters.free(window[0])
    return x


@wrong("8.5", "was never gathered, or freed")
def begins_with_the_second(x, layers, parameters, depth):
    started = 1
    for i, layer in enumerate(layers):
        while started < min(len(layers), i + depth + 1):
            parameters.gather(started)
            started += 1
        x = layer(x, parameters.wait(i))
        parameters.free(i)
    return x


@wrong("8.5", "was never called")
def takes_the_rows_as_they_are(x, layers, parameters, depth):
    ahead = iter(range(len(layers)))
    for i in islice(ahead, depth + 1):
        parameters.gather(i)
    for i, layer in enumerate(layers):
        row = parameters.rows[i][0]
        x = layer(x, row[:16].unflatten(0, (4, 4)))
        parameters.free(i)
        for later in islice(ahead, 1):
            parameters.gather(later)
    return x


# 8.6 ----------------------------------------------------------------------------------------------------------------

def _run(blocks, prefetch, bucket_bytes, rate, *, places=None, horizon=None, waits=True, one_lane=True, last=True,
         closes=None, stands=False, bucket_late=False):
    """A right one in one loop, with a switch for every mistake."""
    n, events = len(blocks), []
    places = places or [*range(n), *range(n - 1, -1, -1)]
    horizon = horizon or (lambda place: place + prefetch)
    closes = closes or (lambda held: held >= bucket_bytes)
    clock = {"compute": 0.0, "link": 0.0}
    there, held, owed = {}, 0.0, None

    def travel(what, block, nbytes):
        begin = max(clock.values()) if one_lane else clock["compute"]
        clock["link"] = begin + nbytes / rate
        events.append((what, block, begin, clock["link"]))

    for place, block in enumerate(places):
        for ahead in range(place, min(horizon(place), 2 * n - 1) + 1):
            if ahead not in there:
                travel("gather", places[ahead], blocks[places[ahead]][2])
                there[ahead] = clock["link"]
        if owed:
            travel("reduce", *owed)
            owed = None
        kind = int(place >= n)
        begin = max(clock["compute"], there[place]) if waits else clock["compute"]
        clock["compute"] = begin + blocks[block][kind]
        events.append((("forward", "backward")[kind], block, begin, clock["compute"]))
        held += kind * blocks[block][2]
        end = last and place == 2 * n - 1
        if kind and (closes(held) or end):
            if bucket_late and not end:
                owed = block, held
            else:
                travel("reduce", block, held)
            if stands:
                clock["compute"] = clock["link"]
            held = 0.0
    return events


@wrong("8.6", "several messages travel at the same time")
def no_queue_on_the_link(blocks, prefetch, bucket_bytes, rate):
    return _run(blocks, prefetch, bucket_bytes, rate, one_lane=False)


@wrong("8.6", "before its parameters were there")
def computes_at_once(blocks, prefetch, bucket_bytes, rate):
    return _run(blocks, prefetch, bucket_bytes, rate, waits=False)


@wrong("8.6", "kept the parameters from the forward")
def gathered_by_block(blocks, prefetch, bucket_bytes, rate):
    places = [*range(len(blocks)), *reversed(range(len(blocks)))]
    done, now, link, held, events = {}, 0.0, 0.0, 0.0, []
    for place, block in enumerate(places):
        for ahead in places[place:place + prefetch + 1]:
            if ahead not in done:
                begin = max(now, link)
                done[ahead] = link = begin + blocks[ahead][2] / rate
                events.append(("gather", ahead, begin, link))
        begin = max(now, done[block])
        backward = place >= len(blocks)
        now = begin + blocks[block][backward]
        events.append(("backward" if backward else "forward", block, begin, now))
        if backward:
            held += blocks[block][2]
            if held >= bucket_bytes or block == 0:
                begin, link = max(now, link), max(now, link) + held / rate
                events.append(("reduce", block, begin, link))
                held = 0.0
    return events


@wrong("8.6", "stopped looking ahead at the end of the forward")
def each_pass_by_itself(blocks, prefetch, bucket_bytes, rate):
    n = len(blocks)
    return _run(blocks, prefetch, bucket_bytes, rate,
                horizon=lambda place: min(place + prefetch, (place // n + 1) * n - 1))


@wrong("8.6", "The last bucket never left")
def only_full_buckets(blocks, prefetch, bucket_bytes, rate):
    return _run(blocks, prefetch, bucket_bytes, rate, last=False)


@wrong("8.6", "only when it had more than")
def above_the_limit(blocks, prefetch, bucket_bytes, rate):
    return _run(blocks, prefetch, bucket_bytes, rate, closes=lambda held: not held <= bucket_bytes)


@wrong("8.6", "stood still while a bucket travelled")
def waits_for_its_reduction(blocks, prefetch, bucket_bytes, rate):
    return _run(blocks, prefetch, bucket_bytes, rate, stands=True)


@wrong("8.6", "the bucket comes first")
def gathers_before_the_bucket(blocks, prefetch, bucket_bytes, rate):
    return _run(blocks, prefetch, bucket_bytes, rate, bucket_late=True)


@wrong("8.6", "a list of events (what, block, start, end) is wanted")
def lane_by_lane(blocks, prefetch, bucket_bytes, rate):
    lanes = {"compute": [], "link": []}
    for event in _run(blocks, prefetch, bucket_bytes, rate):
        lanes["link" if event[0] in ("gather", "reduce") else "compute"].append(event)
    return lanes
