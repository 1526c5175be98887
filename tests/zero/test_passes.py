"""Passes other than one forward and its backward, alike on every rank; what a pass sends, holds and leaves behind."""

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
import worlds
from attempts import attempts, by_stage, check_cases, gathered_units, is_state, judge, of_stack, pieces_of, prepared, report, state_of, unsharded
from torch import nn
from torch.utils.checkpoint import checkpoint
from worlds import STAGES, Block, Case, Recomputed, RecomputedReentrant, Stack, check_exact, rows, squares

from zerocourse import shard, state_dict
from zerocourse.comm import Comm
from zerocourse.offload import HostOffload
from zerocourse.zero.buffers.unit import Unit, cut_into_units
from zerocourse.zero.passes.schedule import Prefetcher

# -- the same collectives in the same order --------------------------------------------------------------------------

class TwoOutputs(Block):
    def forward(self, x):
        h = torch.tanh(self.up(x))
        return x + self.down(h), h.sum()


class UsesBoth(Stack):
    """Rank 0 uses each block's first output, rank 1 both, the others the second alone."""

    block = TwoOutputs

    def forward(self, x, rank):
        x, total = self.first(x), 0
        for block in self.blocks:
            first, second = block(x)
            x, total = (first if rank < 2 else x + second), total + (second if rank else 0)
        return self.last(x) + 0.1 * total


def of_a_stack(make: Callable = Stack) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = make()
    return model, worlds.sgd(model.parameters())


def knows_rank(model, step, micro, rank):
    return model(rows(step, micro, rank), rank).square().mean()


@pytest.mark.parametrize("world_size", (2, 3))
def test_blocks_of_two_outputs_of_which_a_rank_uses_one(pool, world_size):
    """`judge` compares the order of collectives; the results are compared here."""
    check_cases(pool, [case for prefetch in (2, 3) for case in of_stack(
        UsesBoth, stages=(3,), loss=knows_rank, steps=3, world_size=world_size, optimizer=worlds.sgd,
        options=(("prefetch", prefetch),))], tolerance=1e-6)


class TwoTowers(nn.Module):
    """The second tower works on the raw input, which needs no gradient. Its blocks follow each other, or stand side by
    side."""

    def __init__(self, side_by_side: bool):
        super().__init__()
        torch.manual_seed(1)
        self.side_by_side, self.first = side_by_side, nn.Linear(6, 6)
        self.a, self.b = (nn.ModuleList(Block() for _ in range(6)) for _ in range(2))

    def forward(self, x):
        a, b = self.first(x), x
        for block in self.a:
            a = block(a)
        for block in self.b:
            b = b + block(x) if self.side_by_side else block(b)
        return a * b


def most_buckets(comm, side_by_side: bool) -> int:
    """The most buckets of units, the root's apart, that hold gradients at a time."""
    model, _optimizer = shard(TwoTowers(side_by_side), stage=3, comm=comm)
    most = 0

    def count(_):
        nonlocal most
        most = max(most, sum(any(flat.grad is not None for flat in unit.flats) for unit in model.zero.units[1:]))

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(count)
    for step in range(3):
        squares(model, step, 0, comm.rank).backward()
    return most


class Ignoring(Block):
    """Has a parameter that no forward uses."""

    def __init__(self):
        super().__init__()
        self.spare = nn.Parameter(torch.ones(3))


class IgnoringBlocks(Stack):
    block = Ignoring


def held_by_the_end(comm: Comm, stage: int, make: Callable) -> list[set[str]]:
    """In each of two steps: the units, the root's apart, that hold parameters (stage 3) or a bucket when the first block's
    last gradient has come."""
    model, optimizer = shard(*of_a_stack(make), stage, comm=comm)
    seen = []

    def look(_) -> None:
        holding = {unit.name for unit in model.zero.units[1:] if any(flat.grad is not None for flat in unit.flats)}
        seen.append(holding | set(gathered_units(model) if stage == 3 else ()))

    model.blocks[0].up.weight.register_post_accumulate_grad_hook(look)
    for step in range(2):
        squares(model, step, 0, comm.rank).backward()
        optimizer.step()
        optimizer.zero_grad()
    return seen


@pytest.mark.parametrize("make", (Stack, IgnoringBlocks, Recomputed, RecomputedReentrant))
def test_what_a_backward_is_past_is_reduced_and_freed(pool, make):
    """Also where autograd brings no gradient for a parameter, and where blocks are computed again."""
    def not_the_last(rank: int, seen: list) -> None:
        assert len(seen) == 2 and not any("blocks.2" in names for names in seen), f"rank {rank} still holds {seen}"

    by_stage(pool, held_by_the_end, not_the_last, args=(make,), stages=(2, 3))


class DownFirst(Block):
    """Its parameters stand in the other order than it uses them, so its first bucket is not the last to be full."""

    def __init__(self):
        super().__init__()
        up = self.up
        del self.up
        self.up = up


class DownFirstReentrant(RecomputedReentrant):
    block = DownFirst


