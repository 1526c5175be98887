"""Ranks of large models, simulated once and kept in `recorded_scale.json`, because each takes up to half a minute.

`python -m zerocourse.course.chapters.scale.scale_study` simulates those that are missing. With `again` behind it, it simulates all of them
again, in about half an hour, and with `clusters` those that say how long a step takes, which is due whenever the figures of
that cluster have changed.
"""

import sys
from collections.abc import Iterator
from dataclasses import fields
from functools import cache

from tqdm import tqdm

from ....errors import BadInput
from ....measure.recorded import Recorded
from ....simulation import SimulatedJob, find_cluster, simulate, simulate_time

kept = Recorded(__file__, "recorded_scale")
TABLE = {"7.5B": "llama-7b", "128B": "llama-128b", "1T": "llama-1t"}  # the paper's models, and what is simulated for them
TABLE_RANKS = 1, 4, 16, 64, 256, 1024
PRINTED = {  # Table 1 of arXiv 1910.02054, GB per rank at stages 1 / 2 / 3, as it is printed
    "7.5B": ("120 / 120 / 120", "52.5 / 41.3 / 30", "35.6 / 21.6 / 7.5", "31.4 / 16.6 / 1.88", "30.4 / 15.4 / 0.47",
             "30.1 / 15.1 / 0.12"),
    "128B": ("2048 / 2048 / 2048", "896 / 704 / 512", "608 / 368 / 128", "536 / 284 / 32", "518 / 263 / 8", "513 / 257 / 2"),
    "1T": ("16000 / 16000 / 16000", "7000 / 5500 / 4000", "4750 / 2875 / 1000", "4187 / 2218 / 250", "4046 / 2054 / 62.5",
           "4011 / 2013 / 15.6")}
GROWTH_RANKS = tuple(2**power for power in range(13))
CLUSTER, NODE = "256x8xH100", 8  # and the ranks of one of its nodes
TIMED_RANKS = 8, 32, 128, 512, 2048
MICRO_BATCH = 4  # of a timed step
KINDS = "parameters", "gradients", "optimizer"
NOT_KEPT = "events", "stage", "ranks"
TABLE_TOKENS = 128  # of a sample in Table 1: the peak of so short a step means nothing, so it is not kept
STATES = "params", "total_bytes", *(f"{kind}_bytes" for kind in KINDS)


def table_job(model: str, stage: int, ranks: int) -> SimulatedJob:
    """A cell of Table 1. Model states do not depend on the batch, so it is one short sample."""
    return SimulatedJob(model, stage, ranks, seq=TABLE_TOKENS, half=True)


def growth_job(ranks: int, recompute: bool = False) -> SimulatedJob:
    """A step of stage 3 with one whole sample."""
    return SimulatedJob("llama-7b", 3, ranks, half=True, recompute=recompute)


def timed_job(ranks: int, shard_ranks: int | None = None) -> SimulatedJob:
    return SimulatedJob("llama-7b", 3, ranks, micro_batch=MICRO_BATCH, half=True, recompute=True, shard_ranks=shard_ranks)


def jobs() -> Iterator[tuple[SimulatedJob, str | None]]:
    """All that are recorded, with the cluster on which each is timed; None: it is not."""
    yield from ((table_job("llama-7b", stage, 64), None) for stage in range(4))
    yield from ((growth_job(ranks, recompute), None) for recompute in (False, True) for ranks in GROWTH_RANKS)
    yield from ((timed_job(ranks, shard_ranks), CLUSTER) for shard_ranks in (None, NODE) for ranks in TIMED_RANKS)
    for model in TABLE.values():
        yield from ((table_job(model, stage, ranks), None) for stage in (1, 2, 3) for ranks in TABLE_RANKS)


def recorded(job: SimulatedJob, cluster: str | None = None) -> dict:
    """What `simulate` or `simulate_time` returned for it, like NCCL, without the events. Raises BadInput where it is not kept."""
    known = _everything_recorded()
    if (job, cluster) not in known:
        raise BadInput(f"{job} is not among the {len(known)} jobs that are recorded: simulate it")
    return known[job, cluster]


@cache
def _everything_recorded() -> dict[tuple[SimulatedJob, str | None], dict]:
    return {(SimulatedJob(**each["job"]), each["cluster"]): each["result"] for each in kept()}


def simulated(job: SimulatedJob, cluster: str | None = None) -> dict:
    """Simulate it now, and return what `recorded` does."""
    result = simulate(job, "nccl") if cluster is None else simulate_time(job, find_cluster(cluster), "nccl")
    names = STATES if job.seq == TABLE_TOKENS else [name for name in result if name not in NOT_KEPT]
    return {name: result[name] for name in names}


def record(known: dict) -> None:
    """Simulate all that is not known, and write the file after each, so that one may stop and go on."""
    wanted = list(dict.fromkeys(jobs()))
    for at in tqdm([at for at in wanted if at not in known]):
        known[at] = simulated(*at)
        kept.keep([entry(*each, known[each]) for each in wanted if each in known])


def entry(job: SimulatedJob, cluster: str | None, result: dict) -> dict:
    """A row of the file, in which the job's defaults are left out."""
    given = {field.name: getattr(job, field.name) for field in fields(job) if getattr(job, field.name) != field.default}
    return {"job": given, "cluster": cluster, "result": result}


if __name__ == "__main__":
    old = _everything_recorded() if kept.file.exists() and "again" not in sys.argv else {}
    record({at: result for at, result in old.items() if at[1] is None or "clusters" not in sys.argv})
