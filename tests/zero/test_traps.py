"""The traps of ZeRO, each a test by its number: what breaks an implementation that only works on the easy model."""

import gc
import itertools
import time
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
import worlds
from torch import nn
from torch.utils.checkpoint import checkpoint
from worlds import STAGES, Block, Case, Recomputed, RecomputedReentrant, Stack, check_exact, check_same_state, rows, squares

from zerocourse import load_state_dict, shard, state_dict
from zerocourse.comm import Comm
from zerocourse.errors import BadInput, CollectiveError
from zerocourse.memory import pool as buffer_pool
from zerocourse.memory.storage import FreeableStorage


def of_stack(make=Stack, stages=STAGES, **fields) -> list[Case]:
    """A case a stage of a model that takes rows."""
    return [Case(stage, **{"make": make, "loss": squares, "steps": 2} | fields) for stage in stages]


# -- 1: tied weights -------------------------------------------------------------------------------------------------

class TiedBlocks(Stack):
    """A weight that two units share."""

    def __init__(self):
        super().__init__()
        self.blocks[2].up.weight = self.blocks[0].up.weight


def tied() -> list:
    """Elements in the flats, and whether the head is still the embedding, by stage."""
    found = []
    for stage in STAGES:
        model, _ = shard(worlds.gpt(), stage=stage)
        state = state_dict(model)
        found.append((sum(flat.layout.numel for flat in model.zero.flats), model.lm_head.weight is model.wte.weight,
                      torch.equal(state["lm_head.weight"], state["wte.weight"])))
    return found


def test_trap_01_tied_weights(pool):
    for found in pool(2).run(tied):
        assert found == [(sum(param.numel() for param in worlds.gpt().parameters()), True, True)] * 4
    check_exact(pool, [Case(stage, 3) for stage in STAGES] + of_stack(TiedBlocks, world_size=3, accumulation=2))


# -- 2: a module called twice ----------------------------------------------------------------------------------------

class Twice(Stack):
    def forward(self, x):
        return super().forward(self.blocks[0](self.blocks[1](self.blocks[0](self.first(x)))))


class OneBlock(Stack):
    """The same block three times over, in a list."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([self.blocks[0]] * 3)


@pytest.mark.parametrize("make", (Twice, OneBlock))
def test_trap_02_a_module_called_twice(pool, make):
    check_exact(pool, of_stack(make, accumulation=2) + of_stack(make, bucket_size=10))


# -- 3: unused parameters --------------------------------------------------------------------------------------------

class Spare(Stack):
    """A parameter of a unit, one of the root and a whole unit that nobody uses."""

    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(6, 6)
        self.blocks[1].spare = nn.Linear(6, 6)
        self.blocks.append(Block())

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks[:3]:
            x = block(x)
        return self.last(x)


class Branching(Block):
    """Rows that begin with a 7 take another way."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(6, 6)

    def forward(self, x):
        x, special = x
        return (super().forward(x) if not special else x + self.other(x)), special


class Branches(Stack):
    """In the units and in the root."""

    block = Branching

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(6, 6)

    def forward(self, x, special):
        x = self.other(x) if special else self.first(x)
        for block in self.blocks:
            x, _ = block((x, special))
        return self.last(x)


class ParallelBranches(Branches):
    """The units side by side, the last one first: the one whose gradients are complete on a rank may wait for others."""

    def forward(self, x, special):
        x = self.first(x)
        outputs = [block((x, special and index != 1))[0] for index, block in enumerate(self.blocks)]
        return self.last(sum(outputs)) if not special else self.other(sum(reversed(outputs)))


def special_on_rank_one(model, step, micro, rank):
    return model(rows(step, micro, rank), special=rank == 1).square().mean()


def test_trap_03_unused_on_all_ranks(pool):
    check_exact(pool, of_stack(Spare, accumulation=2) + of_stack(Spare, bucket_size=20))


def test_trap_03_unused_on_one_rank(pool):
    check_exact(pool, [case for size in (None, 20) for accumulation in (1, 2) for case in
                       of_stack(Branches, loss=special_on_rank_one, bucket_size=size, accumulation=accumulation)])
    check_exact(pool, [case for size in (None, 20) for case in
                       of_stack(ParallelBranches, loss=special_on_rank_one, bucket_size=size, options=(("in_flight", 1),))],
                tolerance=1e-6)  # each unit adds up the gradient of the shared input for itself: another order


class MayIgnore(Block):
    """A block that uses a condition, or (special) ignores it and a layer of its own."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(6, 6)

    def forward(self, x, condition, special):
        x = super().forward(x)
        return x if special else x + self.project(condition)


class Conditioned(Stack):
    """All units get the same tensor, which no unit's end may wait for: on one rank nobody uses it."""

    block = MayIgnore

    def __init__(self):
        super().__init__()
        self.condition = nn.Linear(6, 6)

    def forward(self, x, special):
        condition, x = self.condition(x), self.first(x)
        for block in self.blocks:
            x = block(x, condition, special)
        return self.last(x)


class ConditionedByParameter(Conditioned):
    """The same tensor is a parameter of the root."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.ones(6))

    def forward(self, x, special):
        x = self.first(x) + 0 * self.condition(x)
        for block in self.blocks:
            x = block(x, self.token, special)
        return self.last(x)


class MayDrop(Block):
    def forward(self, x, drop):
        return x if drop else super().forward(x)


class LayerDrop(Stack):
    """A unit that runs everywhere, and on one rank returns its input as it came."""

    block = MayDrop

    def forward(self, x, special):
        x = self.first(x)
        for index, block in enumerate(self.blocks):
            x = block(x, special and index == 1)
        return self.last(x)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x, special):
        return torch.tanh(self.first(x) if special else self.second(self.first(x)))


class Towers(nn.Module):
    """Units side by side whose input needs no gradient: no hook tells when their backward is over."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.towers, self.last = nn.ModuleList(Tower() for _ in range(6)), nn.Linear(6, 6)

    def forward(self, x, special):
        return self.last(sum(tower(x, special) for tower in self.towers))