class ReentrantInside(Stack):
    """A unit that uses a layer of its own after its blocks, which are computed again: autograd knows of their gradients late."""

    def __init__(self):
        super().__init__()
        self.nest = RecomputedReentrant()

    def forward(self, x):
        return self.nest(super().forward(x))


NESTED = ("nest", *(f"nest.blocks.{number}" for number in range(3)))


def reductions(comm: Comm, stage: int, make: Callable, flags: tuple[dict, ...]) -> list[float]:
    """In each of two steps: reductions a bucket."""
    units = list(NESTED) if make is ReentrantInside else None
    model, optimizer = shard(*of_a_stack(make), stage, comm=comm, bucket_size=20, in_flight=9, units=units)
    found = []
    for step in range(2):
        before = len(comm.issued)
        for micro, flag in enumerate(flags):
            with model.zero.backward_options(**flag):
                squares(model, step, micro, comm.rank).backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(sum(verb == "reduce_scatter" for verb, *_ in list(comm.issued)[before:]) / len(model.zero.flats))
    return found


@pytest.mark.parametrize("make", (Stack, DownFirstReentrant, ReentrantInside))
@pytest.mark.parametrize("flags", (({},), ({"is_last": False}, {"is_last": False}, {})))
def test_a_backward_reduces_each_bucket_once(pool, make, flags):
    def once(rank: int, found: list) -> None:
        assert found == [len(flags)] * 2, f"rank {rank} reduced each bucket {found} times in {len(flags)} backwards"

    by_stage(pool, reductions, once, args=(make, flags))


class LastAlone(Stack):
    """Can be called for its last block alone."""

    def forward(self, x, alone=False):
        return self.last(self.blocks[2](self.first(x))) if alone else super().forward(x)


def held_after_the_second_block(comm: Comm, stage: int) -> list[set[str]]:
    """The units that hold a bucket when the first block's gradients come, in one backward through two forwards."""
    model, _ = shard(*of_a_stack(LastAlone), stage, comm=comm)
    seen = []
    model.blocks[0].up.weight.register_post_accumulate_grad_hook(
        lambda _: seen.append({unit.name for unit in model.zero.units[1:] if any(flat.grad is not None for flat in unit.flats)}))
    (squares(model, 0, 0, comm.rank) + model(rows(0, 1, comm.rank), alone=True).square().mean()).backward()
    return seen


def test_the_root_is_reduced_last_also_where_forwards_use_other_units(pool):
    def only_the_first(rank: int, seen: list) -> None:
        assert len(seen) == 1 and seen[0] <= {"blocks.0"}, f"rank {rank} still holds {seen}"

    by_stage(pool, held_after_the_second_block, only_the_first, stages=(2,))


@pytest.mark.parametrize("side_by_side", (False, True))
def test_towers_hold_one_bucket_at_a_time(pool, side_by_side):
    def one(rank, most):
        assert most == 1, f"rank {rank} held the buckets of {most} units at a time"

    report([judge("two towers", ranks, one, None) for ranks in attempts(pool, most_buckets, [(side_by_side,)])])
    check_cases(pool, of_stack(partial(TwoTowers, side_by_side), optimizer=worlds.sgd), tolerance=1e-6)


class SideBranch(Stack):
    """The middle block runs on every rank, and what it returns enters the loss on some of them only."""

    def forward(self, x, used):
        x = self.first(x)
        side = self.blocks[1](x)
        x = self.blocks[2](self.blocks[0](x))
        return self.last(x) + (side if used else 0)


def on_rank_0(model, step, micro, rank):
    return model(rows(step, micro, rank), rank == 0).square().mean()


def on_rank_1(model, step, micro, rank):
    return model(rows(step, micro, rank), rank == 1).square().mean()


@pytest.mark.parametrize("loss", (on_rank_0, on_rank_1))
def test_a_unit_that_enters_the_loss_on_one_rank_only(pool, loss):
    """Its parameters have no gradient on the other rank. Both ranks ran it: the advice to do so would not be true."""
    advice = r"^(?!.*must run the same units).*blocks\.1"
    cases = of_stack(SideBranch, loss=loss, optimizer=worlds.sgd)
    cases += [replace(cases[-1], options=(("prefetch", depth),)) for depth in (0, 2)]
    check_cases(pool, cases, 1e-6, advice, ("BadInput", "CollectiveError"))


# -- several passes at once ------------------------------------------------------------------------------------------

def only_the_root(model) -> None:
    if hasattr(model, "zero") and model.zero.number == 3:
        assert not gathered_units(model), f"{gathered_units(model)} stay gathered after a backward"


def first_then_second(model, step, micro, rank):
    """Both forwards, then the first's backward; the second's is the caller's."""
    only_the_root(model)
    first, second = (squares(model, step + 50 * index, micro, rank) for index in range(2))
    first.backward()
    only_the_root(model)
    return second


def second_then_first(model, step, micro, rank):
    only_the_root(model)
    first, second = (squares(model, step + 50 * index, micro, rank) for index in range(2))
    second.backward()
    only_the_root(model)
    return first


