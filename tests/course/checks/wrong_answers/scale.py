"""Wrong answers of chapter 25."""

import math

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from wrong_answers import wrong


@wrong("25.1", "no floor")
def states_alone(params, floor, card):
    if card < floor + 16:
        return None
    return math.ceil(params / (card // 16))


@wrong("25.1", "one parameter")
def wants_room_for_two(params, floor, card):
    share = (card - floor) // 16
    return math.ceil(params / share) if share > 1 else None


@wrong("25.2", "lost")
def all_alike(numel, ranks, align):
    size = -(-numel // align) // ranks * align
    return [min(size * rank, numel) for rank in range(ranks + 1)]


@wrong("25.3", "waits")
def adds_up_waits(events, ranks, latency):
    took = {"wait": 0, "sent": 0}
    turns = 0
    for event in events:
        seconds = event["end"] - event["start"]
        if event["verb"] == "wait":
            took["wait"] += seconds
        if event["verb"] in ("all_gather", "reduce_scatter"):
            took["sent"] += seconds
            turns += latency * (ranks - 1)
    helps = "nothing" if not took["wait"] else "fewer ranks" if turns > took["sent"] / 2 else "a faster link"
    return {"exposed": took["wait"], "latency": turns, "helps": helps}


@wrong("25.3", "as they come")
def stops_at_what_begins_later(events, ranks, latency):
    exposed = took = turns = 0
    for one in events:
        if one["verb"] in ("all_gather", "reduce_scatter"):
            took += one["end"] - one["start"]
            exposed += one["end"] - one["start"]
            turns += latency * (ranks - 1)
            for other in events:
                if other["verb"] in ("forward", "backward", "step"):
                    if other["start"] >= one["end"]:
                        break
                    exposed -= max(0, min(one["end"], other["end"]) - max(one["start"], other["start"]))
    helps = "nothing" if not exposed else "fewer ranks" if 2 * turns > took else "a faster link"
    return {"exposed": exposed, "latency": turns, "helps": helps}


@wrong("25.4", "as many gradients")
def takes_it_twice(make, shape, dtype):
    with FakeTensorMode():
        model = make()
        model(torch.zeros(shape, dtype=dtype)).backward()
        nbytes = sum(param.nbytes for param in model.parameters())
    return nbytes, nbytes


@wrong("25.5", "no prefetch")
def fetches_late(blocks, ranks, rate, latency):
    now = link = sent = compute = 0
    waits = {}

    def on_the_link(numel):
        nonlocal link, sent
        nbytes = 2 * (ranks - 1) * math.ceil(numel / ranks)
        sent += nbytes
        link = max(link, now) + nbytes / rate + (ranks - 1) * latency

    last = len(blocks) - 1
    for way in ("forward", "backward"):
        for k in range(len(blocks)) if way == "forward" else range(last, -1, -1):
            numel, seconds = blocks[k]
            waits[k, way] = 0
            if way == "forward" or k != last:
                on_the_link(numel)
                waits[k, way] = link - now
                now = link
            now += seconds if way == "forward" else 2 * seconds
            compute += seconds if way == "forward" else 2 * seconds
            if way == "backward":
                on_the_link(numel)
    end = max(now, link)
    return {"sent": sent, "seconds": end, "idle": end - compute, "waits_for": max(waits, key=waits.get)}


# 25.w1 --------------------------------------------------------------------------------------------------------------

@wrong("25.w1", "N turns")
class OncePerRank:
    def ring_seconds(nbytes, ranks, rate, latency):
        return sum(nbytes / ranks / rate + latency for _ in range(ranks))


@wrong("25.w1", "the whole buffer")
class BytesOverRate:
    def ring_seconds(nbytes, ranks, rate, latency):
        return (ranks - 1) * nbytes / rate + (ranks - 1) * latency


@wrong("25.w1", "one latency")
class OneMessage:
    def ring_seconds(nbytes, ranks, rate, latency):
        return nbytes * (ranks - 1) / ranks / rate + latency * (ranks > 1)


@wrong("25.w1", "no latency")
class Bandwidth:
    def ring_seconds(nbytes, ranks, rate, latency):
        return nbytes * (1 - 1 / ranks) / rate
