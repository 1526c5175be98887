"""What README offers, under NCCL's rules (see `strict_nccl`): what its own tests say on gloo holds there, and nothing hangs."""

import pytest
import test_activations
import test_context_parallel
import test_passes
import test_plus_plus
import test_tensor_parallel
import torch
import worlds
from worlds import STAGES, Case, check_exact


@pytest.mark.parametrize("world_size", (1, 2, 3))
def test_every_stage(strict_pool, world_size):
    check_exact(strict_pool, [Case(stage, world_size, param_dtype=dtype, accumulation=2)
                              for stage in STAGES for dtype in (None, torch.bfloat16)])


@pytest.mark.parametrize("world_size", (2, 3))
def test_slices_of_any_length_and_anything_under_way(strict_pool, world_size):
    """Also small buckets, of which some ranks own nothing, and parameters that stay for the backward."""
    options = ({"prefetch": 9, "in_flight": 9}, {"prefetch": 0, "in_flight": 1, "reshard_after_forward": False})
    check_exact(strict_pool, [Case(stage, world_size, rank_map=rank_map, bucket_size=300, options=tuple(chosen.items()))
                              for stage in (1, 2, 3) for chosen in options for rank_map in (None, "greedy", "contiguous")])


@pytest.mark.parametrize("make", (worlds.Recomputed, worlds.RecomputedReentrant))
def test_checkpointed_blocks(strict_pool, make):
    check_exact(strict_pool, [Case(stage, 3, make=make, loss=worlds.squares) for stage in STAGES])


def test_packed_and_divided_checkpoints(strict_pool):
    test_activations.test_checkpoints_divided_among_ranks_that_have_the_same(strict_pool, 3)
    test_activations.test_packed_checkpoints_train_under_zero(strict_pool, 3)


@pytest.mark.parametrize("stage", (1, 2, 3))
def test_hybrid_sharding(strict_pool, stage):
    test_passes.test_replicas_are_summed_once_where_the_backwards_say_which_is_the_last(strict_pool, stage, ({}, {}, {}), 3)


@pytest.mark.parametrize("sequence", (False, True))
@pytest.mark.parametrize("ranks, options", ((2, {}), (3, {"tied": False, "bias": False})))
def test_tensor_parallelism(strict_pool, ranks, sequence, options):
    test_tensor_parallel.test_equals_one_process(strict_pool, ranks, sequence, options)


@pytest.mark.parametrize("kind", test_context_parallel.KINDS)
@pytest.mark.parametrize("ranks", (2, 3))
def test_context_parallelism(strict_pool, kind, ranks):
    test_context_parallel.test_attention_and_its_gradients_are_those_of_one_process(strict_pool, kind, ranks, 6, 3 if ranks == 3 else 2)
    test_context_parallel.test_a_model_under_zero_equals_one_process(strict_pool, kind, ranks, (1, 3))


def test_zero_plus_plus(strict_pool):
    test_plus_plus.test_all_ranks_compute_with_the_same_weights_and_keep_the_exact_ones(strict_pool)
    test_plus_plus.test_without_any_of_them_it_is_stage_3_bit_for_bit(strict_pool)
