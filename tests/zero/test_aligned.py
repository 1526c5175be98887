"""Parameters that begin at multiples of 16 bytes, as on a GPU: the same training, and integers that know the padding."""

import math
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
import worlds
from hypothesis import given
from hypothesis import strategies as st
from worlds import Case, Stack, check_bitwise, check_near, runs_of

from zerocourse import ZeroOptions, load_checkpoint, save_checkpoint, shard, state_dict
from zerocourse.engine.checkpoint.folders.checkpoint_index import read_index
from zerocourse.formulas.shares import aligned, padded_elements, shard_elements
from zerocourse.layout.rankmap import MAPS, Layout, owners
from zerocourse.measure.ledger import Ledger
from zerocourse.offload import HostOffload
from zerocourse.simulation import SimulatedJob, run_job, simulate

BF16 = torch.bfloat16
ALIGNED = ZeroOptions(aligned=True)
OPTIONS = (("options", ALIGNED),)
sizes = st.lists(st.lists(st.integers(0, 7), max_size=3), max_size=9)
shapes = sizes.map(lambda found: {f"p{index}": tuple(shape) for index, shape in enumerate(found)})


# -- layouts ---------------------------------------------------------------------------------------------------------

@given(shapes, st.integers(1, 9), st.sampled_from([None, *MAPS]), st.sampled_from([1, 2, 4, 8, 16]))
def test_every_parameter_and_every_slice_begins_at_16_bytes(shapes, world_size, rank_map, itemsize):
    multiple = 16 // itemsize
    layout = Layout.build(shapes, world_size, owners(rank_map, shapes, world_size), multiple)
    begins = [*layout.offset.values(), *(layout.slice(rank).start for rank in range(world_size))]
    assert all(begin * itemsize % 16 == 0 for begin in begins)
    parts = [part for rank in range(world_size) for part in layout.shard_ranges(layout.slice(rank))]
    assert all(part.at * itemsize % 16 == 0 for part in parts)  # the rest of a tensor that is cut begins its slice
    assert sum(part.stop - part.start for part in parts) == layout.numel == sum(map(math.prod, shapes.values()))
    covered = torch.zeros(layout.padded, dtype=torch.int64)
    for name in shapes:
        covered[layout.param_slice(name)] += 1
    for gap in layout.padding:
        covered[gap] += 1
    assert (covered == 1).all()
    for rank in range(world_size):
        own = layout.slice(rank)
        assert layout.real(rank) == sum(part.stop - part.start for part in layout.shard_ranges(own))
    if rank_map is None:
        end = sum(aligned(math.prod(shape), multiple) for shape in shapes.values())
        assert layout.padded == padded_elements(end, world_size, multiple)


def begins_of(stage: int, dtype: torch.dtype | None, reduce_dtype: torch.dtype | None) -> list[int]:
    """Where the parameters, and what the optimizer steps, begin in memory, in bytes."""
    case = Case(stage, make=Stack, loss=worlds.squares, param_dtype=dtype, reduce_dtype=reduce_dtype, options=OPTIONS)
    model, _ = worlds.sharded(case)
    found = []
    for flat in model.zero.flats:
        narrowest = min(flat.dtype.itemsize, flat.bucket_dtype.itemsize)
        found += [begin * narrowest % 16 for begin in flat.layout.offset.values()]
        found += [param.data_ptr() % 16 for param in flat.shard_params.values()]
    return found


def test_they_do_so_in_memory(pool):
    for stage in range(4):
        for dtype, reduce_dtype in ((None, None), (BF16, None), (None, BF16), (BF16, torch.float32)):
            for found in pool(3).run(begins_of, stage, dtype, reduce_dtype):
                assert found and not any(found), (stage, dtype, reduce_dtype)


def aligned_by_default() -> list:
    model, _ = shard(Stack(), stage=2)
    return [model.zero.options.aligned, [flat.layout.padded for flat in model.zero.flats]]


def test_on_the_cpu_they_are_packed(pool):
    for is_aligned, padded in pool(2).run(aligned_by_default):
        assert is_aligned is False and padded == [42, 42, 98, 98, 98], padded


# -- training --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("world_size", (2, 3))
def test_equals_the_unsharded_model(pool, world_size):
    of_stack = [Case(stage, world_size, make=Stack, loss=worlds.squares, accumulation=accumulation, optimizer=worlds.sgd, options=OPTIONS,
                     bucket_size=bucket_size, rank_map=rank_map)
                for stage in range(4) for accumulation, bucket_size, rank_map in ((1, None, None), (2, 60, None), (2, None, "greedy"))]
    cases = [*of_stack, *(Case(stage, world_size, param_dtype=BF16, accumulation=2, options=OPTIONS) for stage in range(4))]
    for case, runs in runs_of(pool, cases):
        for rank, (run, oracle) in enumerate(zip(runs, worlds.exact(case), strict=True)):
            check_bitwise(run, oracle, f"rank {rank} of {case}")


@pytest.mark.parametrize("offload", (HostOffload, partial(HostOffload, ratio=0.5), partial(HostOffload, parameters=True)))
def test_with_offload(pool, offload):
    stages = (3,) if "parameters" in getattr(offload, "keywords", {}) else (1, 2, 3)
    cases = [Case(stage, 2, make=Stack, loss=worlds.squares, optimizer=worlds.sgd, clip=0.1, options=OPTIONS) for stage in stages]
    for case in cases:
        for rank, (run, oracle) in enumerate(zip(pool(2).run(with_offload, case, offload), worlds.exact(case), strict=True)):
            check_near(run, oracle, f"rank {rank} of {case}")