class WithAHead(Stack):
    """Blocks under reentrant checkpointing, and a head with a layer that one rank does not use."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(6, 6)

    def forward(self, x, special):
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return self.last(x) if special else self.other(self.last(x))


@pytest.mark.parametrize("make", (Conditioned, ConditionedByParameter, LayerDrop, Towers, WithAHead))
def test_trap_03_one_rank_knows_sooner_that_a_unit_is_over(pool, make):
    """Reductions and gathers come in one order on all ranks, however few units may be under way."""
    loose = {"loss": special_on_rank_one, "optimizer": worlds.sgd}  # additions into a shared tensor have another order
    check_exact(pool, of_stack(make, stages=(0, 1, 2), bucket_size=20, **loose), tolerance=1e-6)
    check_exact(pool, [case for prefetch in (0, 1, 3) for in_flight in (0, 1) for case in of_stack(
        make, stages=(3,), options=(("prefetch", prefetch), ("in_flight", in_flight)), **loose)], tolerance=1e-6)


def shared_by_all() -> tuple[int, int, int]:
    """Hooks on a root's parameter that every unit gets after three steps; the most rows and buckets at once at stage 3."""
    model, _optimizer = shard(ConditionedByParameter(), stage=3)
    most = [0, 0]

    def look(_):
        most[0] = max(most[0], sum(flat.gathered for flat in model.zero.flats))
        most[1] = max(most[1], sum(flat.grad is not None for flat in model.zero.flats))

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(look)
    for step in range(3):
        special_on_rank_one(model, step, 0, 0).backward()
    return len(model.token._backward_hooks or ()), most[0] - len(model.zero.root.flats), most[1] - len(model.zero.root.flats)


def test_trap_03_a_tensor_that_all_units_get_keeps_none_of_them(pool):
    for hooks, rows_of_units, buckets_of_units in pool(2).run(shared_by_all):
        assert hooks == 0 and rows_of_units <= 2 and buckets_of_units <= 2


class Skipping(Stack):
    def forward(self, x, skip):
        x = self.first(x)
        for index, block in enumerate(self.blocks):
            x = x if index == 1 and skip else block(x)
        return self.last(x)


def skipped_by_turns(model, step, micro, rank):
    return model(rows(step, micro, rank), skip=(rank + step + micro) % 2).square().mean()


def test_trap_03_a_unit_skipped_on_one_rank(pool):
    """Where every rank has all parameters it is trained, as DDP trains unused parameters."""
    for world_size in (2, 3):
        check_exact(pool, [case for size in (None, 20) for accumulation in (1, 2) for case in
                           of_stack(Skipping, stages=(0, 1, 2), loss=skipped_by_turns, bucket_size=size, accumulation=accumulation,
                                    world_size=world_size)])


def skipped_in_an_earlier_forward(model, step, micro, rank):
    """One backward through two forwards, and through a third on the ranks whose turn it is."""
    turn = (rank + step + micro) % 2
    return sum(model(rows(step + 50 * number, micro, rank), skip=skips).square().mean()
               for number, skips in enumerate([turn, False, *[True] * turn]))


def all_skipped_in_an_earlier_forward(model, step, micro, rank):
    """The same on all ranks: the middle block is reduced with the last forward."""
    return sum(model(rows(step + 50 * number, micro, rank), skip=number == 0).square().mean() for number in range(2))


def earlier_forward_left_out(model, step, micro, rank):
    """Both forwards ran on all ranks, and only on the first rank does the loss use both."""
    first, second = (model(rows(step + 50 * number, micro, rank), skip=False).square().mean() for number in range(2))
    return first + second if rank == 0 else second


@pytest.mark.parametrize("loss", (skipped_in_an_earlier_forward, all_skipped_in_an_earlier_forward, earlier_forward_left_out))
def test_trap_03_a_unit_skipped_in_one_of_several_forwards(pool, loss):
    for world_size in (2, 3):
        check_exact(pool, of_stack(Skipping, stages=(0, 1, 2), loss=loss, accumulation=2, world_size=world_size), tolerance=1e-6)


def skip_a_unit(world_size: int, reshards: bool) -> tuple[str, float]:
    """What stage 3 says when the last rank skips a unit, and after how many seconds."""
    comm = Comm(dist.new_group(), timeout=1.0)
    model, _ = shard(Skipping(), comm=comm, reshard_after_forward=reshards)
    began = time.monotonic()
    try:
        model(rows(0, 0, comm.rank), skip=comm.rank == world_size - 1).square().mean().backward()
        return "nothing", 0
    except CollectiveError as error:
        return str(error), time.monotonic() - began


@pytest.mark.ranks_may_differ
@pytest.mark.parametrize("world_size", (2, 3))
def test_trap_03_a_unit_skipped_on_one_rank_at_stage_3(pool, world_size):
    for reshards in (True, False):
        for rank, (message, seconds) in enumerate(pool(world_size).run(skip_a_unit, world_size, reshards)):
            assert "blocks.1" in message, f"rank {rank}: {message}"
            assert seconds < 10


# -- 4: frozen parameters --------------------------------------------------------------------------------------------

def thaw(model, step, micro, rank):
    """Block 1 and a weight of block 0 are frozen at first, and train from step 2 on; block 2 is frozen then."""
    for param in (*model.blocks[1].parameters(), model.blocks[0].up.weight):
        param.requires_grad_(step >= 2)
    for param in model.blocks[2].parameters():
        param.requires_grad_(step < 2)
    return squares(model, step, micro, rank)


