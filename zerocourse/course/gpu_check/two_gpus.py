"""Checks of NCCL between two ranks with a GPU each: the stages, unequal slices, pipelines, tensor and context parallelism, a death.

What is wrong with the order of calls shows there as a wait without an end, so each one has its own limit, and the ranks are
started again after it.
"""

import copy
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

from ...comm import Comm, bootstrap
from ...launch import RankDied, Ranks
from ...models.gpt2 import GPT
from ...models.model_layers import model_layers
from ...parallel.context import positions_of
from ...parallel.context.context_parallel import KINDS
from ...parallel.norms import clip_grad_norm
from ...parallel.pipeline import Pipeline, gpipe, interleaved, one_f_one_b, plan, zb_h1
from ...parallel.tensor import tensor_parallel
from .check_record import EXACT, Record
from .one_gpu import SETTINGS, STAGES, ranks_beside_one
from .small_training import apart, config, tokens_of

RANKS = 2
SCHEDULES = {"gpipe": (gpipe, 1), "1f1b": (one_f_one_b, 1), "interleaved": (interleaved, 2), "zb-h1": (zb_h1, 1)}
MICRO_BATCHES = 4
SECONDS = 30  # for one call of the ranks: it takes one or two, or has no end


def stages(record: Record) -> None:
    """Stages 0 to 3 with a GPU for each rank, beside one process with the samples of both."""
    ranks_beside_one(record, "nccl", STAGES | SETTINGS)


def unequal_slices(record: Record) -> None:
    """Owner maps, whose slices differ: NCCL has no collective for these, so they go by messages."""
    ranks_beside_one(record, "nccl", {f"stage {stage}, greedy map": {"stage": stage, "rank_map": "greedy"} for stage in (1, 2, 3)})


@contextmanager
def two_ranks() -> Iterator[Ranks]:
    with Ranks(RANKS, quiet=True, timeout=SECONDS) as ranks:
        yield ranks


# -- pipelines --------------------------------------------------------------------------------------------------------

def pipelines(record: Record) -> None:
    """Each schedule with messages of 4 MiB, which is more than NCCL takes before the receiver is there."""
    rows, width = (8, 32) if record.tiny else (1024, 1024)
    record.note(message_bytes=4 * rows * width)
    with two_ranks() as ranks:
        for name in SCHEDULES:
            with record.trying(name):
                record.within(EXACT, {name: max(ranks.run(pipeline_apart, name, rows, width))})


def pipeline_apart(name: str, rows: int, width: int) -> float:
    """How far two steps of the schedule are from one process: of losses and norms the largest relative difference."""
    device, (compute, chunks) = bootstrap.device(), SCHEDULES[name]
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(width, width), nn.GELU()).to(device) for _ in range(4)]
    whole = copy.deepcopy(nn.Sequential(*layers))
    pipeline = Pipeline(layers, plan(name, compute, RANKS, MICRO_BATCHES, chunks), F.mse_loss)
    inputs, targets = (torch.randn(MICRO_BATCHES * rows, width, device=device) for _ in range(2))
    ours, theirs = [], []
    for _ in range(2):
        ours += [pipeline.step(inputs, targets), float(pipeline.clip_grad_norm(1.0))]
        loss = F.mse_loss(whole(inputs), targets)
        loss.backward()
        theirs += [loss.item(), float(torch.nn.utils.clip_grad_norm_(whole.parameters(), 1.0))]
        for parameters in (pipeline.parameters(), whole.parameters()):
            optimizer = torch.optim.SGD(parameters, lr=0.1)
            optimizer.step()
            optimizer.zero_grad()
    return apart(ours, theirs)


def ties(record: Record) -> None:
    """A GPT-2 whose embedding is its head, on the first rank and on the last: its two gradients are added up."""
    with two_ranks() as ranks:
        for name in ("gpipe", "1f1b"):
            with record.trying(name):
                record.within(EXACT, {name: max(ranks.run(tied_apart, name, record.tiny))})


