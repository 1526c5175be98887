"""The check of 6.6: hooks, buckets and shards from scratch, with unused parameters and other orders."""

import torch
from torch import nn

from ....models.gpt2 import GPT
from ....layout.rankmap import Layout
from ..exercise import exercise
from ..lab import Lab
from ..verdict import Wrong
from . import stage_runs
from .stage_runs import CONFIG, WatchedComm
from .stage_probe import bytes_under, calling, near, numbers, same_calls

SIZES = [4, 6, 3, 5, 2, 7]
BUCKET = 10
CUT = [[0, 1], [2, 3, 4], [5]]  # what fits into buckets of 10
CASES = {  # rank -> the parameters that it uses, in the order of its forward
    "every parameter is used": lambda rank: range(6),
    "parameter 5 is unused on rank 1": lambda rank: range(5 if rank == 1 else 6),
    "parameter 3 is unused everywhere": lambda rank: [0, 1, 2, 4, 5],
    "rank 1 uses the parameters in another order": lambda rank: [5, 4, 3, 2, 1, 0] if rank == 1 else range(6),
    "rank 1 uses no parameter at all": lambda rank: [] if rank == 1 else range(6),
}


def slope(index, rank, micro):
    """The gradient of a parameter in a micro-batch of a rank."""
    return numbers(SIZES[index], rank) * (micro + 1) + index


def bucketed_on_a_rank(answer, case, micros):
    comm, uses = WatchedComm(), CASES[case]
    params = [nn.Parameter(torch.ones(size)) for size in SIZES]
    gradients = answer(params, BUCKET, comm)
    layouts = getattr(gradients, "layouts", None)
    if not isinstance(layouts, list) or not all(isinstance(layout, Layout) for layout in layouts):
        raise Wrong(f"after `__init__` the attribute `layouts` is {layouts!r:.100}: it is a list with the Layout of "
                    "each bucket")
    seen = {"names": [list(layout.shapes) for layout in layouts], "most": 0, "micros": []}

    def look(_):
        held = bytes_under(vars(gradients), but=params) + sum(p.grad.nbytes for p in params if p.grad is not None)
        seen["most"] = max(seen["most"], held)

    for param in params:
        param.register_post_accumulate_grad_hook(look)  # comes after the answer's own
    for micro in range(micros):
        comm.calls, comm.phase, total = [], "backward", torch.zeros(())
        for index in uses(comm.rank):
            total = total + (params[index] * slope(index, comm.rank, micro)).sum()
        with same_calls("a bucket with unused parameters leaves too, with zeros, at the latest in finish(), also on a "
                        "rank on which no gradient came at all"):
            if total.requires_grad:
                total.backward()
            comm.phase = "finish"
            calling(answer, gradients.finish)
        forgotten = comm.wait_for_forgotten()
        shards = getattr(gradients, "shards", None)
        seen["micros"].append({
            "calls": [(phase, verb) for phase, verb, _ in comm.calls],
            "order": [unit for _, _, unit in comm.calls], "forgotten": forgotten,
            "held": bytes_under(vars(gradients), but=params), "loose": sum(p.grad is not None for p in params),
            "shards": [shard.clone() if torch.is_tensor(shard) else None for shard in shards] if shards else []})
    return seen


