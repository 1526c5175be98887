"""The checks of 5.4 and 5.5: the two functions of stage 1's operations, alone and in the training of a tiny GPT-2."""

import torch

from ....comm.group import Handle
from ....layout.rankmap import Layout
from ....zero.stage1 import reduce_scatter_in_place, sharded_step
from ..exercise import exercise
from ..lab import Lab
from . import stage_runs
from .stage_runs import WatchedComm
from .stage_probe import SAME_CALLS, Updates, flats_of, give_gradient, miscounted, near, numbers, same_calls

STAGE_1 = ("zerocourse.zero.stage1:*", "zerocourse.zero.ddp:*")


# 5.4 ----------------------------------------------------------------------------------------------------------------

SHAPES = [(5,), (2,), (6,)]  # two do not divide evenly by 2 and 3; on three ranks the last owns nothing of the second


def reduce_on_a_rank(answer):
    comm, seen = WatchedComm(), []
    for flat in flats_of(SHAPES, 1, comm):
        comm.elements.clear()
        give_gradient(flat, numbers(flat.layout.numel, comm.rank))
        before = flat.grad.clone()
        with same_calls():
            handle = answer(flat, comm)
            returned, started = isinstance(handle, Handle), bool(comm.calls)
            waited = any(begun.tensor is None for begun in comm.handles)  # complete before anybody else could wait
            if returned:
                handle.wait()
        shard, bucket = flat.grad_shard, flat.grad
        inside = None not in (shard, bucket) and torch.is_tensor(shard) and \
            shard.untyped_storage()._cdata == bucket.untyped_storage()._cdata
        elsewhere = inside and shard.numel() and shard.storage_offset() != flat.own.start
        seen.append({"returned": returned, "kind": type(handle).__name__, "started": started, "waited": waited,
                     "bucket": bucket is not None, "shard": shard.clone() if torch.is_tensor(shard) else None,
                     "inside": inside, "elsewhere": elsewhere, "in place": all(comm.in_place), "before": before,
                     "sent": dict(comm.elements), "forgotten": comm.wait_for_forgotten()})
        comm.calls.clear()
        comm.in_place.clear()
    return seen


@exercise("5.4", "Reduce your slice", minutes=20, difficulty=2, answer="reduce_slice", own=reduce_scatter_in_place,
          replaces=STAGE_1, timeout=15)
def reduce_slice(lab: Lab):
    for world in (2, 3):
        found = lab.run(reduce_on_a_rank, world=world)
        for number, shape in enumerate(SHAPES):
            _judge_reduce(lab, [seen[number] for seen in found], shape[0], world)
    stage_runs.judge(lab, ["reduce"], 1, 2, accumulation=2, optimizer=torch.optim.SGD, lr=0.5,  # AdamW forgives a factor
                 why={"losses": "Alone it was right: is a second sum added to the first, which it holds already?"})
    return "GPT-2 trains with it as with the package's own, and a rank sends (N - 1) / N of the gradient once."