def tied_apart(name: str, tiny: bool) -> float:
    torch.manual_seed(0)
    model = GPT(config(tiny)).to(bootstrap.device())
    whole = copy.deepcopy(model)
    pipeline = Pipeline(model_layers(model), plan(name, SCHEDULES[name][0], RANKS, MICRO_BATCHES), model.loss)
    tokens = tokens_of(config(tiny), 0, 0, 0).to(bootstrap.device())
    loss = whole(tokens, tokens)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(whole.parameters(), 1.0)
    return apart([pipeline.step(tokens, tokens), float(pipeline.clip_grad_norm(1.0))], [loss.item(), float(norm)])


# -- tensors and sequences --------------------------------------------------------------------------------------------

def tensors(record: Record) -> None:
    """Tensor parallelism, with tokens whole and cut between its regions: the losses of one process."""
    with two_ranks() as ranks:
        for sequence in (False, True):
            what = "tokens cut" if sequence else "tokens whole"
            with record.trying(what):
                record.within(EXACT, {what: max(ranks.run(tensor_apart, sequence, record.tiny))})


def tensor_apart(sequence: bool, tiny: bool) -> float:
    torch.manual_seed(0)
    model = GPT(config(tiny)).to(bootstrap.device())
    whole, comm, losses = copy.deepcopy(model), Comm(), []
    tensor_parallel(model, comm, sequence=sequence)
    for each, comms in ((model, [comm]), (whole, [])):
        optimizer = torch.optim.AdamW(each.parameters(), lr=1e-3)
        for step in range(3):
            tokens = tokens_of(config(tiny), step, 0, 0).to(bootstrap.device())
            loss = each(tokens, tokens)
            loss.backward()
            losses += [loss.item(), float(clip_grad_norm(each.parameters(), comms, 1.0))]
            optimizer.step()
            optimizer.zero_grad()
    return apart(losses[:6], losses[6:])


def sequences(record: Record) -> None:
    """Attention over a sequence that is cut: a ring of keys and values, and Ulysses' heads; the output and three gradients."""
    with two_ranks() as ranks:
        for kind in KINDS:
            with record.trying(kind):
                record.within(EXACT, {kind: max(ranks.run(attention_apart, kind, record.tiny))})


def attention_apart(kind: str, tiny: bool) -> float:
    """The largest difference, as a part of the largest number."""
    comm, device, (heads, tokens, width) = Comm(), bootstrap.device(), (2, 16, 4) if tiny else (8, 4096, 64)
    attend = KINDS[kind](comm, "attention")
    whole = [torch.randn(2, heads, tokens, width, device=device, requires_grad=True) for _ in range(3)]
    gradient = torch.randn(2, heads, tokens, width, device=device)
    mine = positions_of(comm.rank, comm.world_size, tokens, attend.order).to(device)
    part = [each.detach()[:, :, mine].requires_grad_() for each in whole]
    out = attend(*part)
    out.backward(gradient[:, :, mine])
    expected = F.scaled_dot_product_attention(*whole, is_causal=True)
    expected.backward(gradient)
    pairs = [(out, expected), *((one.grad, other.grad) for one, other in zip(part, whole, strict=True))]
    return max(((one - other[:, :, mine]).abs().max() / other.abs().max()).item() for one, other in pairs)


# -- a rank that dies -------------------------------------------------------------------------------------------------

def killed_rank(record: Record) -> None:
    """A rank is killed while the other one waits for it: the other one ends too, soon, and new ranks can use both GPUs."""
    with two_ranks() as ranks:
        ranks.run(add_up, None)
        began = time.perf_counter()
        try:
            ranks.run(add_up, 1)
            record.expect(False, "the ranks returned although one of them was killed")
        except RankDied as died:
            record.note(said=died)
        record.note(seconds=time.perf_counter() - began)
        record.expect(ranks.run(add_up, None) == [RANKS, RANKS], "new ranks do not add up")


def add_up(victim: int | None) -> float:
    """The sum of a one from each rank; the victim is killed before it."""
    comm = Comm()
    if comm.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    ones = torch.ones(1 << 20, device=bootstrap.device())
    comm.all_reduce(ones)
    return ones[0].item()
