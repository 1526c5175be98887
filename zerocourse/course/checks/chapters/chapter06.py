"""The checks of chapter 06, ZeRO-2: here 6.1 to 6.3, which need one process; the others start ranks and train."""

import functools
import gc
import weakref

import torch
from torch import nn

from ....layout.rankmap import Layout
from ....zero.unit import split_into_buffers
from ..exercise import exercise
from ..lab import Lab
from . import zero2_gradients, zero2_ops  # noqa: F401  (6.4, 6.5 and 6.6 are there)
from .stage_probe import near, numbers

# 6.1 ----------------------------------------------------------------------------------------------------------------

def cut(units, bucket_size, *, fits=lambda size, more, limit: size + more <= limit, across=False, last=True,
        empty=False, alone=True):
    """Buckets of sizes, in the order of the forward; the keywords are misunderstandings."""
    found, bucket = [], []
    for unit in units:
        for size in unit:
            if (bucket or empty) and not fits(sum(bucket), size, bucket_size):
                found.append(bucket)
                bucket = []
            if not alone and size > bucket_size:
                continue
            bucket.append(size)
        if not across:
            found += [bucket] if bucket and last else []
            bucket = []
    return found + ([bucket] if bucket and last else [])


def own_cut(units, bucket_size):
    with torch.device("meta"):
        named = [{str(i): nn.Parameter(torch.empty(size)) for i, size in enumerate(unit)} for unit in units]
    return [[param.numel() for param in row.values()] for params in named for row in split_into_buffers(params, bucket_size)]


def reversed_cut(units, bucket_size):
    return [bucket[::-1] for bucket in cut([unit[::-1] for unit in units[::-1]], bucket_size)][::-1]


@exercise("6.1", "When a bucket closes", minutes=12, difficulty=1, answer="cut_into_buckets", own=own_cut,
          replaces=("zerocourse.zero.unit:*",),
          sample=lambda random: ([[random.randint(1, 20) for _ in range(random.randint(1, 6))]
                                  for _ in range(random.randint(1, 3))], random.randint(1, 30)))
def cut_into_buckets(lab: Lab):
    cases = [([[5, 4, 3, 1]], 10), ([[4, 4, 4, 4]], 8), ([[5, 2], [2, 5]], 10), ([[3, 20, 3]], 8), ([[20], [1, 9]], 8),
             ([[2, 2, 2], [2], [2, 2]], 100), ([[6, 5, 5, 6]], 10), ([[7, 3, 1], [9, 9]], 10)]
    lab.compare(cases, cut, [
        ("You filled a bucket across the end of a unit: it closes there too, so that it does not stay open until the "
         "next unit's gradients come.", lambda units, limit: cut(units, limit, across=True)),
        ("You lost the last bucket: what is open at the end of a unit is a bucket too.",
         lambda units, limit: cut(units, limit, last=False)),
        ("You lost the last bucket: what is open at the end of a unit is a bucket too.",
         lambda units, limit: cut(units, limit, across=True, last=False)),
        ("You closed a bucket only when it was over its limit: it closes before the parameter that does not fit.",
         lambda units, limit: cut(units, limit, fits=lambda size, more, most: size < most)),
        ("You closed a bucket only when it was over its limit: it closes before the parameter that does not fit.",
         lambda units, limit: cut(units, limit, fits=lambda size, more, most: size <= most)),
        ("You closed a bucket although the parameter fits: a bucket may be full to its last element.",
         lambda units, limit: cut(units, limit, fits=lambda size, more, most: size + more < most)),
        ("You made an empty bucket before a parameter that is larger than the limit: it has a bucket of its own, and "
         "no empty one goes before.", lambda units, limit: cut(units, limit, empty=True)),
        ("You left out the parameters that are larger than the limit: each has a bucket of its own.",
         lambda units, limit: cut(units, limit, alone=False)),
        ("You filled the buckets from the last parameter on: they are cut in the order of the forward, and only "
         "reduced in the other.", reversed_cut),
    ])
    return "every parameter in one bucket, none longer than it may be, and none across the end of a unit."


