"""Wrong answers of chapter 08."""

from collections import deque

from wrong_answers import wrong


# 8.1 ----------------------------------------------------------------------------------------------------------------

@wrong("8.1", "twice")
def exposed_before_and_in(compute, communication, exposed):
    step = max(compute, communication)
    step += exposed
    return (compute + communication) / step


# 8.2 ----------------------------------------------------------------------------------------------------------------

@wrong("8.2", "place of its name")
def after_its_name(recorded, so_far, depth):
    place = recorded.index(so_far[-1])
    return list(dict.fromkeys(recorded[place + 1:place + 1 + depth]))


@wrong("8.2", "farther")
def until_there_are_enough(recorded, so_far, depth):
    result = []
    if len(so_far) <= len(recorded) and recorded[len(so_far) - 1] == so_far[-1]:
        for unit in recorded[len(so_far):]:
            if len(result) == depth:
                break
            if unit not in (*result, so_far[-1]):
                result.append(unit)
    return result


# 8.3 ----------------------------------------------------------------------------------------------------------------

SEEN = {"waited": 410.4, "under_way": 561.8, "longest_wait": ("reduce_scatter", "h.1"), "later": 159,
        "buckets": ["h.4", "h.3", "h.2", "h.1", "h.0", "root[1]", "root[0]"], "peak": 1823616, "peak_in": "h.2",
        "prefetch": 2}


@wrong("8.3", "bucket's unit")
def the_unit_of_the_highest_event():
    return {**SEEN, "peak_in": "h.4"}


@wrong("8.3", "ends")
def when_they_were_complete():
    return {**SEEN, "later": 588.9 - 545.1, "prefetch": 3}


# 8.4 ----------------------------------------------------------------------------------------------------------------

def _seconds(events, counts):
    """Seconds during which counts(how many events of each verb are going on) is true."""
    edges = []
    for event in events:
        edges += [(event["start"], 1, event["verb"]), (event["end"], -1, event["verb"])]
    going, total, before = {}, 0.0, 0.0
    for time, change, verb in sorted(edges):
        total += (time - before) * bool(counts(going))
        going[verb] = going.get(verb, 0) + change
        before = time
    return total


@wrong("8.4", "no step")
def passes_only(events):
    def exposed(going):
        travels = going.get("all_gather") or going.get("reduce_scatter")
        return travels and (going.get("wait") or not (going.get("forward") or going.get("backward")))
    return _seconds(events, exposed)


@wrong("8.4", "rounded")
def in_tenths(events):
    def under_way(verbs, moment):
        return any(event["verb"] in verbs and event["start"] <= moment < event["end"] for event in events)

    count = 0
    for tenth in range(int(10 * max([event["end"] for event in events], default=0))):
        moment = tenth / 10 + 0.05
        computes = under_way(("forward", "backward", "step"), moment) and not under_way(("wait",), moment)
        count += under_way(("all_gather", "reduce_scatter"), moment) and not computes
    return count / 10


# 8.5 ----------------------------------------------------------------------------------------------------------------

@wrong("8.5", "waits at once")
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


@wrong("8.5", "misused")
def over_the_end(x, layers, parameters, depth):
    for j in range(depth):
        parameters.gather(j)
    for i, layer in enumerate(layers):
        parameters.gather(i + depth)
        x = layer(x, parameters.wait(i))
        parameters.free(i)
    return x


# 8.6 ----------------------------------------------------------------------------------------------------------------

def _step(blocks, prefetch, bucket_bytes, rate, lane, gathered):
    """lane(what): the link of a message.   gathered(place, block): by what a gather is known, which is made once."""
    places = [*range(len(blocks)), *reversed(range(len(blocks)))]
    done, free, now, held, events = {}, {}, 0.0, 0.0, []

    def send(what, block, size):
        begin = max(now, free.get(lane(what), 0.0))
        free[lane(what)] = begin + size / rate
        events.append([what, block, begin, free[lane(what)]])
        return free[lane(what)]

    for place, block in enumerate(places):
        for ahead in range(place, min(place + prefetch + 1, len(places))):
            key = gathered(ahead, places[ahead])
            if key not in done:
                done[key] = send("gather", places[ahead], blocks[places[ahead]][2])
        begin, backward = max(now, done[gathered(place, block)]), place >= len(blocks)
        now = begin + blocks[block][backward]
        events.append(["backward" if backward else "forward", block, begin, now])
        if backward:
            held += blocks[block][2]
            if held >= bucket_bytes or block == 0:
                send("reduce", block, held)
                held = 0.0
    return events


@wrong("8.6", "kept")
def gathered_by_block(blocks, prefetch, bucket_bytes, rate):
    return _step(blocks, prefetch, bucket_bytes, rate, lambda what: "link", lambda place, block: block)


@wrong("8.6", "second link")
def a_link_each(blocks, prefetch, bucket_bytes, rate):
    return _step(blocks, prefetch, bucket_bytes, rate, lambda what: what, lambda place, block: place)


# 08.w1 --------------------------------------------------------------------------------------------------------------

@wrong("08.w1", "not the unit itself")
def those_after_it(order, unit, ahead, gathered):
    place = order.index(unit) + 1
    return [each for each in order[place:place + ahead] if each not in gathered]


@wrong("08.w1", "gathered again")
def all_of_them(order, unit, ahead, gathered):
    place = order.index(unit)
    return order[place:place + ahead + 1]


@wrong("08.w1", "one fewer")
def so_many_in_all(order, unit, ahead, gathered):
    place = order.index(unit)
    return [each for each in order[place:place + max(1, ahead)] if each not in gathered]


@wrong("08.w1", "a set")
def what_is_missing(order, unit, ahead, gathered):
    place = order.index(unit)
    return set(order[place:place + ahead + 1]) - gathered


@wrong("08.w1", "raised")
def by_number(order, unit, ahead, gathered):
    place = order.index(unit)
    return [order[place + number] for number in range(ahead + 1) if order[place + number] not in gathered]


# 08.w2 --------------------------------------------------------------------------------------------------------------

@wrong("08.w2", "one after the other")
def added(compute, communication, exposed):
    return compute + communication


@wrong("08.w2", "hidden completely")
def the_longer(compute, communication, exposed):
    return compute if compute > communication else communication


@wrong("08.w2", "counted twice")
def and_the_ends(compute, communication, exposed):
    return max(compute, communication) + exposed


@wrong("08.w2", "never added")
def what_can_hide(compute, communication, exposed):
    return max(compute, communication - exposed)
