"""The check of 6.7: find the bug in a reduction that receives every micro-batch's sum in the same memory."""

import gc
import weakref

import numpy
import torch

from .....comm.group import Comm
from ....checks import Trial, When, exercise
from ....checks.observers.stage_probe import flats_of, give_gradient, numbers
from ....checks.observers.stage_runs import WatchedComm, training
from ...zero1.checks.zero1_ops import STAGE_1, reduction


class ReceivingComm(WatchedComm):
    """Keeps what each sum was to arrive in, so that no two of them have the same address by luck."""

    def __init__(self):
        super().__init__()
        self.into = []

    def reduce_scatter(self, tensor, layout, unit, into=None, done=None):
        self.into.append(into)
        return super().reduce_scatter(tensor, layout, unit, into, done)


def received_on_a_rank(answer, numel, micros, steps):
    """Gradients of some steps of some micro-batches each; all values differ, so that each kind of sum can be told."""
    comm = ReceivingComm()
    flat, = flats_of([(numel,)], 2, comm)
    for step in range(steps):
        flat.clear_gradients()
        for micro in range(micros):
            give_gradient(flat, numbers(numel, comm.rank) * (1 + micro + 4 * step)**2)
            memory = numpy.empty(flat.layout.padded, dtype=numpy.float32)  # its life is that of the bucket's memory
            alive, flat.grad = weakref.ref(memory), torch.from_numpy(memory).copy_(flat.grad)
            del memory
            _handle, seen = reduction(answer, flat, comm)
    gc.collect()
    where = [object() if into is None else into.untyped_storage()._cdata for into in comm.into]
    mine = flat.grad_shard.untyped_storage()._cdata if torch.is_tensor(flat.grad_shard) else None
    return {**seen, "alive": alive() is not None, "aliased": mine in where, "receivers": len(set(where)),
            "_sums": len(where)}


def replaced(flat, total):
    flat.grad_shard = total.clone()


def aliased(flat, total):
    flat.grad_shard = total if flat.grad_shard is None else flat.grad_shard + total


def copied_and_added(flat, total):
    if flat.grad_shard is None:
        flat.grad_shard = total.clone()
    flat.grad_shard += total


def emptied(flat, total):
    flat.accumulate(total)
    flat.received = torch.zeros_like(flat.received)


def before_the_sum(flat, bucket):
    flat.accumulate(flat.received.clone())
    return bucket


def own_gradient(flat, bucket):
    flat.accumulate(bucket[flat.own].clone())
    return bucket


def nothing(flat, total):
    pass


@exercise(
    "6.7", "Find the bug: lost micro-batches", minutes=20, difficulty=2,
    replaces=("zerocourse.zero.stage2:*", *STAGE_1), timeout=15,
    trials=[
        Trial([(5, 1, 1), (5, 2, 1), (5, 3, 1), (2, 3, 1), (5, 2, 2)], received_on_a_rank, worlds=(2, 3),
              words=reduction),
        training("reduce", 2, accumulation=2, optimizer=torch.optim.SGD, lr=0.5)],  # AdamW forgives a factor
    mistakes={
        "the bug": {"take": lambda flat, total: flat.accumulate(total)},
        "copied late": {"take": aliased},
        "last alone": {"take": replaced},
        "first twice": {"take": copied_and_added},
        "halved": {"take": lambda flat, total: flat.accumulate(total.div_(2)) if flat.grad_shard is not None else
                   flat.accumulate(total)},
        "before the sum": {"send": before_the_sum, "take": nothing},
        "own gradient": {"send": own_gradient, "take": nothing},
        "divided again": {"take": lambda flat, total: flat.accumulate(total / flat.divisor)},
        "own memory": ({"into": lambda flat, bucket: None}, {"take": emptied}, When("receivers")),
        "in the bucket": {"into": lambda flat, bucket: bucket[flat.own]},
        "waits": ({"after": lambda handle: handle.wait() or handle}, {"after": lambda handle: handle.wait()}),
        "stuck": {"takes_part": lambda flat, comm: flat.layout.real(comm.rank)},
    })
def reduce_repaired(flat, comm: Comm, *, take=lambda flat, total: flat.accumulate(total.clone()),
                    into=lambda flat, bucket: flat.received, send=lambda flat, bucket: bucket,
                    after=lambda handle: handle, takes_part=lambda flat, comm: True):
    """take: what is done with the sum when it arrives.   into: where it arrives.   send: what is done with the bucket
    before.   after: what is done with the handle."""
    bucket = flat.take_bucket()
    if not hasattr(flat, "received"):
        flat.received = torch.zeros(flat.own.stop - flat.own.start)
    if not takes_part(flat, comm):
        return None
    return after(comm.reduce_scatter(send(flat, bucket), flat.layout, flat.name, into=into(flat, bucket),
                                     done=lambda total: take(flat, total)))