def partly_frozen() -> Stack:
    model = Stack()
    for param in (*model.blocks[1].parameters(), model.blocks[0].up.weight):
        param.requires_grad_(False)
    return model


def test_trap_04_frozen_and_unfrozen(pool):
    check_exact(pool, [case for make in (Stack, partly_frozen) for case in of_stack(make, loss=thaw, steps=4)])
    check_exact(pool, of_stack(partly_frozen, accumulation=2))


class FrozenBlock(Stack):
    """Its one block is frozen, and passes gradients on to what is before it."""

    def __init__(self):
        super().__init__()
        self.blocks = self.blocks[:1].requires_grad_(False)


class ShiftedBlock(Block):
    def forward(self, x, shift):
        return x + self.down(torch.tanh(self.up(x) + shift))


class SharedShift(Stack):
    """A parameter of the root is used in each block, as T5's position bias is. Of the block that comes last in the backward the lower
    layer is frozen, and is needed when all other gradients have come."""

    block = ShiftedBlock

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(7))
        self.blocks[0].up.requires_grad_(False)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x, self.shift)
        return self.last(x)


class OneReentrant(RecomputedReentrant):
    """The gradients of its one block are brought by a backward inside the backward: at first none is awaited."""

    def __init__(self):
        super().__init__()
        self.blocks = self.blocks[:1]


@pytest.mark.parametrize("make", [FrozenBlock, SharedShift, OneReentrant])
def test_trap_04_what_is_frozen_is_there_until_the_backward_has_passed_it(pool, make):
    check_exact(pool, of_stack(make) + of_stack(make, accumulation=2, options=(("in_flight", 4),)))


class CutOnRank0(Stack):
    """Two blocks are frozen, and on rank 0 the backward ends above them."""

    def __init__(self):
        super().__init__()
        self.blocks[:2].requires_grad_(False)
        self.cuts = False

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x.detach() if self.cuts and block is self.blocks[0] else x)
        return self.last(x)


def cut_on_rank_0(model, step, micro, rank):
    model.cuts = rank == 0
    return squares(model, step, micro, rank)


def test_trap_04_a_backward_that_ends_earlier_on_one_rank_gathers_what_the_others_do(pool):
    check_exact(pool, of_stack(CutOnRank0, loss=cut_on_rank_0))


def late_group() -> list:
    """Freeze the first layer, train, unfreeze it, hand it to the optimizer as people do, train on."""
    states = []
    for stage in (None, *STAGES):
        model = Stack()
        model.first.requires_grad_(False)
        optimizer = worlds.adamw([param for param in model.parameters() if param.requires_grad])
        if stage is not None:
            shard(model, optimizer, stage)
        for step in range(4):
            if step == 2:
                model.first.requires_grad_(True)
                optimizer.add_param_group({"params": model.first.parameters(), "lr": 0.01})
            squares(model, step, 0, 0).backward()  # the same rows on every rank: the mean is any rank's gradient
            optimizer.step()
            optimizer.zero_grad()
        states.append(model.state_dict() if stage is None else state_dict(model))
    return states


def test_trap_04_a_parameter_group_added_late(pool):
    for first, *others in pool(2).run(late_group):
        for stage, state in enumerate(others):
            check_same_state(state, first, f"stage {stage}")


# -- 5, 6, 7, 8: sizes and dtypes ------------------------------------------------------------------------------------

def padding() -> list:
    """The padding of every flat after some steps, and the elements of each slice that are padding."""
    found = []
    for stage in STAGES:
        case = Case(stage, 3, bucket_size=40)
        model, optimizer = worlds.sharded(case)
        worlds.train_plain(case, model, optimizer)
        for unit in model.zero.units:
            if stage == 3:
                model.zero.unshard_unit(unit)
            found += [(flat.layout.padded - flat.layout.numel, flat.full[flat.layout.numel:].abs().sum().item()) for flat in unit.flats]
    return found


def test_trap_05_padding_stays_zero(pool):
    for found in pool(3).run(padding):
        assert all(0 <= count < 3 and total == 0 for count, total in found)
        assert any(count for count, _ in found)


@contextmanager
def dirty_memory():
    """New buckets are full of NaN."""
    with patch.object(buffer_pool, "empty", lambda numel, like, dtype=None: like.new_full((numel,), float("nan"), dtype=dtype)):
        yield


def test_trap_05_memory_that_was_used_before(pool):
    """What a bucket's memory held before reaches no gradient and no norm: not by the padding, nor where no gradient came."""
    for case, runs in worlds.runs_of(pool, [Case(stage, 3, clip=1e9, optimizer=worlds.sgd) for stage in STAGES], dirty_memory):
        worlds.check_whole(runs, case)
    check_exact(pool, of_stack(Spare, optimizer=worlds.sgd, world_size=3), around=dirty_memory)