def gpt_on_a_rank(answer, steps=3, micros=2):
    """Losses of the tiny GPT-2 with the answer's shards and AdamW on slices, and with AdamW on averaged gradients."""
    comm, losses = WatchedComm(), []
    for mine in (True, False):
        torch.manual_seed(0)
        model, of_run = GPT(CONFIG), []
        params, tokens = list(model.parameters()), stage_runs.data(comm.rank, steps * micros)
        if mine:
            gradients = answer(params, 2000, comm)
            rows = [torch.zeros(layout.padded) for layout in gradients.layouts]
            for row, layout in zip(rows, gradients.layouts, strict=True):
                for name in layout.shapes:
                    row[layout.param_slice(name)] = params[int(name)].data.reshape(-1)
                    params[int(name)].data = row[layout.param_slice(name)].view(params[int(name)].shape)
            slices = [nn.Parameter(row[layout.slice(comm.rank)])
                      for row, layout in zip(rows, gradients.layouts, strict=True)]
        optimizer = torch.optim.AdamW(slices if mine else params, lr=0.01)
        for step in range(steps):
            for tokens_BT in tokens[step * micros:(step + 1) * micros]:
                loss = model(tokens_BT[:, :-1], tokens_BT[:, 1:]) / micros
                loss.backward()
                of_run.append(loss.item() * micros)
                if mine:
                    calling(answer, gradients.finish)
            if mine:
                for part, gradient in zip(slices, gradients.shards, strict=True):
                    part.grad = gradient
                optimizer.step()
                for number, (row, layout) in enumerate(zip(rows, gradients.layouts, strict=True)):
                    comm.all_gather(row, layout, f"row {number}").wait()
                gradients.shards = [None] * len(gradients.layouts)
            else:
                for param in params:
                    comm.all_reduce(param.grad).div_(comm.world_size)
                optimizer.step()
            for param in params if not mine else ():
                param.grad = None
        losses.append(of_run)
    return losses


@exercise("6.6", "Gradients that never pile up", minutes=60, difficulty=3, answer="ShardedGradients",
          replaces=("zerocourse:shard", "zerocourse.zero.stage2:*", "zerocourse.zero.stage1:*",
                    "zerocourse.zero.ddp:*"),
          timeout=15)
def sharded_gradients(lab: Lab):
    for world in (2, 3):
        for case in CASES:
            if world == 2 or case.startswith("every"):
                _judge_bucketed(lab, lab.run(bucketed_on_a_rank, case, 2, world=world), case, world)
    for rank, (mine, own) in enumerate(lab.run(gpt_on_a_rank, world=2)):
        if not all(abs(a - b) < stage_runs.CLOSE for a, b in zip(mine, own, strict=True)):
            lab.wrong(f"training GPT-2 on 2 ranks, rank {rank} has the losses {[round(x, 4) for x in mine]}, and "
                      f"{[round(x, 4) for x in own]} are right.")
    return "no more than one bucket is open at a time, nobody waits for ever, and GPT-2 trains as in data parallel."