def interleaved(model, step, micro, rank):
    """A pipeline's order: F1 F2 B1 F3 B2, and the caller's B3."""
    only_the_root(model)
    first, second = (squares(model, step + 50 * index, micro, rank) for index in range(2))
    first.backward()
    only_the_root(model)
    third = squares(model, step + 100, micro, rank)
    second.backward()
    only_the_root(model)
    return third


@pytest.mark.parametrize("loss", (first_then_second, second_then_first, interleaved))
def test_passes_that_are_alive_at_once(pool, loss):
    cases = of_stack(loss=loss, optimizer=worlds.sgd, steps=3)
    check_cases(pool, cases + [replace(cases[-1], options=(("prefetch", 2),))], tolerance=1e-6)


class Recursive(Stack):
    """Calls itself, one block a level."""

    def forward(self, x, level: int = 0):
        x = self.blocks[level](x if level else self.first(x))
        return self(x, level + 1) if level < 2 else self.last(x)


class RecursiveBlock(Block):
    def forward(self, x, level: int = 0):
        x = super().forward(x)
        return self(x, level + 1) if level < 1 else x


class RecursiveBlocks(Stack):
    block = RecursiveBlock


@pytest.mark.parametrize("make", (Recursive, RecursiveBlocks))
def test_a_module_that_calls_itself(pool, make):
    check_cases(pool, of_stack(make, optimizer=worlds.sgd), 1e-6, "calls itself|recurs")


# -- groups ----------------------------------------------------------------------------------------------------------