# 6.2 ----------------------------------------------------------------------------------------------------------------

def leaves(buckets, arrivals, *, ordered=True, forward=False, first=1, at_the_end=True, none=0):
    """After how many gradients each bucket leaves; the keywords are misunderstandings."""
    full = []
    for bucket in buckets:
        came = [arrivals.index(name) + first for name in bucket if name in arrivals]
        unused = len(came) < len(bucket) and at_the_end
        full.append(len(arrivals) if unused else max(came, default=none))
    if ordered:
        for i in range(1, len(full)) if forward else range(len(full) - 2, -1, -1):
            full[i] = max(full[i], full[i - 1 if forward else i + 1])
    return full


@exercise("6.2", "When a bucket leaves", minutes=20, difficulty=2, answer="departures")
def departures(lab: Lab):
    abc = [["a", "b"], ["c", "d"], ["e"]]
    cases = [(abc, list("edcba")), (abc, list("dceba")), (abc, list("abcde")), (abc, list("edba")), (abc, list("dcba")),
             (abc, []), ([["a"], ["b"], ["c"], ["d"]], list("acbd")), ([["a"], ["b"], ["c"]], list("ca"))]
    lab.compare(cases, leaves, [
        ("You let a bucket leave as soon as it is full: then ranks on which gradients come in another order, or not at "
         "all, begin other collectives. Bucket i waits until bucket i + 1 has left.",
         lambda buckets, arrivals: leaves(buckets, arrivals, ordered=False)),
        ("You let every bucket wait for the end of the backward: then nothing is under way while the backward goes on. A "
         "full bucket leaves as soon as those after it have left.",
         lambda buckets, arrivals: [len(arrivals)] * len(buckets)),
        ("You let the first bucket leave first: gradients come from the last layer on, so the last bucket leaves "
         "first.",
         lambda buckets, arrivals: leaves(buckets, arrivals, forward=True)),
        ("You counted from 0: after the first gradient 1 has arrived.",
         lambda buckets, arrivals: leaves(buckets, arrivals, first=0)),
        ("You counted from 0: after the first gradient 1 has arrived.",
         lambda buckets, arrivals: [count - 1 for count in leaves(buckets, arrivals)]),
        ("You counted from 0: after the first gradient 1 has arrived.",
         lambda buckets, arrivals: [max(count - 1, 0) for count in leaves(buckets, arrivals)]),
        *[("You took a bucket for full without its unused parameters: only the end of the backward tells that no more "
           "gradient comes.", lambda buckets, arrivals, ordered=ordered, none=none: leaves(
               buckets, arrivals, at_the_end=False, ordered=ordered, none=min(none, len(arrivals))))
          for ordered in (True, False) for none in (0, 1, 99)],  # when a bucket leaves that no gradient reaches
        ("You left out the buckets that are never full: they leave at the end of the backward, else the ranks on which "
         "they are full wait for ever.",
         lambda buckets, arrivals: leaves([b for b in buckets if set(b) <= set(arrivals)], arrivals)),
        ("You listed the buckets in the order in which they leave: the entries are in the order of `buckets`.",
         lambda buckets, arrivals: leaves(buckets, arrivals)[::-1]),
    ])
    return "one order on all ranks, whatever arrives when, and nobody is waited for without end."


# 6.3 ----------------------------------------------------------------------------------------------------------------

WATCHED = {"first": (2, 3), "second": (6,), "third": (3, 2)}  # of one size, so that a wrong place raises nothing


