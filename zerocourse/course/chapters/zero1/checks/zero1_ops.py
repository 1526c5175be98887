"""The checks of 5.4 and 5.5: the two functions of stage 1's operations, alone and in the training of a tiny GPT-2."""

import torch
import torch.distributed as dist

from .....comm.group import Handle
from .....zero.stage1 import reduce_scatter_in_place, sharded_step
from ....checks import Trial, When, exercise
from ....checks.observers.stage_probe import Updates, flats_of, give_gradient, numbers
from ....checks.observers.stage_runs import WatchedComm, training

STAGE_1 = ("zerocourse.zero.stage1:*", "zerocourse.zero.ddp:*")
SHAPES = [(5,), (2,), (6,)]  # two do not divide evenly by 2 and 3; on three ranks the last owns nothing of the second


# 5.4 ----------------------------------------------------------------------------------------------------------------

def reduction(answer, flat, comm):
    """The handle, and what a stage's reduction does with the bucket of one flat buffer. The handle is waited for."""
    comm.elements.clear(), comm.calls.clear()
    before = len(comm.issued)
    handle = answer(flat, comm)
    returned, started, dropped = isinstance(handle, Handle), bool(comm.calls), flat.grad is None
    waited = any(begun.tensor is None for begun in comm.handles)  # complete before anybody else could wait
    all_reduced = any(verb.startswith("all_reduce") for verb, *_ in list(comm.issued)[before:])
    if returned:
        handle.wait()
    forgotten, got = comm.wait_for_forgotten(), flat.grad_shard
    shard = got.clone() if torch.is_tensor(got) else None
    return handle, {
        "gathered": comm.elements["all_gather"], "all-reduced": all_reduced, "started": started,
        "waited": started and (waited or not returned and not forgotten), "returned": returned or not started,
        "shard": shard is not None, "bucket": flat.grad is not None, "length": 0 if shard is None else len(shard),
        "values": shard, "dropped": dropped, "_kind": "the handle" if returned else type(handle).__name__}


def reduce_on_a_rank(answer, numel):
    """How the operation leaves the bucket, in which the sum is to be."""
    comm = WatchedComm()
    flat, = flats_of([(numel,)], 1, comm)
    give_gradient(flat, numbers(numel, comm.rank))
    _, seen = reduction(answer, flat, comm)
    shard, bucket = flat.grad_shard, flat.grad
    inside = torch.is_tensor(shard) and bucket is not None and \
        shard.untyped_storage()._cdata == bucket.untyped_storage()._cdata
    return {**seen, "inside": inside, "place": shard.storage_offset() if inside and len(shard) else None,
            "in place": all(comm.in_place)}


def no_collective(flat, comm):
    flat.grad_shard = flat.grad[flat.own]


def uncounted(flat, comm):
    dist.all_reduce(flat.grad)
    flat.grad_shard = flat.grad[flat.own]


def all_reduced(flat, comm):
    flat.grad_shard = comm.all_reduce(flat.grad)[flat.own]


def also_gathered(flat, comm, handle):
    handle.wait()
    return comm.all_gather(flat.grad, flat.layout, flat.name)


def dropped(flat, total):
    flat.take_bucket()
    return total


def copied_back(flat, total):
    flat.grad[flat.own] = total
    return flat.grad[flat.own]


def accumulated(flat, total):
    flat.accumulate(total)
    return flat.grad_shard


def added_beside(flat, total):
    return total if flat.grad_shard is None else flat.grad_shard + total


def first_slice(flat):
    return flat.grad[:flat.own.stop - flat.own.start]


@exercise(
    "5.4", "Reduce your slice", minutes=20, difficulty=2, own=reduce_scatter_in_place,
    replaces=STAGE_1, timeout=15,
    trials=[
        Trial([(numel,) for numel, in SHAPES], reduce_on_a_rank, worlds=(2, 3), words=reduction),
        training("reduce", 1, accumulation=2, optimizer=torch.optim.SGD, lr=0.5)],  # AdamW forgives a factor
    mistakes={
        "bucket dropped": {"take": dropped},
        "all-reduce": {"after": also_gathered},
        "whole sum": (all_reduced, When("all-reduced")),
        "own gradients": no_collective,
        "uncounted": (uncounted, When("started")),
        "waits": ({"after": lambda flat, comm, handle: handle.wait() or handle},
                  {"after": lambda flat, comm, handle: handle.wait()}),
        "handle lost": {"after": lambda flat, comm, handle: None},
        "never set": {"take": lambda flat, total: None},
        "whole bucket": {"take": lambda flat, total: flat.grad},
        "slice of before": {"before": lambda flat: flat.grad[flat.own].clone()},
        "divided again": {"times": lambda comm: 1 / comm.world_size},
        "multiplied": {"times": lambda comm: comm.world_size},
        "slice of rank 0": {"before": first_slice},
        "memory of its own": {"into": lambda flat: None},
        "another's place": {"into": first_slice},
        "copied back": {"into": lambda flat: None, "take": copied_back},
        "added to itself": ({"take": accumulated}, {"take": added_beside}, When("losses")),
    })