class Small(nn.Module):
    """Three elements in two parameters."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor([2.0, 3.0])), nn.Parameter(torch.tensor([0.5]))

    def forward(self, x):
        return x[:, :2] * self.scale + self.shift


def test_trap_06_more_ranks_than_elements(pool):
    check_exact(pool, [case for rank_map in (None, "greedy") for size in (None, 1)
                       for case in of_stack(Small, world_size=4, rank_map=rank_map, bucket_size=size)])


class Odd(Stack):
    """Parameters without dimensions and without elements, in a unit and in the root; one unit has nothing else."""

    def __init__(self):
        super().__init__()
        self.gain, self.none = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.empty(0, 6))
        self.blocks[0].gain, self.blocks[0].none = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.empty(0))
        self.blocks.append(nn.ParameterList([torch.empty(3, 0)]))

    def forward(self, x):
        x = self.first(x) * self.gain + self.none.sum()
        for block in self.blocks[:3]:
            x = block(x)
        return self.last(x * self.blocks[0].gain + self.blocks[0].none.sum() + self.blocks[3][0].sum())


def test_trap_07_scalars_and_empty_parameters(pool):
    check_exact(pool, [case for rank_map in (None, "round_robin") for case in of_stack(Odd, rank_map=rank_map)])
    check_exact(pool, of_stack(Odd, world_size=3, bucket_size=5))


class Mixed(Stack):
    """A unit of three dtypes, and a table of whole numbers that is a parameter."""

    def __init__(self):
        super().__init__()
        self.blocks[0].exact = nn.Parameter(torch.linspace(0, 1, 6, dtype=torch.float64))
        self.blocks[0].rough = nn.Parameter(torch.linspace(0, 1, 5, dtype=torch.bfloat16))
        self.order = nn.Parameter(torch.arange(5, -1, -1), requires_grad=False)

    def forward(self, x):
        x = self.first(x)[:, self.order]
        x = self.blocks[0](x) + self.blocks[0].exact.float() + self.blocks[0].rough.sum().float()
        return self.last(x)


def test_trap_08_mixed_dtypes(pool):
    """bf16 is only near: the stages step fp32 master weights, which the oracle does not have."""
    check_exact(pool, of_stack(Mixed), tolerance=2e-3)


# -- 9: buffers ------------------------------------------------------------------------------------------------------

class Normalised(Block):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        return super().forward(self.norm(x))


class Buffers(Stack):
    """Batch statistics, a counter, a mean that is made anew each time, a mask that is not saved."""

    block = Normalised

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("mask", torch.ones(6, dtype=torch.bool), persistent=False)
        self.only = nn.BatchNorm1d(6, affine=False)

    def forward(self, x, special=False):
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        if special:
            self.only(x)
        return super().forward(x) * self.mask


def buffers() -> list:
    """The buffers after each of two steps, by stage."""
    found = []
    for stage in STAGES:
        model = Buffers()
        model.mean += dist.get_rank()  # as if each rank had built another model
        _, optimizer = shard(model, worlds.sgd(model.parameters()), stage)
        found.append([{name: buffer.clone() for name, buffer in model.named_buffers()}])
        for step in range(2):
            special_on_rank_one(model, step, 0, dist.get_rank()).backward()
            optimizer.step()
            optimizer.zero_grad()
            found[-1].append({name: buffer.clone() for name, buffer in model.named_buffers()})
    return found


def test_trap_09_buffers(pool):
    model, expected = Buffers(), []
    expected.append({name: buffer.clone() for name, buffer in model.named_buffers()})
    of_rank_0, of_rank_1 = pool(2).run(buffers)
    for stage in STAGES:
        check_same_state(of_rank_0[stage][0], expected[0], f"stage {stage} at the start")
        for step in range(3):
            check_same_state(of_rank_1[stage][step], of_rank_0[stage][step], f"stage {stage}, step {step}: two ranks")
        model = Buffers()
        special_on_rank_one(model, 0, 0, 0)
        check_same_state(of_rank_0[stage][1], dict(model.named_buffers()), f"stage {stage}: rank 0's own")
        assert of_rank_0[stage][2]["calls"] == 2


def broadcasts() -> list[list[int]]:
    """By stage: the broadcasts of a step in which the mean changes, of one without a backward, and of one in which it does not change."""
    found = []
    for stage in STAGES:
        model = Stack()
        model.register_buffer("mean", torch.zeros(6))
        model, optimizer = shard(model, worlds.sgd(model.parameters()), stage)
        issued, counts = model.zero.comm.issued, []
        for changes, trains in ((True, True), (False, False), (False, True)):
            before = len(issued)
            if changes:
                model.mean += 1
            if trains:
                squares(model, 0, 0, dist.get_rank()).backward()
            optimizer.step()
            counts.append(sum(verb == "broadcast" for verb, *_ in list(issued)[before:]))
        found.append(counts)
    return found


def test_trap_09_a_buffer_is_sent_when_it_changed(pool):
    assert pool(2).run(broadcasts) == [[[1, 0, 0]] * 4] * 2


class Grows(Stack):
    """Keeps a cache as long as its batch, as some attention layers do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(1))

    def forward(self, x):
        self.cache = torch.arange(float(len(x)))
        return super().forward(x)


