"""The checks of 6.4 and 6.5: what stage 2 does with a full bucket, and which micro-batches are reduced."""

import contextlib
import gc
import weakref

import numpy
import torch

from .....comm.group import Comm
from .....init.deferred import deferred_init
from .....models.gpt2 import GPT
from .....zero.extras import shard
from .....zero.stage2 import reduce_scatter_and_free
from ....checks import Trial, When, exercise
from ....checks.observers.stage_probe import flats_of, give_gradient, numbers
from ....checks.observers.stage_runs import CONFIG, WatchedComm, data, training
from ...zero1.checks.zero1_ops import STAGE_1, reduction

# 6.4 ----------------------------------------------------------------------------------------------------------------

def dropped_on_a_rank(answer, numel, micros):
    """What is there after some micro-batches, and which memory is alive."""
    comm, dropped = WatchedComm(), []
    flat, = flats_of([(numel,)], 2, comm)
    drop, flat.take_bucket = flat.take_bucket, lambda: dropped.append(True) or drop()
    for micro in range(micros):
        dropped.clear()
        give_gradient(flat, numbers(numel, comm.rank) * (micro + 1))
        memory = numpy.empty(flat.layout.padded, dtype=numpy.float32)  # its life is that of the bucket's memory
        alive, flat.grad = weakref.ref(memory), torch.from_numpy(memory).copy_(flat.grad)
        del memory
        _handle, seen = reduction(answer, flat, comm)
    gc.collect()  # the handle is still there, but what it carried must be gone
    mine = flat.grad_shard if torch.is_tensor(flat.grad_shard) else torch.zeros(0)
    return {**seen, "holds": mine.untyped_storage().nbytes() - mine.nbytes, "alive": alive() is not None,
            "by hand": not dropped, "_bytes": 4 * flat.layout.padded}


def no_collective(flat, comm):
    flat.accumulate(flat.take_bucket()[flat.own].clone())


def all_reduced(flat, comm):
    flat.accumulate(comm.all_reduce(flat.take_bucket())[flat.own].clone())


def also_gathered(flat, comm, handle):
    handle.wait()
    return comm.all_gather(torch.zeros(flat.layout.padded), flat.layout, flat.name)


def own_gradient(flat, comm):
    flat.accumulate(flat.grad[flat.own].clone())
    return comm.reduce_scatter(flat.take_bucket(), flat.layout, flat.name)


def by_hand(flat):
    bucket, flat.grad = flat.grad, None
    return bucket


def remembered(flat):
    flat.kept = flat.take_bucket()
    return flat.kept


def replaced(flat, total):
    flat.grad_shard = total


@exercise(
    "6.4", "Drop the bucket", minutes=25, difficulty=2, own=reduce_scatter_and_free,
    replaces=("zerocourse.zero.stage2:*", *STAGE_1), timeout=15,
    trials=[
        Trial([(5, 1), (5, 2), (2, 1), (2, 3)], dropped_on_a_rank, worlds=(2, 3), words=reduction),
        training("reduce", 2, accumulation=2, optimizer=torch.optim.SGD, lr=0.5)],  # AdamW forgives a factor
    mistakes={
        "no collective": (no_collective, When("started")),
        "whole sum": (all_reduced, When("all-reduced")),
        "all-reduce": ({"after": also_gathered}, When("gathered")),
        "waits": ({"after": lambda flat, comm, handle: handle.wait() or handle},
                  {"after": lambda flat, comm, handle: handle.wait()}),
        "handle lost": {"after": lambda flat, comm, handle: None},
        "sum lost": {"take": lambda flat, total: None},
        "never dropped": ({"drop": lambda flat: flat.grad}, {"drop": lambda flat: flat.grad.clone()}, When("bucket")),
        "whole bucket": {"take": lambda flat, total: replaced(flat, torch.zeros(flat.layout.padded))},
        "replaced": {"take": replaced},
        "divided again": {"times": lambda comm: 1 / comm.world_size},
        "multiplied": {"times": lambda comm: comm.world_size},
        "own gradient": own_gradient,
        "added twice": {"take": lambda flat, total: flat.accumulate(total.clone()) or flat.accumulate(total)},
        "view": {"into": lambda flat, bucket: bucket[flat.own]},
        "last reference": {"drop": remembered},
        "dropped late": {"drop": lambda flat: flat.grad,
                         "take": lambda flat, total: flat.take_bucket() is None or flat.accumulate(total)},
        "by hand": {"drop": by_hand},
        "stuck": {"takes_part": lambda flat, comm: flat.layout.real(comm.rank)},
    })
