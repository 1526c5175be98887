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


@wrong("25.2", "lost")
def all_alike(numel, ranks):
    size = numel // ranks
    bounds = [0]
    for _ in range(ranks):
        bounds.append(bounds[-1] + size)
    return bounds


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


@wrong("25.4", "one way")
def sends_once(params, ranks, group, micro_batches, each):
    nodes = ranks // group
    inside = 6 * micro_batches * params * (group - 1) // group
    times = micro_batches if each else 1
    return inside, times * 2 * params // group * (nodes - 1) // nodes


@wrong("25.5", "the node")
def always_eight(ranks, card):
    return 8


@wrong("25.6", "as many gradients")
def takes_it_twice(make, shape, dtype):
    with FakeTensorMode():
        model = make()
        model(torch.zeros(shape, dtype=dtype)).backward()
        nbytes = sum(param.nbytes for param in model.parameters())
    return nbytes, nbytes


@wrong("25.7", "no prefetch")
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