def growing(sizes: list[list[int]]) -> tuple[str, list[float]]:
    """Train on batches of this rank's sizes, a step each: what went wrong, and the cache at the end."""
    model = Grows()
    model, optimizer = shard(model, worlds.sgd(model.parameters()), stage=2)
    try:
        for size in sizes[dist.get_rank()]:
            model(rows(0, 0, 0, size=size)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    except CollectiveError as error:
        return str(error), []
    return "", model.cache.tolist()


def test_trap_09_a_buffer_that_grows(pool):
    assert pool(2).run(growing, [[2, 5, 3], [2, 5, 3]]) == [("", [0.0, 1.0, 2.0])] * 2
    for said, _ in pool(2).run(growing, [[4, 2], [4, 3]]):
        assert "buffer 'cache' is (2,) on rank 0 and (3,) on rank 1" in said


# -- 10: evaluation --------------------------------------------------------------------------------------------------

def evaluating(model, step, micro, rank):
    """Looks at the model between steps and between the micro-batches of one, on a batch of another size."""
    with torch.no_grad():
        before = model(rows(9, 9, rank, size=3)).sum()
    loss = squares(model, step, micro, rank)
    with torch.no_grad():
        assert model(rows(9, 9, rank, size=3)).sum() == before
    if hasattr(model, "zero") and model.zero.number == 3:
        assert micro or not any(unit.gathered for unit in model.zero.units if unit.flats), "parameters stay after evaluation"
    return loss


def test_trap_10_evaluation_without_gradients(pool):
    check_exact(pool, of_stack(loss=evaluating, accumulation=2))


def evaluate_alone() -> list:
    """Bytes of parameters after an evaluation, when they are kept between forward and backward."""
    model, _ = shard(Stack(), stage=3, reshard_after_forward=False)
    model.eval()
    with torch.no_grad():
        model(rows(0, 0, 0))
    return [flat.gathered for flat in model.zero.flats]


def test_trap_10_evaluation_keeps_nothing(pool):
    assert not any(any(of_rank) for of_rank in pool(2).run(evaluate_alone))


# -- 11: activation checkpointing ------------------------------------------------------------------------------------

class InsideBlock(Block):
    reentrant = False

    def forward(self, x):
        return x + self.down(checkpoint(lambda x: torch.tanh(self.up(x)), x, use_reentrant=self.reentrant))


class InsideBlockReentrant(InsideBlock):
    reentrant = True


class Inside(Stack):
    block = InsideBlock


class InsideReentrant(Stack):
    block = InsideBlockReentrant


class TwiceReentrant(RecomputedReentrant):
    """Each block's gradient arrives in several parts."""

    def forward(self, x):
        return super().forward(super().forward(x))


@pytest.mark.parametrize("make", (Recomputed, RecomputedReentrant, Inside, InsideReentrant))
def test_trap_11_checkpointing(pool, make):
    check_exact(pool, of_stack(make, accumulation=2) + of_stack(make, bucket_size=10)
                + of_stack(make, stages=(3,), options=(("reshard_after_forward", False),)))


def test_trap_11_reentrant_checkpointing_of_blocks_called_twice(pool):
    """A block's gradients come in two parts, which are reduced one after the other: the additions have another order."""
    check_exact(pool, of_stack(TwiceReentrant, accumulation=2, optimizer=worlds.sgd), tolerance=1e-6)


class ThriceReentrant(Stack):
    """A gradient comes while its bucket is under way, and once more when it is back."""

    def forward(self, x):
        x = self.first(x)
        for index in (2, 1, 2, 2, 0):
            x = checkpoint(self.blocks[index], x, use_reentrant=True)
        return self.last(x)


def test_trap_11_a_block_computed_three_times(pool):
    check_exact(pool, [case for in_flight in (0, 1, 2) for case in of_stack(
        ThriceReentrant, optimizer=worlds.sgd, options=(("in_flight", in_flight),))], tolerance=1e-6)


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(scale)
        return x * scale

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0], None


class Scaled(Block):
    """A parameter that takes part, and whose gradient is None."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((6,), 1.5))

    def forward(self, x):
        return super().forward(NoGradient.apply(x, self.scale))


class ScaledStack(Stack):
    block = Scaled


class MayScale(Scaled):
    def forward(self, x, none):
        return Block.forward(self, NoGradient.apply(x, self.scale) if none else x * self.scale)


class MayScaleStack(Stack):
    block = MayScale

    def forward(self, x, none):
        x = self.first(x)
        for block in self.blocks:
            x = block(x, none)
        return self.last(x)


def none_on_rank_0(model, step, micro, rank):
    return model(rows(step, micro, rank), none=rank == 0).square().mean()


def test_trap_03_a_gradient_that_is_none_on_one_rank(pool):
    """That rank waits for it until the end of its backward, and reduces its buckets there, as the others have done."""
    check_exact(pool, of_stack(MayScaleStack, loss=none_on_rank_0, optimizer=worlds.sgd), tolerance=1e-6)


def test_trap_03_a_gradient_that_is_none(pool):
    check_exact(pool, of_stack(ScaledStack, accumulation=2))


# -- 12: exceptions --------------------------------------------------------------------------------------------------

class Fuse(torch.autograd.Function):
    """Changes nothing, and its backward raises."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("blown")


class Fused(Block):
    """A block that raises in its forward or in its backward when told to."""

    fail = None

    def forward(self, x):
        h = torch.tanh(self.up(x))
        if self.fail == "forward":
            raise ArithmeticError("blown")
        return x + self.down(Fuse.apply(h) if self.fail == "backward" else h)


class Failing(Stack):
    block = Fused


def fail(model, where: str, step: int, rank: int) -> None:
    """Blow up in the middle block."""
    model.blocks[1].fail = where
    with pytest.raises(ArithmeticError):
        squares(model, step + 7, 0, rank).backward()
    model.blocks[1].fail = None


def after_failures(model, step, micro, rank):
    """A loss, after a forward and a backward that failed."""
    held = []
    handle = model.first.register_forward_hook(lambda *_: held.append(
        [unit.name for unit in model.zero.units if any(flat.gathered for flat in unit.flats)] if hasattr(model, "zero") else []))
    for where in ("forward", "backward", "backward", "forward"):
        fail(model, where, step, rank)
    if not hasattr(model, "zero"):
        model.zero_grad()
    loss = squares(model, step, micro, rank)
    handle.remove()
    if hasattr(model, "zero") and model.zero.number == 3:  # the root computes, and the first block is on its way
        assert {"root"} <= set(sum(held, [])) <= {"root", "blocks.0"}, f"gathered when a forward began: {held}"
    return loss


def test_trap_12_exceptions(pool):
    check_exact(pool, of_stack(Failing, loss=after_failures) + of_stack(Failing, loss=after_failures, bucket_size=20))


def step_after_failure() -> list:
    """The state before and after an optimizer step that follows a failed backward, and what is still held."""
    found = []
    for stage in STAGES:
        model, optimizer = worlds.sharded(Case(stage, make=Failing))
        before = state_dict(model)
        fail(model, "backward", 0, dist.get_rank())
        optimizer.step()
        found.append((before, state_dict(model), model.zero.memory(), sum(flat.gathered for flat in model.zero.flats)))
    return found