def _judge_bucketed(lab, found, case, world):
    case = f"{len(SIZES)} parameters of {SIZES} elements, buckets of {BUCKET}, {world} ranks; {case}"
    uses = CASES[case.partition("; ")[2]]
    wanted = [[str(index) for index in bucket] for bucket in CUT]
    for rank, seen in enumerate(found):
        if seen["names"] != wanted:
            lab.wrong(f"{case}: the layouts of rank {rank} hold the parameters {seen['names']}, and {wanted} are "
                      "right: as in 6.1, in the order of the forward, and named by their place in `params`.")
    layouts = [Layout.build({str(i): (SIZES[i],) for i in bucket}, world) for bucket in CUT]
    for micro in range(2):
        for rank, seen in enumerate(found):
            now = seen["micros"][micro]
            verbs = [verb for _, verb in now["calls"]]
            if "all_gather" in verbs:
                lab.wrong(f"{case}: rank {rank} gathered gradients. A rank needs its slices alone: a reduce-scatter is "
                          "enough.")
            if not verbs:
                lab.wrong(f"{case}: rank {rank} called no collective of `comm` in micro-batch {micro + 1}: its "
                          "gradients are its own. Every micro-batch is reduced, since there is nowhere to add up a "
                          "whole gradient.")
            if now["forgotten"]:
                lab.wrong(f"{case}: after finish() {now['forgotten']} reductions of rank {rank} were still under way: "
                          "wait for every handle.")
            _judge_shards(lab, case, found, layouts, uses, micro, rank)
            if now["loose"]:
                lab.wrong(f"{case}: the values are right, but after a backward {now['loose']} parameters of rank "
                          f"{rank} still have their `.grad`: free it once it is in its bucket.")
    first = found[0]["micros"][0]["order"]
    for rank, seen in enumerate(found):
        now = seen["micros"][0]
        if now["order"] != first:
            lab.wrong(f"{case}: rank 0 reduced {first} and rank {rank} {now['order']}. Every rank must call the same "
                      "collectives, in the same order, whatever gradient arrives when: let a bucket wait until the one "
                      "after it has left.")
        size = 4 * sum(layout.bounds[1] for layout in layouts)
        lazy = "Make a bucket when its first gradient comes, and let go of it when it leaves."
        if now["held"] == size + 4 * sum(layout.padded for layout in layouts):
            lab.wrong(f"{case}: the values are right, but after finish() rank {rank} holds {now['held']} bytes, its "
                      f"slices and all buckets, and {size} are right. {lazy}")
        if now["held"] != size:
            lab.wrong(f"{case}: the values are right, but after finish() rank {rank} holds {now['held']} bytes of "
                      f"gradients, and {size} are right, its slices alone. Is a bucket kept, or is a shard a view of "
                      "one?")
        late = sum(phase == "finish" for phase, _ in now["calls"])
        if late and len(uses(rank)) == len(SIZES):
            when = ("only in finish(): until then the whole gradient piled up. A bucket leaves when it is full, in the "
                    "backward." if case.endswith("every parameter is used") else
                    "in finish(), though all were full. When a bucket leaves, the next may have waited for it, and the "
                    "one after that: let them follow at once (`while`, not `if`).")
            lab.wrong(f"{case}: the values are right, but rank {rank} reduced {late} of {len(now['calls'])} buckets "
                      f"{when}")
        if case.endswith("every parameter is used"):
            most = size + 4 * max(layout.padded for layout in layouts)
            if seen["most"] > most:
                lab.wrong(f"{case}: the values are right, but during the backward rank {rank} held {seen['most']} "
                          f"bytes of gradients and buckets, and {most} are enough: its slices and one open bucket. "
                          f"{lazy}")


def _judge_shards(lab, case, found, layouts, uses, micro, rank):
    world, shards = len(found), found[rank]["micros"][micro]["shards"]
    if len(shards) != len(layouts):
        lab.wrong(f"{case}: `shards` of rank {rank} has {len(shards)} entries, and there are {len(layouts)} buckets.")

    def model(bucket, micros, divisor, ranks):
        row = torch.zeros(layouts[bucket].padded)
        for index in CUT[bucket]:
            for m in micros:
                for r in ranks:
                    if index in uses(r):
                        row[layouts[bucket].param_slice(str(index))] += slope(index, r, m) / divisor
        return row[layouts[bucket].slice(rank)]

    so_far, everybody = range(micro + 1), range(world)
    for bucket, got in enumerate(shards):
        right = model(bucket, so_far, world, everybody)
        if near(got, right):
            continue
        if got is None:
            lab.wrong(f"{case}: after finish() shard {bucket} of rank {rank} is None: every bucket leaves in every "
                      "backward, and finish() waits for it.")
        models = [
            ("You summed over the ranks and never divided by their number: the average is wanted.",
             model(bucket, so_far, 1, everybody)),
            ("You averaged over the micro-batches: their gradients add up.", right / (micro + 1)),
            ("You divided twice: once by the number of ranks is right.",
             model(bucket, so_far, world * world, everybody)),
            ("You kept the last micro-batch alone: add to the shard what earlier ones left.",
             model(bucket, [micro], world, everybody)),
            ("You reduced the first micro-batch alone.", model(bucket, [0], world, everybody)),
            ("That is this rank's own gradient: keep what the reduce-scatter brings.",
             model(bucket, so_far, world, [rank])),
            ("Your bucket was not empty when it was made anew: earlier micro-batches are counted again.",
             sum(model(bucket, range(m + 1), world, everybody) for m in so_far)),
        ]
        values = got.tolist() if torch.is_tensor(got) else got
        why = next((why for why, value in models if near(got, value)), "")
        lab.wrong(f"{case}: after micro-batch {micro + 1} shard {bucket} of rank {rank} is {values}, and "
                  f"{right.tolist()} is right. {why}".rstrip())