def with_offload(case: Case, offload) -> worlds.Run:
    return worlds.train(case, offload=offload())


def hybrid(case: Case) -> worlds.Run:
    """Two shards by two replicas."""
    pairs = [dist.new_group(ranks, timeout=timedelta(seconds=5)) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
    rank = dist.get_rank()
    model = case.make()
    model, optimizer = shard(model, case.optimizer(model.parameters()), case.stage, options=ALIGNED,
                             shard_group=pairs[rank // 2], replicate_group=pairs[2 + rank % 2])
    for step in range(case.steps):
        case.loss(model, step, 0, rank).backward()
        optimizer.step()
        optimizer.zero_grad()
    return worlds.Run([], state_dict(model), [])


@pytest.mark.parametrize("stage", (1, 2, 3))
def test_within_replicas(pool, stage):
    case = Case(stage, 4, make=Stack, loss=worlds.squares, optimizer=worlds.sgd)
    for rank, run in enumerate(pool(4).run(hybrid, case)):
        check_near(run, replace(worlds.exact(case)[rank], losses=[]), f"rank {rank}")


# -- checkpoints -----------------------------------------------------------------------------------------------------

def leg(case: Case, number: int, folder: str, is_aligned: bool) -> dict:
    model, optimizer = worlds.sharded(case, options=ZeroOptions(aligned=is_aligned))
    if number:
        load_checkpoint(model, optimizer, f"{folder}/{number - 1}")
    case.loss(model, number, 0, 0).backward()
    optimizer.step()
    optimizer.zero_grad()
    save_checkpoint(model, optimizer, f"{folder}/{number}")
    return state_dict(model)


@pytest.mark.parametrize("dtype", (None, BF16))
def test_a_checkpoint_travels_between_both_layouts(pool, tmp_path, dtype):
    """Through stages and numbers of ranks; every rank sees the same rows."""
    case = Case(make=Stack, loss=in_dtype, optimizer=worlds.adamw, param_dtype=dtype)
    for way, layouts in (("both", (True, False, True, False)), ("packed", (False,) * 4)):
        (tmp_path / way).mkdir()
        for number, (ranks, stage) in enumerate(((2, 3), (3, 2), (1, 0), (3, 3))):
            states = pool(ranks).run(leg, replace(case, stage=stage), number, str(tmp_path / way), layouts[number])
        if way == "both":
            found = states[0]
        assert bool(read_index(tmp_path / way / "0")["about"].get("aligned")) == layouts[0]
    worlds.check_same_state(found, states[0], "both layouts")


def in_dtype(model, step, micro, rank):
    return model(worlds.rows(step, micro, rank).to(model.zero.flats[0].dtype)).float().square().mean()


# -- integers --------------------------------------------------------------------------------------------------------

def bytes_held(stage: int, dtype: torch.dtype | None) -> tuple[dict, list[list[int]], dict]:
    """What is held after a step, the sizes of the parameters in each buffer, and what the ledger finds."""
    case = Case(stage, make=Stack, loss=in_dtype, param_dtype=dtype, options=OPTIONS)
    model, optimizer = worlds.sharded(case)
    case.loss(model, 0, 0, model.zero.comm.rank).backward()
    optimizer.step()
    optimizer.zero_grad()
    now = Ledger(model, optimizer).now()
    held = model.zero.memory(optimizer)
    params = [[math.prod(shape) for shape in flat.layout.shapes.values()] for flat in model.zero.flats]
    own = [sum(part.stop - part.start for part in flat.layout.shard_ranges(flat.own)) for flat in model.zero.flats]
    return held, params, {"parameters": now.parameters, "own": own, "sent": dict(model.zero.comm.sent)}


@pytest.mark.parametrize("world_size", (2, 3))
@pytest.mark.parametrize("dtype", (None, BF16))
def test_the_ledger_holds_what_the_formula_says(pool, world_size, dtype):
    itemsize, multiple = (4, 4) if dtype is None else (2, 8)
    for stage in range(4):
        for held, params, found in pool(world_size).run(bytes_held, stage, dtype):
            ends = [sum(aligned(size, multiple) for size in of_buffer) for of_buffer in params]
            padded = [padded_elements(end, world_size, multiple) for end in ends]
            own = [shard_elements(end, world_size, multiple) for end in ends]
            held_full, held_own = (own, own) if stage == 3 else (padded, own if stage else padded)
            assert held["parameters_bytes"] == found["parameters"] == itemsize * sum(held_full), stage
            masters = 4 * sum(held_own) if dtype else 0
            assert held["optimizer_bytes"] == masters + 8 * sum(found["own"]), stage  # AdamW has no states of padding


def in_real_ranks(jobs: list[SimulatedJob]) -> list[dict]:
    from zerocourse.comm import Comm

    found = []
    for job in jobs:
        comm = Comm()
        found.append(run_job(replace(job, rank=comm.rank), comm))
    return found


def test_a_simulated_rank_is_a_real_one(pool):
    """Also in what it holds and sends; padding is sent beside the formula's bytes."""
    jobs = [SimulatedJob("gpt2-tiny", stage, 3, micro_batch=2, seq=16, half=half, aligned=True) for stage, half in ((1, True), (3, False))]
    kinds = ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "peak_bytes", "sent_bytes", "padding_bytes")
    for rank, real in enumerate(pool(3).run(in_real_ranks, jobs)):
        for job, measured in zip(jobs, real, strict=True):
            ours = simulate(replace(job, rank=rank))
            assert {kind: ours[kind] for kind in kinds} == {kind: measured[kind] for kind in kinds}, (job, rank)