def reduce_and_drop(flat, comm: Comm, *, drop=lambda flat: flat.take_bucket(), times=lambda comm: 1,
                    into=lambda flat, bucket: None, take=lambda flat, total: flat.accumulate(total),
                    after=lambda flat, comm, handle: handle, takes_part=lambda flat, comm: True):
    """times: of the bucket before it is reduced.   into: where the sum goes.   take: what is done with it when it
    arrives.   after: what is done last, and returned."""
    bucket = drop(flat)
    if not takes_part(flat, comm):
        return None
    bucket *= times(comm)
    handle = comm.reduce_scatter(bucket, flat.layout, flat.name, into=into(flat, bucket),
                                 done=lambda total: take(flat, total))
    return after(flat, comm, handle)


# 6.5 ----------------------------------------------------------------------------------------------------------------

G = 3


def accumulated_on_a_rank(answer, stage):
    """Two steps of the tiny GPT-2, by SGD since AdamW forgives a factor."""
    comm, forwards, steps, losses = WatchedComm(), [], [], []
    with deferred_init():
        model = GPT(CONFIG)
    model, optimizer = shard(model, torch.optim.SGD(model.parameters(), lr=0.5), stage=stage, comm=comm)
    step = optimizer.step

    def stepped(*args):
        comm.phase = "the step"
        steps.append(comm.phase)
        return step(*args)

    def begins(*_):
        comm.phase = f"micro-batch {len(forwards) % G + 1}"
        forwards.append(comm.phase)

    optimizer.step = stepped
    model.register_forward_pre_hook(begins)
    tokens = data(comm.rank, 2 * G)
    for batch in (tokens[:G], tokens[G:]):
        comm.calls.clear()
        losses.append(answer(model, optimizer, [(x[:, :-1], x[:, 1:]) for x in batch]))
        places = dict.fromkeys(phase for phase, verb, _ in comm.calls if verb == "reduce_scatter")
    left = model.zero.memory()["gradients_bytes"]
    losses = [float(loss) if isinstance(loss, float | torch.Tensor) else "nothing that is a number" for loss in losses]
    return {"forwards": len(forwards), "steps": len(steps),
            "parameters": [flat.full.clone() for flat in model.zero.flats], "losses": losses,
            "reduced": list(places), "left": left}


def one_backward(model, optimizer, micro_batches):
    loss = sum(model(x, y) for x, y in micro_batches) / len(micro_batches)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def mean(losses):
    return sum(losses) / len(losses)


@exercise(
    "6.5", "Which micro-batches are reduced", minutes=20, difficulty=2, timeout=15,
    trials=[Trial([(stage,)], accumulated_on_a_rank, worlds=(2,), close={"losses": 1e-3, "parameters": 1e-5})
            for stage in (1, 2)],
    mistakes={
        "left out": ({"uses": lambda batches: batches[:-1]}, {"uses": lambda batches: batches[:1]}),
        "steps inside": ({"steps": range(G), "clears": range(G), "scales": [1] * G},
                         {"steps": range(G), "clears": range(G)}),
        "no step": {"steps": ()},
        "summed": {"scales": [1] * G},
        "last not divided": {"scales": [1 / G] * (G - 1) + [1]},
        "ranks too": {"scales": [1 / 2 / G] * G},
        "last alone": ({"clears": (0, 1, "end")}, {"clears": (0, 1, "end"), "scales": [1] * G}),
        "cleared before the step": {"clears": (G - 1, "end")},
        "never cleared": {"clears": ()},
        "sum returned": {"returns": sum},
        "scaled twice": {"returns": lambda losses: mean(losses) / G},
        "last returned": {"returns": lambda losses: losses[-1]},
        "nothing returned": {"returns": lambda losses: None},
        "every micro-batch": {"reduces": range(G)},
        "never": {"reduces": ()},
        "not the last": ({"reduces": (0,)}, {"reduces": (0, 1)}),
        "one backward": one_backward,
        "cleared late": {"clears": ("begin",)},
    })
def train_step(model, optimizer, micro_batches, *, uses=list, scales=[1 / G] * G, reduces=(G - 1,), clears=("end",),
               steps=("end",), returns=mean):
    """reduces: the micro-batches whose backward may reduce.   clears, steps: after which of them the gradients are
    cleared, or the optimizer steps; at the "end" the step comes first."""
    losses = []

    def after(moment):
        if moment in steps:
            optimizer.step()
        if moment in clears:
            optimizer.zero_grad()

    after("begin")
    for number, (x, y) in enumerate(uses(micro_batches)):
        with contextlib.nullcontext() if number in reduces else model.zero.no_sync():
            loss = model(x, y)
            (loss * scales[number]).backward()
        losses.append(loss.item())
        after(number)
    after("end")
    return returns(losses)