def reduce_slice(flat, comm, *, times=lambda comm: 1, before=None, into=lambda flat: flat.grad[flat.own],
                 take=lambda flat, total: total, after=lambda flat, comm, handle: handle):
    """times: of the gradient before it is reduced.   into: where the sum goes.   take: what becomes `flat.grad_shard`
    when it arrives; or `before`, at once.   after: what is done last, and returned."""
    def arrived(total):
        if before is None:
            flat.grad_shard = take(flat, total)

    flat.grad *= times(comm)
    if before is not None:
        flat.grad_shard = before(flat)
    return after(flat, comm, comm.reduce_scatter(flat.grad, flat.layout, flat.name, into=into(flat), done=arrived))


# 5.5 ----------------------------------------------------------------------------------------------------------------

def step_on_a_rank(answer, dtype):
    """What the operation does with three flat buffers."""
    comm = WatchedComm()
    flats = flats_of(SHAPES, 1, comm, getattr(torch, dtype))
    result, stale = f"the result of rank {comm.rank}", []

    def update(flat):
        if any(unit == flat.name for _, _, unit in comm.calls):
            stale.append(flat.name)
        flat.master -= 0.5 * (comm.rank + 1)

    optimizer_step = Updates(flats, update, result)
    with torch.no_grad():
        returned = answer(flats, comm, optimizer_step)
    rows = [flat.full[:flat.layout.numel].clone() for flat in flats]
    forgotten, order = comm.wait_for_forgotten(), [unit for _, verb, unit in comm.calls if verb == "all_gather"]
    first = comm.all_gather_object(order)[0]
    return {"updates": optimizer_step.counts, "stale": bool(stale), "gathered": len(set(order)),
            "under way": forgotten, "in order": order == first,
            **{f"buffer {number}": row for number, row in enumerate(rows)},
            "result": returned == result, "_order": ", ".join(order), "_first": ", ".join(first)}


def turned(flats, comm):
    return flats[::-1] if comm.rank % 2 else flats


@exercise(
    "5.5", "Update, then tell the others", minutes=20, difficulty=2, own=sharded_step,
    replaces=STAGE_1, timeout=15,
    trials=[
        Trial(lambda world: [("float32",), ("bfloat16",)][:world - 1], step_on_a_rank, worlds=(2, 3)),
        training("step", 1)],
    mistakes={
        "never updated": {"update": lambda optimizer_step, flats: None},
        "updated again": ({"update": lambda optimizer_step, flats: [optimizer_step() for _ in flats][0]},
                          When("updates", lambda got, want: max(got) > 1)),
        "some updated": ({"update": lambda optimizer_step, flats: optimizer_step(flats[0])},
                         When("updates", lambda got, want: 0 in got)),
        "gathered first": ({"gather_first": True}, When("stale")),
        "no gather": {"gathers": lambda flats, comm: []},
        "some gathered": ({"gathers": lambda flats, comm: flats[1:]},
                          When("gathered", lambda got, want: 0 < got < want)),
        "last one alone": {"waits": lambda handles: handles[-1:]},
        "under way": ({"waits": lambda handles: handles[:0]}, When("under way")),
        "order": ({"gathers": turned}, When("in order")),
        "published late": {"publish": "late"},
        "not published": {"publish": None},
        "own slice alone": {"target": lambda flat: flat.full.clone()},
        "result lost": {"returns": lambda result: None},
        "stuck": {"gathers": lambda flats, comm: [flat for flat in flats if flat.layout.real(comm.rank)]},
    })
def update_and_gather(flats, comm, optimizer_step, *, update=lambda optimizer_step, flats: optimizer_step(),
                      publish="first", gathers=lambda flats, comm: flats, gather_first=False,
                      target=lambda flat: flat.full, waits=lambda handles: handles, returns=lambda result: result):
    """The right operation."""
    result, handles = None if gather_first else update(optimizer_step, flats), []
    for flat in gathers(flats, comm):
        if publish == "first":
            flat.round_masters()
        handles.append(comm.all_gather(target(flat), flat.layout, flat.name))
    result = update(optimizer_step, flats) if gather_first else result
    for handle in waits(handles):
        handle.wait()
    if publish == "late":
        for flat in flats:
            flat.round_masters()
    return returns(result)