def test_trap_12_a_step_after_an_exception_changes_nothing(pool):
    for found in pool(2).run(step_after_failure):
        for stage, (before, after, held, gathered) in enumerate(found):
            check_same_state(after, before, f"stage {stage}")
            assert held["gradients_bytes"] == 0 and (stage < 3 or gathered == 0), f"stage {stage}: {held}, {gathered}"


# -- 13: a collective out of order -----------------------------------------------------------------------------------

class Disordered(Stack):
    def forward(self, x, other_way):
        x = self.first(x)
        for block in reversed(self.blocks) if other_way else self.blocks:
            x = block(x)
        return self.last(x)


def disorder() -> list[str]:
    """What is said when the last rank runs the units in another order."""
    comm, said = Comm(dist.new_group(), timeout=1.0), "nothing"
    model, _ = shard(Disordered(), stage=3, comm=comm)
    try:
        model(rows(0, 0, comm.rank), other_way=comm.rank == comm.world_size - 1).square().mean().backward()
    except CollectiveError as error:
        said = str(error)
    return said


@pytest.mark.ranks_may_differ
@pytest.mark.parametrize("world_size", (2, 3))
def test_trap_13_a_collective_out_of_order(pool, world_size):
    for said in pool(world_size).run(disorder):
        for rank in range(world_size):
            assert f"rank {rank} was in all_gather of blocks.{2 if rank == world_size - 1 else 0}" in said


# -- 14, 15, 16, 20, 21, 22: buckets, accumulation, clipping, averages, seeds, data ----------------------------------

def buckets() -> list:
    """By stage: the elements of each flat, and how often each was reduced in one step."""
    found = []
    for stage in STAGES:
        case = Case(stage, bucket_size=70, steps=1)
        model, optimizer = worlds.sharded(case)
        worlds.train_plain(case, model, optimizer)
        names = [event.verb for event in model.zero.recorder.events if event.verb == "reduce_scatter"]
        found.append(([flat.layout.numel for flat in model.zero.flats], len(names)))
    return found


def test_trap_14_a_bucket_smaller_than_a_parameter(pool):
    check_exact(pool, [Case(stage, 3, bucket_size=70, accumulation=2) for stage in STAGES])
    for found in pool(2).run(buckets):
        for sizes, reductions in found:
            assert max(sizes) == 8 * 32 and reductions == len(sizes) > 10
            assert all(size <= 70 or size in (29 * 8, 8 * 24, 8 * 8 * 4, 8 * 8) for size in sizes)


def test_trap_15_accumulation(pool):
    """One micro-batch and four, and a last window of three and of one."""
    for world_size in (2, 3):
        cases = [Case(stage, world_size, optimizer=worlds.sgd, engine=True, steps=2, accumulation=4, last_window=last)
                 for stage in STAGES for last in (None, 3, 1)]
        for case, runs in worlds.runs_of(pool, cases):
            worlds.check_whole(runs, case)


def test_trap_15_accumulation_without_no_sync(pool):
    check_exact(pool, of_stack(Branches, loss=special_on_some, accumulation=3, optimizer=worlds.sgd), tolerance=1e-6)


@pytest.mark.parametrize("in_flight", (0, 2, 8))
def test_trap_15_late_gradients_wait_for_no_other_rank(pool, in_flight):
    """A gradient that comes after its bucket left, on one rank alone, while other reductions are under way."""
    check_exact(pool, of_stack(Branches, loss=special_on_some, accumulation=3, optimizer=worlds.sgd,
                               options=(("in_flight", in_flight),)), tolerance=1e-6)


class UsesLess(Branching):
    """Special rows leave one layer out, the others use all of them."""

    def forward(self, x):
        x, special = x
        return Block.forward(self, x) + (0 if special else self.other(x))


class RecomputedWithLess(Stack):
    """A block is gathered for its computation in the backward, before autograd has come to its output."""

    block = UsesLess

    def forward(self, x, special):
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(lambda x, block=block: block((x, special)), x, use_reentrant=True)
        return self.last(x)


def test_a_bucket_that_is_full_on_one_rank_alone_waits_for_the_gathers_outside_of_the_list(pool):
    """Where the next block is gathered by its own recomputation, all ranks begin it and the reduction in the same order."""
    check_exact(pool, of_stack(RecomputedWithLess, stages=(3,), loss=special_on_rank_one,
                               options=(("prefetch", 0),), optimizer=worlds.sgd), tolerance=1e-6)


def special_on_some(model, step, micro, rank):
    """Which rank uses which branch differs from micro-batch to micro-batch; each of them is reduced at once."""
    if hasattr(model, "zero"):
        model.zero.next_backward = replace(model.zero.next_backward, reduces=True)
    return model(rows(step, micro, rank), special=rank == micro % 2).square().mean()


def test_trap_16_clipping(pool):
    for world_size in (2, 3):
        cases = [Case(stage, world_size, optimizer=worlds.sgd, clip=clip, engine=engine, bucket_size=size)
                 for stage in STAGES for clip, engine, size in ((0.05, False, 100), (0.05, True, None), (1e9, True, None))]
        for case, runs in worlds.runs_of(pool, cases):
            worlds.check_whole(runs, case)
            assert len(runs[0].norms) == case.steps


def test_trap_20_the_average_and_not_the_sum(pool):
    check_exact(pool, of_stack(world_size=4, optimizer=lambda params: torch.optim.SGD(params, lr=0.1), steps=3))


def messages_of_buffers() -> list[int]:
    """How many broadcasts a step of `Buffers` takes, by stage."""
    counts = []
    for stage in STAGES:
        model, optimizer = worlds.sharded(of_stack(Buffers, stages=(stage,))[0])
        model(rows(0, 0, 0)).square().mean().backward()
        before = len(model.zero.comm.issued)
        optimizer.step()
        counts.append(sum(verb == "broadcast" for verb, *_ in list(model.zero.comm.issued)[before:]))
    return counts


