"""Pipelines under NCCL's rules (see `strict_nccl`): what their own tests say on gloo holds there, and nothing hangs."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
import test_mesh_parallel
import test_pipeline_engine
import test_pipeline_run as runs
import torch.distributed as dist
import torch.nn.functional as F

from zerocourse.comm import Comm, duplicates
from zerocourse.errors import BadInput
from zerocourse.parallel.pipeline import Pipeline


@pytest.mark.parametrize("world_size, kind", ((2, "untied"), (3, "stack")))
@pytest.mark.parametrize("name", runs.COMPUTE)
def test_every_schedule_equals_one_process_bitwise(strict_pool, world_size, name, kind):
    runs.test_gradients_are_those_of_one_process_bitwise(strict_pool, world_size, name, kind)


@pytest.mark.parametrize("world_size, name", ((2, "gpipe"), (2, "1f1b"), (3, "gpipe"), (3, "1f1b"), (2, "interleaved"), (3, "zb-h1")))
def test_tied_weights_get_the_sum_of_their_gradients(strict_pool, world_size, name):
    runs.test_a_tied_weight_gets_the_sum_of_both_gradients(strict_pool, world_size, name, True)


def test_pipedream(strict_pool):
    runs.test_pipedream_is_a_training_with_delays(strict_pool)
    runs.test_2bw_is_late_by_one_update_everywhere(strict_pool, 2)


@pytest.mark.parametrize("sizes, stage, chunks", (({"pp": 2, "tp": 2}, 1, 1), ({"pp": 2, "dp": 2}, 0, 1), ({"pp": 2, "dp": 2}, 1, 1),
                                                  ({"pp": 2, "dp": 2}, 3, 1), ({"pp": 2, "dp": 2}, 2, 2)))
def test_pipelines_side_by_side_on_a_mesh(strict_pool, sizes, stage, chunks):
    test_mesh_parallel.test_equals_one_process(strict_pool, sizes, stage, True, False, chunks)


@pytest.mark.parametrize("ranks, stages, zero", ((3, 3, 1), (4, 2, 0)))
def test_the_engines_pipeline_module(strict_pool, ranks, stages, zero):
    test_pipeline_engine.test_equals_one_process(strict_pool, ranks, stages, zero)


# -- the Comms of the links ------------------------------------------------------------------------------------------

def two_pipelines() -> list:
    """How many process groups there are before and after each, and whether `comm` counts what the links send."""
    comm, groups = Comm(), [len(dist.distributed_c10d._world.pg_map)]
    for _ in range(2):
        pipeline = Pipeline(runs.layers_of("untied"), runs.schedule("1f1b", comm.world_size, 2), runs.cross_entropy, comm)
        pipeline.step(*runs.data_of("untied", 4))
        groups.append(len(dist.distributed_c10d._world.pg_map))
    links = set(pipeline.messages.comm_of.values())
    return [groups, len(links), comm in links, comm.sent["send"] > 0,
            all(link.recorder is comm.recorder and link.timeout == comm.timeout for link in links)]


def test_a_second_pipeline_uses_the_groups_of_the_first(strict_pool, pool):
    """There are two communicators between two ranks, one each way."""
    assert strict_pool(2).run(two_pipelines) == [[[1, 3, 3], 2, False, True, True]] * 2
    assert pool(2).run(two_pipelines) == [[[1, 1, 1], 1, True, True, True]] * 2, "gloo needs none"


def refused() -> list[str]:
    """A plan whose lists wait for each other, and one on a group of which other ranks know nothing."""
    comm, said = Comm(), []
    right = runs.schedule("1f1b", comm.world_size, 2)
    turned = [sorted(actions, key=lambda action: -action.micro_batch) if rank else actions for rank, actions in enumerate(right.actions)]
    group = dist.new_group([0, 1])
    for of, schedule in ((comm, right._replace(actions=turned)), (Comm(group) if comm.rank < 2 else None, runs.schedule("1f1b", 2, 2))):
        if of is not None:
            with pytest.raises(BadInput) as caught:
                Pipeline(runs.layers_of("untied"), schedule, F.mse_loss, of)
            said.append(str(caught.value))
    return said


def test_what_nccl_cannot_run_is_refused_before_it_starts(strict_pool):
    for said in strict_pool(3).run(refused):
        assert said[0].startswith("1f1b would deadlock: a ring of waits on NCCL: rank ")
        assert len(said) == 1 or said[1].endswith("process groups for NCCL, which all 3 ranks must make: give it a Comm of a MeshComms")


def without_gloo() -> list:
    """As where a script starts a group of NCCL alone: which shapes are new goes through the store."""
    comm = Comm()
    comm.backends = "nccl"
    pipeline = Pipeline(runs.layers_of("stack"), runs.schedule("gpipe", comm.world_size, 3), F.mse_loss, comm)
    tensors = [each.tensor_split((2, 3)) for each in runs.data_of("stack", 5)]
    pipeline.step(*tensors)
    return [pipeline.kinds, "all_gather_object" in [verb for verb, *_ in comm.issued]]


def test_without_gloo_shapes_are_agreed_on_through_the_store(pool):
    assert pool(2).run(without_gloo) == [[[0, 1, 0], True]] * 2


def test_a_communicator_of_a_link_takes_little_memory(monkeypatch):
    assert dist.is_nccl_available() or duplicates.options(SimpleNamespace(timeout=timedelta(seconds=3))) is None
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(dist, "ProcessGroupNCCL", SimpleNamespace(Options=lambda: SimpleNamespace(config=SimpleNamespace())), raising=False)
    options = duplicates.options(SimpleNamespace(timeout=timedelta(seconds=3)))
    assert options.config.max_ctas == 4 and options._timeout == timedelta(seconds=3)
