"""One simulated rank of a mesh against real ones, at 4 and at 8: the same bytes along each axis, and the same memory."""

from dataclasses import replace

import pytest

from zerocourse.errors import BadInput
from zerocourse.parallel.mesh_comms import MeshComms
from zerocourse.simulation.one_mesh_rank import MeshJob, run_mesh_job, simulate_mesh

TINY = MeshJob("gpt2-tiny", {"pp": 2, "tp": 2}, micro_batch=2, micro_batches=4, seq=16)
OF_FOUR = (TINY, replace(TINY, sizes={"pp": 2, "dp": 2}, stage=3, half=True), replace(TINY, sizes={"dp": 2, "tp": 2}, stage=2),
           replace(TINY, sizes={"pp": 2, "dp": 2}, stage=2, schedule="interleaved", chunks=2),
           replace(TINY, sizes={"pp": 4}, recompute=True, schedule="gpipe"),
           replace(TINY, model="llama-tiny", sequence=False, half=True))
OF_EIGHT = (replace(TINY, sizes={"pp": 2, "dp": 2, "tp": 2}), replace(TINY, model="llama-tiny", sizes={"pp": 2, "dp": 2, "tp": 2}, stage=3))


def in_real_ranks(job: MeshJob) -> dict:
    comms = MeshComms(job.mesh)
    return run_mesh_job(replace(job, rank=comms.rank), comms)


@pytest.mark.parametrize("job", (*OF_FOUR, *OF_EIGHT), ids=lambda job: f"{job.model} {job.sizes} {job.stage} {job.schedule}")
def test_a_simulated_rank_of_a_mesh_is_a_real_one(pool, job):
    """The first, the last and one between: both ends of the pipeline, both halves of a layer.

    Where one replica alone makes a bucket of gradients, autograd adds up fake ones in new memory, and real ones in place.
    """
    ranks = job.mesh.world_size
    by_rank = pool(ranks).run(in_real_ranks, job, timeout=300)
    for rank in (0, ranks // 2 - 1, ranks - 1):
        real, ours = by_rank[rank], simulate_mesh(replace(job, rank=rank))
        if job.mesh.sizes["dp"] == 1:
            assert real["peak_bytes"] <= ours["peak_bytes"] <= 1.1 * real["peak_bytes"]
            ours |= {name: real[name] for name in ("peak_bytes", "peak_kinds")}
        assert ours == real, rank
        assert all((real["sent"][axis] > 0) == (size > 1) for axis, size in job.mesh.sizes.items() if axis in ("dp", "tp"))


def test_a_job_that_cannot_be():
    for wrong, words in (({"schedule": "zb-h1"}, "schedule is 'zb-h1': under ZeRO it can be 1f1b, gpipe, interleaved"),
                         ({"rank": 4}, "rank is 4"), ({"stage": 4}, "stage is 4"), ({"seq": 10**6}, "takes 1 to")):
        with pytest.raises(BadInput, match=words):
            replace(TINY, **wrong)