def test_trap_09_buffers_are_sent_together(pool):
    """Means and variances in one message, counters in another."""
    assert pool(2).run(messages_of_buffers) == [[2] * len(STAGES)] * 2


def seeded() -> list:
    """The state by stage, of models that each rank built with a seed of its own."""
    states = []
    for stage in STAGES:
        torch.manual_seed(dist.get_rank())
        model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
        torch.nn.init.normal_(model[1].running_mean)
        states.append(state_dict(shard(model, stage=stage)[0]))
    return states


def test_trap_21_different_seeds(pool):
    torch.manual_seed(0)
    expected = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
    torch.nn.init.normal_(expected[1].running_mean)
    for rank, states in enumerate(pool(3).run(seeded)):
        for stage, state in enumerate(states):
            check_same_state(state, expected.state_dict(), f"rank {rank}, stage {stage}")


def test_trap_22_different_data(pool):
    """Losses differ from rank to rank, parameters do not: check_exact has compared them."""
    for _, runs in worlds.runs_of(pool, [Case(stage, 3) for stage in STAGES]):
        assert len({run.losses[0] for run in runs}) == 3
        check_same_state(runs[1].state, runs[0].state, "two ranks")


# -- 23: the consolidated state --------------------------------------------------------------------------------------

class Everything(Buffers):
    """Ties, buffers, a scalar, a double."""

    def __init__(self):
        super().__init__()
        self.last.weight = self.blocks[1].up.weight = nn.Parameter(torch.randn(7, 6))
        self.gain, self.exact = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.randn(3, dtype=torch.float64))


def round_trip() -> list:
    """By stage: the state as sharded, and after another one was loaded; what is refused, and how."""
    found = []
    for stage in STAGES:
        model, _ = shard(Everything(), stage=stage)
        first = state_dict(model)
        assert first["last.weight"] is first["blocks.1.up.weight"], "tied names share one tensor"
        other = {name: tensor + 1 for name, tensor in first.items()}
        refused = []
        for wrong in (other | {"nobody": torch.ones(1)}, {name: other[name] for name in list(other)[1:]},
                      other | {"gain": torch.ones(2)}, other | {"gain": 2.0}):
            with pytest.raises(BadInput) as error:
                load_state_dict(model, wrong)
            refused.append(str(error.value))
        check_same_state(state_dict(model), first, "after refused states")
        load_state_dict(model, other)
        if stage == 3:
            with pytest.raises(BadInput, match="zerocourse.state_dict"):
                model.state_dict()
        with pytest.raises(BadInput, match="zerocourse.load_state_dict"):
            model.load_state_dict(first)
        found.append((first, state_dict(model), refused, list(first)))
    return found


def test_trap_23_the_state_dict(pool):
    expected = Everything().state_dict()
    more = {name: tensor + 1 for name, tensor in expected.items()}
    for found in pool(3).run(round_trip):
        for stage, (first, loaded, refused, names) in enumerate(found):
            check_same_state(first, expected, f"stage {stage}")
            check_same_state(loaded, more, f"stage {stage}, loaded")
            assert names == list(expected)
            assert all(word in said for word, said in zip(("'nobody'", f"'{names[0]}'", "'gain'", "'gain' is a float"), refused, strict=True))


class Renamed(Stack):
    """Saves itself under other names, with something that is no tensor."""

    note = "new"

    def state_dict(self, *args, **kwargs):
        own = super().state_dict(*args, **kwargs)
        return {f"net.{name}" if name[0] != "_" else name: tensor for name, tensor in own.items()} | {"_epoch": [3]}

    def get_extra_state(self):
        return {"note": self.note}

    def set_extra_state(self, state):
        self.note = state["note"]


class Derived(Stack):
    """Saves what it makes out of a parameter."""

    def state_dict(self, *args, **kwargs):
        return super().state_dict(*args, **kwargs) | {"shown": self.first.weight.detach()}


def renamed(stage: int) -> tuple[dict, dict, str, str]:
    """The state, the same after another was loaded, the note that was loaded, and what is said to a derived entry."""
    model, _ = shard(Renamed(), stage=stage)
    first = state_dict(model)
    load_state_dict(model, {name: {"note": "old"} if name[0] == "_" else tensor + 1 for name, tensor in first.items()})
    said = ""
    try:
        state_dict(shard(Derived(), stage=stage)[0])
    except BadInput as error:
        said = str(error)
    return first, state_dict(model), model.note, said


@pytest.mark.parametrize("stage", STAGES)
def test_trap_23_a_state_with_names_of_its_own(pool, stage):
    expected = Renamed().state_dict()
    for first, loaded, note, said in pool(2).run(renamed, stage):
        assert list(first) == list(loaded) == list(expected) and note == "old"
        assert first.pop("_epoch") == loaded.pop("_epoch") == [3]
        assert first.pop("_extra_state") == {"note": "new"} and loaded.pop("_extra_state") == {"note": "old"}
        check_same_state(first, {name: expected[name] for name in first}, f"stage {stage}")
        check_same_state(loaded, {name: expected[name] + 1 for name in loaded}, f"stage {stage}, loaded")
        assert ("'first.weight'" in said) == (stage == 3)


# -- 26, 27: parameters outside their unit ---------------------------------------------------------------------------

class Borrowing(Block):
    """Also uses the weight of another block, which is not its child."""

    lender = None

    def forward(self, x):
        x = super().forward(x)
        return x if self.lender is None else x + torch.tanh(F.linear(x, self.lender[0].up.weight))[:, :6]


class Earlier(Stack):
    block = Borrowing
    lender, borrower = 0, 2

    def __init__(self):
        super().__init__()
        self.blocks[self.borrower].lender = [self.blocks[self.lender]]


class Later(Earlier):
    lender, borrower = 2, 0


