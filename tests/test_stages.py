"""Every stage equals the unsharded model, in every way to train that it offers."""

import pytest
import torch
import worlds
from worlds import STAGES, Case, check_close, check_exact, train_all

WORLDS = (1, 2, 3, 4)
MAPS = ("flat", "round_robin", "contiguous", "greedy", worlds.by_name_length)


def compare(pool, cases: list[Case]) -> None:
    """Against the unsharded model: bitwise (the stages add up a norm in another order), and the whole batch, nearly."""
    unclipped, clipped = [case for case in cases if not case.clip], [case for case in cases if case.clip]
    runs = check_exact(pool, unclipped) if unclipped else []
    if clipped:
        runs += list(zip(*pool(clipped[0].world_size).run(train_all, clipped), strict=True))
    for case, of_case in zip(unclipped + clipped, runs, strict=True):
        check_close(of_case, worlds.whole(case), case, 1e-6 if case.optimizer is worlds.sgd else None)


@pytest.mark.parametrize("world_size", WORLDS)
def test_equals_the_unsharded_model(pool, world_size):
    compare(pool, [Case(stage, world_size, optimizer=optimizer, accumulation=accumulation)
                   for stage in STAGES for optimizer in (worlds.adamw, worlds.sgd) for accumulation in (1, 4)])


@pytest.mark.parametrize("world_size", WORLDS)
def test_with_clipping(pool, world_size):
    """At 0.1 every step is clipped."""
    cases = [Case(stage, world_size, optimizer=worlds.sgd, clip=0.1, accumulation=accumulation, rank_map=rank_map)
             for stage in STAGES for accumulation, rank_map in ((1, None), (2, "greedy"))]
    compare(pool, cases)
    assert min(worlds.whole(cases[0]).norms) > 0.1


@pytest.mark.parametrize("world_size", (2, 3, 4))
def test_under_every_rank_map(pool, world_size):
    compare(pool, [Case(stage, world_size, rank_map=rank_map, accumulation=1 + index % 2,
                        optimizer=(worlds.adamw, worlds.sgd)[(stage + index) % 2])
                   for stage in STAGES for index, rank_map in enumerate(MAPS)])


@pytest.mark.parametrize("world_size", (2, 3))
def test_with_small_buckets(pool, world_size):
    """300 elements hold a few tensors or a part of a block; 1 element makes every tensor a bucket of its own."""
    compare(pool, [Case(stage, world_size, bucket_size=size, rank_map=rank_map, accumulation=accumulation)
                   for stage in STAGES for size, rank_map, accumulation in ((300, None, 2), (1, "greedy", 1))])


@pytest.mark.parametrize("world_size", (1, 2, 3))
def test_through_the_engine(pool, world_size):
    """The engine measures the norm at each step and clips at 1.0 unless told otherwise, which changes no gradient here."""
    compare(pool, [Case(stage, world_size, engine=True, accumulation=accumulation, optimizer=optimizer, clip=clip,
                        bucket_size=size)
                   for stage in STAGES for accumulation, optimizer, clip, size in
                   ((1, worlds.adamw, 0.0, None), (4, worlds.sgd, 0.0, 400), (2, worlds.sgd, 0.05, None))])


def test_with_other_options_of_shard(pool):
    """Units of any kind, no prefetch and much of it, one reduction at a time, parameters kept for the backward."""
    options = ({"units": [torch.nn.LayerNorm, "h.1"]}, {"units": []}, {"prefetch": 0}, {"prefetch": 9, "in_flight": 9},
               {"in_flight": 1, "reshard_after_forward": False})
    compare(pool, [Case(stage, 2, options=tuple(chosen.items()), accumulation=2, bucket_size=300)
                   for stage in STAGES for chosen in options])


def bf16_runs() -> list:
    """Each stage in bf16: its run, and the kinds of numbers it holds."""
    found = []
    for stage in STAGES:
        case = Case(stage, 2, options=(("param_dtype", torch.bfloat16),), accumulation=1 + stage % 2)
        model, optimizer = worlds.sharded(case)
        masters = {piece.dtype for group in optimizer.param_groups for piece in group["params"]}
        run = worlds.train_plain(case, model, optimizer)
        states = {value.dtype for state in optimizer.state.values() for key, value in state.items() if key != "step"}
        found.append((case, run, masters | states))
    return found