def hybrid(_, case: Case, backwards: tuple = (), offload: Callable = lambda: None) -> tuple[worlds.Run, dict[str, int], list, int]:
    """Two shards by two replicas: what came of the training, the bytes held, what this rank sent in which order, and how
    often it sent its slice to its replica in a step.   backwards: the options of each micro-batch's backward."""
    pairs = [dist.new_group(ranks, timeout=timedelta(seconds=3)) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
    rank, model = dist.get_rank(), case.make()
    with torch.no_grad():
        model.first.weight += rank  # as if each rank had built another model
    model, optimizer = shard(model, case.optimizer(model.parameters()), case.stage, case.rank_map, bucket_size=case.bucket_size,
                             shard_group=pairs[rank // 2], replicate_group=pairs[2 + rank % 2], offload=offload())
    losses, held = [], {}
    for step in range(case.steps):
        losses.append(0.0)
        for micro in range(case.accumulation):  # each is reduced at once
            with model.zero.backward_options(**(backwards[micro] if backwards else {})):
                loss = case.loss(model, step, micro, rank) / case.accumulation  # the rows of all four ranks differ
                loss.backward()
            losses[-1] += loss.item()
        held = {"gradients": model.zero.memory(optimizer)["gradients_bytes"]}
        if case.clip:
            model.zero.clip_grad_norm_(case.clip)
        optimizer.step()
        held |= {kind: model.zero.memory(optimizer)[f"{kind}_bytes"] for kind in ("optimizer", "parameters")}
        optimizer.zero_grad()
    local = ("forward", "backward", "wait", "reshard", "step")
    order = [(event.verb, event.unit) for event in sorted(model.zero.recorder.events, key=lambda event: event.start)
             if event.verb not in local]
    slices = case.steps * sum(flat.shard.nbytes for flat in model.zero.flats)
    return worlds.Run(losses, state_dict(model), []), held, order, sum(model.zero.groups.replicate.sent.values()) / slices


class UsedByOne(Stack):
    """A layer that one rank of four uses: its replica must hear of it from the other node."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(6, 6)

    def forward(self, x, used):
        return super().forward(self.other(x) if used else x)


def by_rank_0(model, step, micro, rank):
    return model(rows(step, micro, rank), rank == 0).square().mean()


def test_shards_within_replicas(pool):
    """Hybrid sharding on 2 x 2 ranks: the unsharded run over the rows of all four, and half of the states on each."""
    cases, complaints = of_stack(stages=(1, 2, 3), world_size=4, optimizer=worlds.sgd), []
    cases += of_stack(UsedByOne, stages=(1,), world_size=4, optimizer=worlds.sgd, loss=by_rank_0)
    cases += [replace(case, accumulation=2) for case in cases[:2]]
    for case, ranks in zip(cases, attempts(pool, hybrid, [(case,) for case in cases], 4), strict=True):
        whole = sum(4 * param.numel() for param in case.make().parameters())

        def check(rank: int, value: tuple, case=case, whole=whole, first=ranks[0]["value"]) -> None:
            run, held, order, _ = value
            worlds.check_near(run, worlds.exact(case)[rank], f"rank {rank}")
            assert order == first[2], f"rank {rank} issued {order}, rank 0 issued {first[2]}"
            for index, kind in enumerate(("optimizer", "gradients", "parameters")):
                expected = whole // 2 if index < case.stage else whole
                padding = 4 * 5  # an element in each of five rows
                assert abs(held[kind] - expected) <= padding, \
                    f"rank {rank} holds {held[kind]} bytes of {kind}, not {expected}"

        complaints.append(judge(str(case), ranks, check, None))
    report(complaints)


@pytest.mark.parametrize("stage", STAGES)
def test_a_rank_that_owns_nothing_of_a_bucket_within_replicas(pool, stage):
    """Its reduction has as many parts as that of the others, so that all issue in one order."""
    case = Case(stage, 4, Stack, worlds.squares, worlds.sgd, rank_map="greedy", bucket_size=1)
    for rank, (run, *_) in enumerate(pool(4).run(hybrid, None, case)):
        worlds.check_near(run, worlds.exact(case)[rank], f"rank {rank}")


@pytest.mark.parametrize("stage", (1, 2, 3))
@pytest.mark.parametrize("backwards, sums", (
    (({"reduces": False}, {"reduces": False}, {}), 1), (({"is_last": False}, {"is_last": False}, {"is_last": True}), {1: 3, 2: 1, 3: 1}),
    (({"reduces": False},) * 3, 1), (({}, {"reduces": False}, {}), 2), (({}, {}, {}), 3)))
def test_replicas_are_summed_once_where_the_backwards_say_which_is_the_last(pool, stage, backwards, sums):
    """Over the slow link a rank sends its slice once in an optimizer step, 2 (own)(R - 1)/R elements, however many
    micro-batches there are; where no backward says so, each is summed for itself."""
    [case] = of_stack(stages=(stage,), world_size=4, optimizer=worlds.sgd, accumulation=3)
    ranks = pool(4).run(hybrid, None, case, backwards)
    times = sums[stage] if isinstance(sums, dict) else sums
    for rank, (run, _, order, sent) in enumerate(ranks):
        worlds.check_near(run, worlds.exact(case)[rank], f"rank {rank}")
        assert order == ranks[0][2], f"rank {rank} issued {order}, rank 0 issued {ranks[0][2]}"
        assert sent == times, f"rank {rank} sent its slice {sent} times in a step, and not {times}"


def test_replicas_are_summed_before_a_gradient_goes_to_the_host(pool):
    """With its norm, which is taken on the way."""
    [case] = of_stack(stages=(3,), world_size=4, optimizer=worlds.sgd, accumulation=2, clip=0.05)
    for rank, (run, *_, sent) in enumerate(pool(4).run(hybrid, None, case, ({"reduces": False}, {"reduces": False, "is_last": True}), HostOffload)):
        worlds.check_near(run, worlds.exact(case)[rank], f"rank {rank}")
        assert sent == 1


# -- frozen parameters -----------------------------------------------------------------------------------------------

class Adapted(Block):
    """A frozen block with a small adapter that trains."""

    def __init__(self):
        super().__init__()
        self.requires_grad_(False)
        self.a, self.b = nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False)

    def forward(self, x):
        return super().forward(x) + self.b(self.a(x))


class LowRank(Stack):
    block = Adapted

    def __init__(self):
        super().__init__()
        self.first.requires_grad_(False)
        self.last.requires_grad_(False)


class FrozenFront(Stack):
    """Of three blocks the last two train."""

    def __init__(self):
        super().__init__()
        self.first.requires_grad_(False)
        self.blocks[0].requires_grad_(False)


def gathered_by_a_backward(comm: Comm, stage: int) -> set[str]:
    """The units whose parameters a backward gathers."""
    model, _ = shard(*of_a_stack(FrozenFront), stage, comm=comm, prefetch=0)
    loss = squares(model, 0, 0, comm.rank)
    before = len(comm.issued)
    loss.backward()
    return {unit.partition("[")[0] for verb, unit, *_ in list(comm.issued)[before:] if verb == "all_gather"}


def test_a_backward_stops_at_the_last_unit_that_trains(pool):
    def two_blocks(rank: int, units: set) -> None:
        assert units == {"root", "blocks.1", "blocks.2"}, f"rank {rank} gathered {units}"

    by_stage(pool, gathered_by_a_backward, two_blocks, stages=(3,))


def sent_per_step(comm: Comm, stage: int) -> list[dict[str, int]]:
    """Elements that the ranks sent together in each step, by verb."""
    model = LowRank()
    model, optimizer = shard(model, worlds.sgd(model.parameters()), stage, comm=comm)
    sent = []
    for step in range(3):
        before = dict(comm.elements)
        squares(model, step, 0, comm.rank).backward()
        optimizer.step()
        optimizer.zero_grad()
        mine = [comm.elements[verb] - before.get(verb, 0) for verb in ("reduce_scatter", "all_gather")]
        sent.append(comm.all_reduce(torch.tensor(mine)).tolist())
    return sent


@pytest.mark.parametrize("world_size", (2, 3))
def test_frozen_parameters_are_not_sent_again(pool, world_size):
    """Below stage 3 a step sends the gradients and the values of what trains, N - 1 times each, and nothing else."""
    trainable = sum(param.numel() for param in LowRank().parameters() if param.requires_grad)

    def check(rank: int, sent: list) -> None:
        expected = [[trainable * (world_size - 1)] * 2] * 3
        assert sent == expected, f"sent by reduce_scatter and all_gather in three steps: {sent}, not {expected}"

    by_stage(pool, sent_per_step, check, stages=(0, 1, 2), world_size=world_size)


def test_frozen_blocks_with_adapters(pool):
    cases = of_stack(LowRank, optimizer=worlds.sgd)
    check_cases(pool, cases + [replace(case, accumulation=2) for case in cases], tolerance=1e-6)


# -- what zero_grad leaves behind ------------------------------------------------------------------------------------

class TwoWays(Stack):
    """A layer of the root and one of a block that only every second step uses."""

    def __init__(self):
        super().__init__()
        self.other, self.blocks[1].other = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x, other: bool):
        x = self.first(x)
        x = self.blocks[1].other(self.other(x)) if other else x
        return super().forward(x)


def every_second_step(model, step, micro, rank):
    return model(rows(step, micro, rank), step % 2 == 0).square().mean()


@pytest.mark.parametrize("optimizer", (worlds.sgd, worlds.adamw))
def test_no_gradient_in_this_step_is_no_step(pool, optimizer):
    """Neither decay nor momentum moves a parameter that had a gradient in the last step and has none in this one."""
    check_cases(pool, of_stack(TwoWays, loss=every_second_step, steps=4, optimizer=optimizer), tolerance=1e-6)


class LateRoot(Stack):
    """The root's weight and a block's are used once more at the end: their gradients come early, and again."""

    def forward(self, x):
        return nn.functional.linear(super().forward(x) + self.first(x), self.blocks[0].up.weight)


def discarding(around: Callable):
    """A loss, after a backward (inside `around(model)`) whose gradients are thrown away."""

    def loss(model, step, micro, rank):
        with around(model):
            squares(model, step + 70, micro, rank).backward()
        model.zero_grad()
        return squares(model, step, micro, rank)

    return loss


def plain(model):
    return nullcontext()


def unsynchronised(model):
    return model.zero.no_sync() if hasattr(model, "zero") else nullcontext()


def left_open(model):
    """Its reductions are still in flight afterwards."""
    return model.zero.backward_options(is_last=False) if hasattr(model, "zero") else nullcontext()


@pytest.mark.parametrize("around", (plain, unsynchronised, left_open))
@pytest.mark.parametrize("make", (Stack, LateRoot))
def test_zero_grad_forgets_a_whole_backward(pool, make, around):
    check_cases(pool, of_stack(make, loss=discarding(around), optimizer=worlds.sgd), tolerance=1e-6)


class TwiceReentrant(Stack):
    """Each block's gradients come in two parts, the second when the first has left."""

    def forward(self, x):
        x = self.first(x)
        for block in (*self.blocks, *self.blocks):
            x = checkpoint(block, x, use_reentrant=True)
        return self.last(x)


@pytest.mark.parametrize("loss", (squares, discarding(left_open)))
def test_gradients_that_come_late(pool, loss):
    """They wait while their bucket is in flight, are reduced after it, and are forgotten with it."""
    check_cases(pool, of_stack(TwiceReentrant, loss=loss, optimizer=worlds.sgd, options=(("in_flight", 9),)), tolerance=1e-6)


def after_zero_grad(comm: Comm, stage: int) -> list[tuple]:
    """What a step issues after the gradients were thrown away."""
    model, optimizer = shard(*of_a_stack(), stage, comm=comm)
    with left_open(model):
        squares(model, 0, 0, comm.rank).backward()
    optimizer.zero_grad()
    before = len(comm.issued)
    optimizer.step()
    return list(comm.issued)[before:]


def test_a_step_after_zero_grad_sends_nothing(pool):
    def nothing(rank: int, issued: list) -> None:
        assert not issued, f"rank {rank} issued {issued}"

    by_stage(pool, after_zero_grad, nothing)


def while_a_forward_is_kept(comm: Comm, stage: int) -> tuple[list, list]:
    """What a backward issues where the first rank has kept the loss of a forward of before the last step, and where none has."""
    model, optimizer = shard(*of_a_stack(), stage, comm=comm)
    kept, issued = [], []
    for keeps in (False, comm.rank == 0):
        kept += [squares(model, 9, 0, 0)] if keeps else []
        for step in range(2):
            before = len(comm.issued)
            squares(model, step, 0, comm.rank).backward()
            optimizer.step()
        issued.append([call[:2] for call in list(comm.issued)[before:]])
    return issued


def test_a_forward_of_before_the_last_step_is_in_no_backward(pool):
    """Else each backward of that rank would have one forward more to speak of, and would reduce nothing before its end."""
    def alike(rank: int, issued: list) -> None:
        assert issued[0] == issued[1]

    by_stage(pool, while_a_forward_is_kept, alike, stages=(0, 1, 2))


def with_a_graph(comm: Comm | None, stage: int | None) -> dict:
    """A backward that records itself, as for a second derivative."""
    model, optimizer = prepared(comm, stage)
    squares(model, 0, 0, 0).backward(create_graph=True)
    optimizer.step()
    return state_of(model)


@pytest.mark.filterwarnings("ignore:Using backward.*create_graph:UserWarning")
def test_a_backward_that_records_itself(pool):
    by_stage(pool, with_a_graph, unsharded(with_a_graph), stages=(0, 1, 2))


def of_a_pipeline(stage: int, **first) -> tuple[dict, list, int]:
    """Two micro-batches, the first with what `backward` was told of it: the state, the verbs that it and the forward of the
    second issued, and the bytes of parameters held after the first."""
    case = of_stack(stages=(stage,), steps=1, accumulation=2, optimizer=worlds.sgd)[0]
    model, optimizer = worlds.sharded(case)
    comm = model.zero.comm
    loss = case.loss(model, 0, 0, comm.rank) / 2
    before = len(comm.issued)
    with model.zero.backward_options(**first):
        loss.backward()
    held = sum(flat.storage.nbytes for flat in model.zero.flats if flat.gathered)
    loss = case.loss(model, 0, 1, comm.rank) / 2
    verbs = [verb for verb, name, *_ in list(comm.issued)[before:] if name != "program"]
    loss.backward()
    optimizer.step()
    return state_dict(model), verbs, held


@pytest.mark.parametrize("stage", STAGES)
def test_a_backward_that_is_not_the_last_leaves_the_agreement_to_it(pool, stage):
    oracle = worlds.exact(of_stack(stages=(0,), steps=1, accumulation=2, optimizer=worlds.sgd)[0])[0]
    for is_last, messages in ((True, 1), (False, 0)):
        for rank, (state, verbs, _) in enumerate(pool(2).run(of_a_pipeline, stage, is_last=is_last)):
            is_state(oracle.state)(rank, state)
            assert verbs.count("all_reduce_max") == messages, f"rank {rank}: {verbs}"
            assert "reduce_scatter" in verbs, f"rank {rank} reduced nothing in the first backward"


def test_a_backward_that_does_not_reshard_saves_the_next_gather(pool):
    oracle = worlds.exact(of_stack(stages=(0,), steps=1, accumulation=2, optimizer=worlds.sgd)[0])[0]
    for reshards in (True, False):
        for rank, (state, verbs, held) in enumerate(pool(2).run(of_a_pipeline, 3, reshards=reshards)):
            is_state(oracle.state)(rank, state)
            after = verbs[verbs.index("all_reduce_max"):]
            assert ("all_gather" in after) is reshards, f"rank {rank}, reshards={reshards}: {verbs}"
            assert (held > 0) is not reshards


def stepped_under_a_forward(comm: Comm | None, stage: int | None) -> dict:
    """A step after a forward that keeps what it gathered for a backward, which does not come."""
    model, optimizer = prepared(comm, stage, reshard_after_forward=False)
    for step in range(2):
        squares(model, step, 0, 0).backward()
        model(rows(step + 9, 0, 0))
        optimizer.step()
        optimizer.zero_grad()
    return state_of(model)


def test_what_a_forward_gathered_is_freed_before_the_step(pool):
    by_stage(pool, stepped_under_a_forward, unsharded(stepped_under_a_forward))


class OneUnit(nn.Module):
    """No list of blocks: all of it is the root's."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x):
        return self.layers(x)


def while_it_is_reduced(comm: Comm | None, stage: int | None, make: Callable, flags: tuple[dict, ...], in_flight: int) -> dict:
    """Three micro-batches; the buckets of one may still be in flight when the gradients of the next come."""
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if stage is not None:
        model, optimizer = shard(model, optimizer, stage=stage, in_flight=in_flight)
    for micro, flag in enumerate(flags):
        with model.zero.backward_options(**flag) if stage is not None else nullcontext():
            ranks = range(2) if stage is None else [comm.rank]
            (sum(squares(model, 0, micro, rank) for rank in ranks) / len(ranks)).backward()
    optimizer.step()
    return state_dict(model) if stage is not None else model.state_dict()


OPEN, LOCAL, LAST = {"is_last": False}, {"reduces": False}, {}


@pytest.mark.parametrize("make", (OneUnit, Stack))
@pytest.mark.parametrize("flags", ((OPEN, LAST), (OPEN, OPEN, LAST), (OPEN, LOCAL, LAST), (LOCAL, OPEN, LAST), (OPEN, OPEN)))
def test_a_bucket_fills_again_while_it_is_reduced(pool, make, flags):
    for in_flight in (1, 9):
        by_stage(pool, while_it_is_reduced, unsharded(while_it_is_reduced, make, flags, in_flight),
                 args=(make, flags, in_flight))


def measured_early(comm: Comm | None, stage: int | None, flag: dict, scales: bool) -> dict:
    """The norm after a backward that left its gradients unfinished; or the state after they were halved, and a step."""
    model, optimizer = prepared(comm, stage)
    with model.zero.backward_options(**flag) if comm else nullcontext():
        squares(model, 0, 0, 0).backward()
    if not scales:
        return {"norm": model.zero.grad_norm() if comm else nn.utils.get_total_norm([param.grad for param in model.parameters()])}
    if comm:
        model.zero.scale_gradients(0.5)
    else:
        for param in model.parameters():
            param.grad *= 0.5
    optimizer.step()
    return state_of(model)


@pytest.mark.parametrize("flag", (OPEN, LOCAL))
@pytest.mark.parametrize("scales", (False, True))
def test_norm_and_scale_finish_what_a_backward_left(pool, flag, scales):
    by_stage(pool, measured_early, unsharded(measured_early, flag, scales), args=(flag, scales))


def nested_no_sync(comm: Comm, stage: int) -> tuple[dict, int]:
    """Three micro-batches, the second one after an inner no_sync: the state, and the buckets reduced before the third."""
    case = of_stack(stages=(stage,), steps=1, accumulation=3, optimizer=worlds.sgd)[0]
    model, optimizer = worlds.sharded(case, comm)
    with model.zero.no_sync():
        with model.zero.no_sync():
            (case.loss(model, 0, 0, comm.rank) / 3).backward()
        (case.loss(model, 0, 1, comm.rank) / 3).backward()
    early = sum(event.verb == "reduce_scatter" for event in comm.recorder.events)
    (case.loss(model, 0, 2, comm.rank) / 3).backward()
    optimizer.step()
    return state_dict(model), early


def test_no_sync_inside_no_sync(pool):
    oracle = worlds.exact(of_stack(stages=(0,), steps=1, accumulation=3, optimizer=worlds.sgd)[0])[0]

    def check(rank: int, value: tuple) -> None:
        state, early = value
        is_state(oracle.state)(rank, state)
        assert early == 0, f"rank {rank} reduced {early} buckets inside no_sync"

    by_stage(pool, nested_no_sync, check, stages=(0, 1))


def test_a_parameter_belongs_to_the_innermost_unit_that_has_it():
    model = Stack()
    model.blocks[1].up.weight = model.blocks[2].up.weight  # shared by two units, so it is the root's
    units = {unit.name: set(unit.params) for unit in cut_into_units(model, ["blocks.0", "blocks.0.up", "blocks.1", "blocks.2"])}
    assert "blocks.1.up.weight" in units["root"]
    assert units["blocks.0.up"] == {"blocks.0.up.weight", "blocks.0.up.bias"}
    assert units["blocks.0"] == {"blocks.0.down.weight", "blocks.0.down.bias"}


def test_a_list_inside_a_block_makes_no_units():
    model = Stack()
    model.blocks[1].experts = nn.ModuleList([nn.Linear(2, 2)])
    assert [unit.name for unit in cut_into_units(model)] == ["root", "blocks.0", "blocks.1", "blocks.2"]


@pytest.mark.parametrize("units", (["blocks.0", "blocks.0.up", "blocks.2"], ["blocks.0", "blocks.0.down"], [Block, nn.Linear]))
def test_units_inside_units(pool, units):
    cases = of_stack(optimizer=worlds.sgd, options=(("units", units),))
    check_cases(pool, [replace(case, accumulation=count) for case in cases for count in (1, 2)], tolerance=1e-6)


# -- precision and what was there before -----------------------------------------------------------------------------

class Exact(Stack):
    """A third in double precision, which neither bf16 nor fp32 can hold."""

    def __init__(self):
        super().__init__()
        self.third = nn.Parameter(torch.full((3,), 1 / 3, dtype=torch.float64))

    def forward(self, x):
        return super().forward(x.to(self.first.weight.dtype)).double() + self.third.sum()


def doubles(comm: Comm, stage: int) -> torch.Tensor:
    """The double after a step of 1e-10 along a gradient of one."""
    model = Exact()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-10)
    shard(model, optimizer, stage, param_dtype=torch.bfloat16, comm=comm)
    model(rows(0, 0, comm.rank)).mean().backward()
    optimizer.step()
    return state_dict(model)["third"]


def test_param_dtype_leaves_doubles_alone(pool):
    def check(rank: int, third: torch.Tensor) -> None:
        assert third.dtype is torch.float64, f"rank {rank}: the parameter is {third.dtype}"
        gap = (1 / 3 - third - 1e-10).abs().max().item()
        assert gap < 1e-15, f"rank {rank}: off by {gap:.1e} after a step of 1e-10"

    by_stage(pool, doubles, check)


def trained_before(comm: Comm | None, stage: int | None, optimizer_of: Callable, through_state_dict: bool) -> dict:
    """Four steps on the same rows everywhere, the last two of them sharded (stage None: none of them)."""
    model = Stack()
    optimizer = optimizer_of(model.parameters())
    for step in range(4):
        if step == 2 and stage is not None:
            if through_state_dict:
                saved, optimizer = optimizer.state_dict(), optimizer_of(model.parameters())
                optimizer.load_state_dict(saved)
            shard(model, optimizer, stage, comm=comm)
            assert optimizer.state.keys() <= set(pieces_of(optimizer)), "states of whole parameters are kept"
            kept = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
            assert all(value.untyped_storage().nbytes() == value.nbytes for value in kept), "a view keeps the whole state"
        squares(model, step, 0, 0).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict() if stage is None else state_dict(model)


@pytest.mark.parametrize("optimizer", (worlds.sgd, worlds.adamw))
@pytest.mark.parametrize("through_state_dict", (False, True))
def test_an_optimizer_with_a_state_before_shard(pool, optimizer, through_state_dict):
    by_stage(pool, trained_before, unsharded(trained_before, optimizer, False), args=(optimizer, through_state_dict))


# -- what a reader of the core asked ---------------------------------------------------------------------------------

class TwiceAround(Stack):
    """Calls the first block, the second, and the first again; on rank 1 the first call gets no gradient."""

    def forward(self, x, cut=False):
        x = self.blocks[0](self.first(x))
        x = self.blocks[1](x.detach() if cut else x)
        return self.last(self.blocks[2](self.blocks[0](x)))


def cut_on_rank_one(model, step, micro, rank):
    return model(rows(step, micro, rank), cut=rank == 1).square().mean()


class MayUseABias(Block):
    def forward(self, x, bias):
        x = super().forward(x)
        return x + self.up.bias[:6] if bias else x + 0 * self.down.bias


class Biases(Stack):
    block = MayUseABias

    def forward(self, x, bias):
        x = self.first(x)
        for block in self.blocks:
            x = block(x, bias)
        return self.last(x)


def two_passes(model, step, micro, rank):
    """One backward for two forwards, with parameters that one rank uses more than the other."""
    return sum(model(rows(step + 50 * number, micro, rank), bias=rank == number).square().mean() for number in range(2))


@pytest.mark.parametrize("make, loss", ((TwiceAround, cut_on_rank_one), (Biases, two_passes)))
def test_ranks_that_differ_within_repeated_units_and_passes(pool, make, loss):
    """The order of collectives is the same on all ranks: `pool` asserts it."""
    check_exact(pool, [Case(stage, make=make, loss=loss, steps=2, optimizer=worlds.sgd, options=(("prefetch", prefetch),))
                       for stage in STAGES for prefetch in (1, 2)], tolerance=1e-6)


def after_a_failed_backward() -> list:
    """By stage: how far the last bias moved by a backward that comes right after one that failed."""
    moved = []
    for stage in STAGES:
        model = Stack()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        shard(model, optimizer, stage)
        x = rows(0, 0, 0).requires_grad_()
        x.register_hook(lambda gradient: (_ for _ in ()).throw(ArithmeticError("blown")))
        first, second = model(x).sum(), model(rows(1, 0, 0)).sum()
        with pytest.raises(ArithmeticError):
            first.backward()
        if stage % 2:
            optimizer.zero_grad()
        before = state_dict(model)["last.bias"]
        second.backward()
        optimizer.step()
        moved.append((state_dict(model)["last.bias"] - before).abs().max().item())
    return moved


def test_a_backward_after_one_that_failed(pool):
    for moved in pool(2).run(after_a_failed_backward):
        assert moved == pytest.approx([0.4] * 4, abs=1e-6)


class KeepsItsLoss(Stack):
    def forward(self, x):
        x = super().forward(x)
        self.penalty = x.square().mean()
        return x


@pytest.mark.parametrize("stage", STAGES)
def test_a_model_that_keeps_a_graph_is_freed(stage):
    model = KeepsItsLoss()
    model, optimizer = shard(model, worlds.sgd(model.parameters()), stage)
    model(rows(0, 0, 0))
    model.penalty.backward()
    optimizer.step()
    alive = weakref.ref(model)
    del model, optimizer
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("stage", STAGES)
def test_hooks_of_an_optimizer_run_once_a_step(stage):
    model = Stack()
    model, optimizer = shard(model, worlds.sgd(model.parameters()), stage)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    for step in range(2):
        squares(model, step, 0, 0).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert calls == ["before", "after"] * 2


def test_a_forward_that_leaves_the_recorded_order_prefetches_nothing():
    first, second, third = (Unit(name, nn.Linear(1, 1), []) for name in ("first", "second", "third"))
    prefetcher = Prefetcher(depth=1)
    prefetcher.start()
    assert [prefetcher.next_after(unit) for unit in (first, second, third)] == [[], [], []]
    prefetcher.start()
    assert prefetcher.next_after(first) == [second]
    assert prefetcher.next_after(third) == [], "third was expected to come after second"


def differently(comm: Comm, stage: int) -> None:
    shard(*of_a_stack(), stage, comm=comm, bucket_size=40 + comm.rank)


def another_model(comm: Comm, stage: int) -> None:
    shard(nn.Linear(3, 3 + comm.rank), stage=stage, comm=comm)


@pytest.mark.parametrize("work, said", ((differently, "bucket_size=40.*rank 1 has .*bucket_size=41"),
                                        (another_model, r"weight \(3, 3\).*rank 1 has weight \(4, 3\)")))
def test_ranks_that_shard_in_different_ways(pool, work, said):
    by_stage(pool, work, None, said, stages=(1,))


def test_units_that_are_called_by_themselves_leave_no_record_behind():
    model, _ = shard(Stack(), stage=3)
    for _ in range(5):
        model.blocks[0](rows(0, 0, 0)).sum().backward()
    assert not model.zero.prefetcher.so_far and len(model.zero.forward.of_pass.calls) <= 1