def _judge_reduce(lab, found, numel, world):
    layout = Layout.build({"row": (numel,)}, world)
    rows = [seen["before"] for seen in found]
    total = torch.stack(rows).sum(0)
    case = f"a bucket of {numel} gradients on {world} ranks"
    for rank, seen in enumerate(found):
        own, size = layout.slice(rank), layout.bounds[1]
        right, got = total[own], seen["shard"]
        if not seen["bucket"]:
            lab.wrong(f"{case}: afterwards rank {rank} has no bucket. You dropped it, which is stage 2: stage 1 keeps "
                      "the whole gradient, and its slice of the sum stands in it.")
        if seen["sent"].get("all_gather"):
            lab.wrong(f"{case}: rank {rank} also gathered the summed gradients: that makes it an all-reduce, twice the "
                      "traffic. A rank updates its slice and needs only that.")
        if not seen["started"] and not near(got, rows[rank][own]):
            lab.wrong(f"{case}: rank {rank} called no collective of `comm`: use comm.reduce_scatter, which counts what "
                      "is sent.")
        if not seen["started"]:
            lab.wrong(f"{case}: rank {rank} called no collective of `comm`, so it has only its own gradients, and "
                      "every rank goes its own way. Call comm.reduce_scatter.")
        if not seen["returned"] and seen["forgotten"]:
            lab.wrong(f"{case}: rank {rank} started a reduce-scatter and returned {seen['kind']}. Nobody can wait for "
                      "it: return the handle.")
        if not seen["returned"] or seen["waited"]:
            what = "the handle" if seen["returned"] else seen["kind"]
            lab.wrong(f"{case}: rank {rank} returned {what} after it had waited for the sum. The backward stands "
                      "still meanwhile: return the handle at once, and let the stage wait for it.")
        if got is None:
            lab.wrong(f"{case}: afterwards `flat.grad_shard` of rank {rank} is None. Set it to this rank's slice of "
                      "the sum: it is where the optimizer looks.")
        if near(got, right):
            continue
        models = [
            ("That is the slice of the rank before the reduction: set `flat.grad_shard` to the place where the sum "
             "arrives.",
             rows[rank][own]),
            ("You divided by the number of ranks again: the gradients in the bucket are divided already.",
             right / world),
            ("You multiplied by the number of ranks: the gradients in the bucket are divided, and their sum is the "
             "average.",
             right * world),
            ("You took rank 0's slice: this rank's is `flat.own`.", total[:size]),
            ("You took rank 0's slice: this rank's is `flat.own`.", rows[rank][:size]),
        ]
        if got.shape != right.shape:
            lab.wrong(f"{case}: `flat.grad_shard` of rank {rank} has {tuple(got.shape)} elements where "
                      f"{tuple(right.shape)} are right: its slice alone, and not the whole bucket.")
        why = next((why for why, model in models if near(got, model)), "")
        lab.wrong(f"{case}: `flat.grad_shard` of rank {rank} is {got.tolist()}, and {right.tolist()} is right. "
                  f"{why}".rstrip())
    for rank, seen in enumerate(found):
        if not seen["inside"]:
            lab.wrong(f"{case}: the values are right, but `flat.grad_shard` of rank {rank} has memory of its own, "
                      "beside a bucket that is kept as well. Let the sum go into the slice of the bucket: "
                      "into=flat.grad[flat.own].")
        if seen["elsewhere"]:
            lab.wrong(f"{case}: the values are right, but `flat.grad_shard` of rank {rank} lies where another rank's "
                      "slice of the bucket is, whose gradients it overwrites: into=flat.grad[flat.own].")
        if not seen["in place"]:
            lab.wrong(f"{case}: the values are right, but on rank {rank} the sum arrived beside the bucket, and was "
                      "copied into it. Let it arrive there: into=flat.grad[flat.own].")


# 5.5 ----------------------------------------------------------------------------------------------------------------

def step_on_a_rank(answer, dtype):
    comm = WatchedComm()
    flats = flats_of(SHAPES, 1, comm, getattr(torch, dtype))
    late, stale = [], []

    def gathered(flat):
        return any(unit == flat.name for _, _, unit in comm.calls)

    def publishing(number, flat, publish):
        def published():
            if optimizer_step.counts[number] and gathered(flat):
                late.append(flat.name)
            return publish()
        return published

    def update(flat):
        if gathered(flat):
            stale.append(flat.name)
        flat.master -= 0.5 * (comm.rank + 1)

    optimizer_step = Updates(flats, update, f"the result of rank {comm.rank}")
    for number, flat in enumerate(flats):
        flat.publish_shard = publishing(number, flat, flat.publish_shard)

    before = [flat.full.clone() for flat in flats]
    with torch.no_grad(), same_calls("a rank that owns nothing of a buffer gathers it too"):
        result = answer(flats, comm, optimizer_step)
    early = [flat.full.clone() for flat in flats]
    forgotten = comm.wait_for_forgotten()
    return {"result": result if isinstance(result, str) else None, "updates": optimizer_step.counts, "early": early,
            "before": before, "calls": comm.calls, "stale": bool(stale), "forgotten": forgotten,
            "late": [flat.name in late for flat in flats]}