class ByTheRoot(Stack):
    """The root uses a weight of a block before it runs, and of another after it ran."""

    def forward(self, x):
        x = F.linear(x, self.blocks[1].down.weight.t())[:, :6]
        return F.linear(super().forward(x), self.blocks[0].up.weight)


class Silent(Earlier):
    """Uses the weight's values, and gives it no gradient."""

    def __init__(self):
        super().__init__()
        self.blocks[0].up.weight.requires_grad_(False)


@pytest.mark.parametrize("make", (Earlier, Later, ByTheRoot, Silent))
def test_trap_26_a_parameter_used_outside_its_unit(pool, make):
    """When its gradient comes after its unit's were reduced, there is another round, and another order of additions."""
    cases = of_stack(make, steps=3) + of_stack(make, accumulation=2, bucket_size=10)
    cases += of_stack(make, stages=(3,), options=(("reshard_after_forward", False),))
    if make in (Later, ByTheRoot):
        check_exact(pool, [replace(case, optimizer=worlds.sgd) for case in cases], tolerance=1e-6)
    else:
        check_exact(pool, cases)


class Keeping(Stack):
    def forward(self, x):
        for block in self.blocks:
            block.register_forward_hook(self.keep)
        return super().forward(x)

    def keep(self, block, args, output):
        weight = block.up.weight
        self.kept += [weight, weight.data, weight.detach(), weight.detach()[1:], weight.t(), block.up.bias.detach().view(7, 1),
                      *torch.unbind(weight)]


def kept() -> list:
    """What is read from tensors that were kept from gathered parameters, and the state after training on."""
    case = Case(make=Keeping, loss=squares)
    model, optimizer = worlds.sharded(case)
    model.kept, said = [], []
    loss = squares(model, 0, 0, 0)
    assert not any(torch.isnan(tensor).any() for tensor in model.kept), "what a forward used stays until its backward"
    loss.backward()
    for _ in range(2):
        for tensor in model.kept:
            try:
                said.append(bool(torch.isnan(tensor).all() and torch.isnan(tensor.sum()) and torch.isnan(tensor.clone()).all()))
                tensor.data.add_(1)  # into what is freed: may raise, must harm nobody
            except RuntimeError:
                pass
            except BadInput:  # the parameter itself says that it is sharded
                said.append(isinstance(tensor, nn.Parameter))
    model.kept, optimizer = [], optimizer.zero_grad() or optimizer
    return [said, worlds.train_plain(case, model, optimizer)]


@pytest.mark.skipif(not FreeableStorage(torch.zeros(4)).readable,
                    reason="before torch 2.11, and outside Linux, to read a view of freed memory ends the process")
def test_trap_27_tensors_kept_after_release(pool):
    for rank, (said, run) in enumerate(pool(2).run(kept)):
        assert len(said) > 40 and all(said)
        worlds.check_bitwise(run, worlds.exact(Case(make=Stack, loss=squares))[rank], f"rank {rank}")


# -- 28, 31: what the optimizer keeps --------------------------------------------------------------------------------

def two_groups(params) -> torch.optim.Optimizer:
    """Decay for matrices alone, another learning rate for vectors."""
    params = list(params)
    return torch.optim.AdamW([{"params": [param for param in params if param.dim() > 1], "weight_decay": 0.5},
                              {"params": [param for param in params if param.dim() < 2], "weight_decay": 0.0, "lr": 0.02}], lr=0.01)


def test_trap_28_parameter_groups(pool):
    check_exact(pool, [Case(stage, 3, optimizer=two_groups, rank_map=rank_map) for stage in STAGES for rank_map in (None, "greedy")])


def step_counts() -> list[dict[str, float]]:
    """Adam's step count of every parameter this rank has a piece of, by stage."""
    found = []
    for stage in STAGES:
        case = Case(stage, make=partly_frozen, loss=thaw, steps=5, bucket_size=20, accumulation=2)
        model, optimizer = worlds.sharded(case)
        worlds.train_plain(case, model, optimizer)
        found.append({key.name: optimizer.state[piece]["step"].item() for flat in model.zero.flats
                      for key, piece in flat.shard_params.items()})
    return found


def test_trap_31_step_counts(pool):
    for found in pool(2).run(step_counts):
        for stage, counts in enumerate(found):
            for name, count in counts.items():
                late, early = name.startswith("blocks.1") or name == "blocks.0.up.weight", name.startswith("blocks.2")
                assert count == (3 if late else 2 if early else 5), f"stage {stage}: {name} made {count} of 5 steps"


# -- 32: memory and collectives --------------------------------------------------------------------------------------

def trampling(function):
    """Right after a collective was issued, free all that can be freed and write over it."""
    calls = itertools.count()

    def issue(flat, comm):
        handle = function(flat, comm)
        if next(calls) % 10 == 0:
            gc.collect()
        for size in (flat.layout.padded, flat.own.stop - flat.own.start, 1):
            for _ in range(8):
                torch.full((max(1, size),), float("nan"))
        time.sleep(0.001)  # so that the other rank has read it, or not
        return handle

    return issue


def trampled(cases: list[Case]) -> list[worlds.Run]:
    runs = []
    for case in cases:
        model, optimizer = worlds.sharded(case)
        ops = model.zero.ops
        model.zero.ops = replace(ops, reduce=trampling(ops.reduce), unshard=trampling(ops.unshard))
        runs.append(worlds.train_plain(case, model, optimizer))
    return runs


def test_trap_32_memory_freed_while_a_collective_uses_it(pool):
    cases = [Case(stage, 3, steps=2, bucket_size=100, options=(("in_flight", 8),)) for stage in STAGES]
    for case, runs in zip(cases, zip(*pool(3).run(trampled, cases), strict=True), strict=True):
        for run, oracle in zip(runs, worlds.exact(case), strict=True):
            worlds.check_bitwise(run, oracle, case)
