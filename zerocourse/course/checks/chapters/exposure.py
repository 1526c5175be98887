"""Exercise 8.4: timelines, what they expose, and what a misunderstanding makes of them."""

import torch
import torch.distributed as dist

from ....zero.shard import shard
from ....models.gpt2 import GPT, GPTConfig

COMPUTES, TRAVELS = ("forward", "backward", "step"), ("all_gather", "reduce_scatter")


def event(verb, start, end, unit="h.0"):
    return {"verb": verb, "unit": unit, "start": start, "end": end}


TIMELINES = [
    [event("all_gather", 0.0, 2.0), event("forward", 2.0, 5.0)],
    [event("all_gather", 1.0, 3.0), event("forward", 0.0, 4.0)],
    [event("forward", 0.0, 6.0), event("all_gather", 1.0, 4.0), event("wait", 3.0, 3.5), event("wait", 3.5, 4.0),
     event("reshard", 6.0, 6.0)],
    [event("all_gather", 0.0, 4.0, "h.0"), event("reshard", 0.5, 1.0), event("all_gather", 1.0, 3.0, "h.1"),
     event("forward", 4.0, 8.0)],
    [event("all_gather", 0.0, 6.0), event("forward", 1.0, 5.0, "root"), event("forward", 2.0, 4.0, "h.0")],
    [event("forward", 0.0, 2.0), event("wait", 3.0, 4.0), event("reduce_scatter", 1.0, 4.0), event("step", 4.0, 6.0),
     event("all_gather", 4.5, 5.5)],
    [event("all_gather", 0.0, 1.0), event("forward", 0.5, 3.0), event("wait", 0.5, 1.0), event("all_gather", 1.5, 2.5),
     event("backward", 3.5, 6.0), event("reduce_scatter", 5.0, 8.0), event("wait", 6.0, 8.0), event("step", 8.0, 9.0)],
    [event("forward", 0.0, 1.0), event("wait", 2.0, 3.0), event("backward", 3.0, 4.0)],
    [],
]


def is_any(event, verbs, moment):
    return event["verb"] in verbs and event["start"] <= moment < event["end"]


def exposed_in(events, *, waits=True, computes=COMPUTES):
    """Seconds in which something travels and nothing computes, segment by segment."""
    times = sorted({time for one in events for time in (one["start"], one["end"])})
    total = 0.0
    for start, end in zip(times, times[1:], strict=False):
        busy = any(is_any(one, computes, start) for one in events)
        waiting = waits and any(is_any(one, ("wait",), start) for one in events)
        if any(is_any(one, TRAVELS, start) for one in events) and (waiting or not busy):
            total += end - start
    return total


def lasted(events, verbs):
    return sum(one["end"] - one["start"] for one in events if one["verb"] in verbs)


def each_alone(events):
    """Exposed seconds of every collective by itself, added up."""
    others = [one for one in events if one["verb"] not in TRAVELS]
    return sum(exposed_in([*others, one]) for one in events if one["verb"] in TRAVELS)


def pairs(events):
    """Collectives less every pair's overlap with compute, so that nested computing counts twice."""
    both = [(one, other) for one in events for other in events if one["verb"] in TRAVELS and other["verb"] in COMPUTES]
    hidden = sum(max(0.0, min(a["end"], b["end"]) - max(a["start"], b["start"])) for a, b in both)
    return lasted(events, TRAVELS) - hidden


def step_events(answer):
    """The answer for a real step of stage 3, and the step's events."""
    torch.manual_seed(dist.get_rank())
    model = GPT(GPTConfig(2, 2, 16, block_size=16, vocab_size=64))
    model, optimizer = shard(model, torch.optim.SGD(model.parameters(), lr=0.1), stage=3, prefetch=1)
    tokens = torch.randint(0, 64, (2, 16))
    for _ in range(2):
        optimizer.zero_grad()
        model(tokens, tokens).backward()
        optimizer.step()
    recorder = model.zero.recorder
    events = recorder.of_step(recorder.step - 1)
    return {"events": events, "answer": answer(events)}