def hooked_on_a_rank(answer, world):
    """The bucket and the parameters' gradients after each of two backwards."""
    params = {name: nn.Parameter(torch.full(shape, 7.0 + i)) for i, (name, shape) in enumerate(WATCHED.items())}
    layout = Layout.build(WATCHED, world)
    bucket, seen = torch.zeros(layout.padded), []
    before = {name: param.detach().clone() for name, param in params.items()}
    fresh = {}

    def look(param, name):
        fresh[name] = weakref.ref(param.grad)

    for name, param in params.items():  # before the answer's, while the gradient is there
        param.register_post_accumulate_grad_hook(functools.partial(look, name=name))
    answer(params, bucket, layout, world)
    for micro in range(2):
        total = torch.zeros(())
        for name, param in params.items():
            total = total + (param * _slope(layout, name, micro).view(param.shape)).sum()
        total.backward()
        kept = [name for name, param in params.items() if param.grad is not None]
        gc.collect()
        seen.append({"bucket": bucket.clone(), "kept": kept,
                     "alive": [name for name, gradient in fresh.items() if gradient() is not None]})
    return {"seen": seen, "moved": [name for name, param in params.items() if not torch.equal(param, before[name])]}


def _slope(layout, name, micro):
    return numbers(layout.padded, micro)[layout.param_slice(name)]


@exercise("6.3", "The hook", minutes=20, difficulty=2, answer="watch",
          replaces=("zerocourse.zero.buffer:FlatBuffer.collect", "zerocourse.zero.hooks:*"))
def watch(lab: Lab):
    world = 2
    found, layout = lab.run(hooked_on_a_rank, world)[0], Layout.build(WATCHED, world)
    rows = [torch.zeros(layout.padded) for _ in range(2)]
    for micro, row in enumerate(rows):
        for name in WATCHED:
            row[layout.param_slice(name)] = _slope(layout, name, micro)
    weights = torch.zeros(layout.padded)
    for i, name in enumerate(WATCHED):
        weights[layout.param_slice(name)] = 7.0 + i
    first, second = rows[0] / world, (rows[0] + rows[1]) / world
    if found["moved"]:
        lab.wrong(f"after a backward the parameters {', '.join(found['moved'])} have other values: you changed the "
                  "weights. The hook is given the parameter, and what is wanted is in its `.grad`.")
    got = found["seen"][0]["bucket"]
    if not near(got, first):
        models = [
            ("Nothing came into the bucket: is each hook registered, and does it write in place?",
             torch.zeros_like(first)),
            ("You put the weights into the bucket: the hook is given the parameter, and the gradient is its `.grad`.",
             weights),
            ("You put the weights into the bucket: the hook is given the parameter, and the gradient is its `.grad`.",
             weights / world),
            ("You put in the gradient as it is: divided by the number of ranks, the sum over the ranks is the average.",
             first * world),
        ]
        why = next((why for why, model in models if near(got, model)), "")
        places = [layout.param_slice(name) for name in WATCHED]
        if not why and not got[:places[1].stop].any() and got[places[2]].any():
            why = ("Every hook wrote to the place of the last parameter: a function made in a loop reads the loop's "
                   "variable when it is called. Bind it, as in `lambda param, name=name: ...`.")
        lab.wrong(f"after the first backward the bucket is {got.tolist()}, and {first.tolist()} is right. "
                  f"{why}".rstrip())
    if found["seen"][0]["kept"]:
        lab.wrong(f"after the first backward {', '.join(found['seen'][0]['kept'])} still have their `.grad`, so each "
                  "gradient is there twice. Set it to None once it is in the bucket.")
    got = found["seen"][1]["bucket"]
    if not near(got, second):
        models = [("You overwrote what the first backward had left: a second micro-batch adds to it.", rows[1] / world)]
        why = next((why for why, model in models if near(got, model)), "")
        lab.wrong(f"after the second backward the bucket is {got.tolist()}, and {second.tolist()} is right. "
                  f"{why}".rstrip())
    if found["seen"][0]["alive"]:
        lab.wrong(f"after the first backward the memory of {len(found['seen'][0]['alive'])} gradients is still alive, "
                  "although their `.grad` is None: somebody keeps them, or a view of them. Keep nothing beyond the hook.")
    return "each gradient is in its place as soon as it is complete, divided, added, and nowhere else."