@exercise("5.5", "Update, then tell the others", minutes=20, difficulty=2, answer="update_and_gather", own=sharded_step,
          replaces=STAGE_1, timeout=15)
def update_and_gather(lab: Lab):
    for world, dtype in ((2, "float32"), (3, "float32"), (3, "bfloat16")):
        found = lab.run(step_on_a_rank, dtype, world=world)
        _judge_step(lab, found, world, f"three flat buffers in {dtype} on {world} ranks")
    stage_runs.judge(lab, ["step"], 1, 2)
    return "every rank has every new parameter, fp32 or rounded from fp32, and GPT-2 trains with it."


def _own_alone(start, right, own):
    """A buffer of which only one slice is new."""
    row = start.clone()
    row[own] = right[own]
    return row


def _judge_step(lab, found, world, case):
    for rank, seen in enumerate(found):
        if why := miscounted(seen["updates"]):
            lab.wrong(f"{case}: on rank {rank} {why}")
        gathers = [unit for _, verb, unit in seen["calls"] if verb == "all_gather"]
        if seen["stale"]:
            lab.wrong(f"{case}: rank {rank} gathered before `optimizer_step` had updated the slice: what the others "
                      "received is one step old.")
        if not gathers:
            lab.wrong(f"{case}: rank {rank} gathered nothing, so the ranks keep old parameters for the slices of the "
                      "others: each now trains a model of its own.")
        if len(set(gathers)) < len(SHAPES):
            lab.wrong(f"{case}: rank {rank} gathered {len(set(gathers))} of {len(SHAPES)} buffers: every buffer is "
                      "updated, so every buffer is gathered.")
        if seen["forgotten"]:
            lab.wrong(f"{case}: rank {rank} returned with {seen['forgotten']} of its gathers still under way. Wait for "
                      "each handle: the next forward reads these parameters.")
    orders = [[unit for _, verb, unit in seen["calls"] if verb == "all_gather"] for seen in found]
    for rank, order in enumerate(orders):
        if order != orders[0]:
            lab.wrong(f"{case}: rank {rank} started the gathers in the order {', '.join(order)}, and rank 0 in the "
                      f"order {', '.join(orders[0])}. {SAME_CALLS}: NCCL pairs them by their order, and would mix up "
                      "the buffers.")
    layouts = [Layout.build({"row": shape}, world) for shape in SHAPES]
    for rank, seen in enumerate(found):
        for number, layout in enumerate(layouts):
            start, got = seen["before"][number], seen["early"][number]
            right = start.clone().float()
            for owner in range(world):
                right[layout.slice(owner)] -= 0.5 * (owner + 1)
            whole, keep = right.to(start.dtype), got[:layout.numel]
            right = whole[:layout.numel]
            if near(keep, right):
                continue
            why = ""
            if near(keep, start[:layout.numel]):
                why = ("Nothing moved: the optimizer updates the fp32 master weights here, so round them into the "
                       "slice first, with flat.publish_shard(), and gather then.")
            elif near(keep, _own_alone(start, whole, layout.slice(rank))[:layout.numel]):
                why = "Only its own slice is new: " + (
                    "you called flat.publish_shard() after the gather had started, so the others got old values. "
                    "Publish first." if seen["late"][number] else "gather into `flat.full` itself.")
            lab.wrong(f"{case}: afterwards rank {rank} has {keep.tolist()} in buffer {number}, and {right.tolist()} is "
                      f"right. {why}".rstrip())
        if seen["result"] != f"the result of rank {rank}":
            lab.wrong(f"{case}: the parameters are right, but what `optimizer_step` returned got lost: return it. With "
                      "a closure it is the loss.")
