"""torch's FSDP2 simulated: the same bytes as in real ranks, and beside our stage 3 in the command."""

import json
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode

from zerocourse.cli import main
from zerocourse.errors import BadInput
from zerocourse.measure.ledger import Ledger
from zerocourse.simulation import SimulatedJob, simulate
from zerocourse.simulation.fsdp2 import fake_world, gloo_unseen, run_fsdp2, simulate_fsdp2

TINY = SimulatedJob("gpt2-tiny", ranks=2, micro_batch=2, seq=16)
WAYS = ({}, {"half": True, "recompute": True, "accumulation": 2})


def in_real_ranks(jobs: list[SimulatedJob]) -> list[dict]:
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (dist.get_world_size(),))
    return [run_fsdp2(replace(job, rank=rank), mesh) for job in jobs]


@pytest.mark.parametrize("ranks", (2, 3))
def test_a_simulated_rank_is_a_real_one(pool, ranks):
    """Each of two ranks; of three the last, whose slices are shorter."""
    jobs = [replace(TINY, ranks=ranks, stage=stage, **way) for stage, way in ((3, WAYS[0]), (3, WAYS[1]), (2, WAYS[1]))]
    by_rank = pool(ranks).run(in_real_ranks, jobs)
    for rank in range(2) if ranks == 2 else [2]:
        for job, real in zip(jobs, by_rank[rank], strict=True):
            assert simulate_fsdp2(replace(job, rank=rank)) == real, job


def test_a_ledger_does_not_see_what_gloo_takes():
    """gloo's reduce-scatter works on a copy, which its thread frees a moment later, so it would be counted by luck."""
    whole = torch.zeros(100_000)
    with Ledger().track(whole) as ledger, gloo_unseen(whole):
        whole.copy_(whole.clone())
    assert ledger.peak == whole.nbytes


class OfTorch(TorchDispatchMode):
    """Bytes that go into torch's own operations of two ranks' collectives, of which half are sent."""

    def __init__(self):
        super().__init__()
        self.sent = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            whole = args[0] if "allgather" in func.__name__ else args[1]  # of what is gathered, or scattered
            self.sent[func.__name__] += whole.nbytes // 2
        return func(*args, **(kwargs or {}))


def counted_by_torch(job: SimulatedJob) -> tuple[dict, Counter]:
    """Of the whole run, which is two steps, and both are alike."""
    from zerocourse.simulation import fsdp2

    mesh = init_device_mesh("cpu", (2,))
    with pytest.MonkeyPatch.context() as patch, OfTorch() as mode:
        patch.setattr(fsdp2, "disable_current_modes", nullcontext)  # which would hide them from our count too
        return run_fsdp2(replace(job, rank=dist.get_rank()), mesh), mode.sent


def test_what_is_counted_as_sent_goes_into_torchs_collectives(pool):
    """An own count of torch's operations. Where everything divides, nothing is padded, and it is 3Ψ / 2."""
    for result, sent in pool(2).run(counted_by_torch, TINY):
        assert sum(sent.values()) == 2 * (result["sent_bytes"] + result["padding_bytes"]), sent
        assert result["sent_bytes"] == 3 * 4 * result["params"] // 2 and not result["padding_bytes"]


def test_fsdp2_pads_each_parameter_where_we_pad_a_buffer():
    """Of 64 rows the first of 100 ranks has a whole one. Slices of a flat buffer differ by one element."""
    job = replace(TINY, ranks=100)
    ours, theirs = simulate(job), simulate_fsdp2(job)
    assert theirs["parameters_bytes"] > 1.2 * ours["parameters_bytes"]
    assert theirs["padding_bytes"] > 10 * ours["padding_bytes"]
    assert theirs["sent"]["reduce_scatter"] == 4 * theirs["params"] - theirs["parameters_bytes"]  # no padding in it


def test_the_command_has_both_columns(capsys):
    asked = ["simulate", "--model", "gpt2-tiny", "--ranks", "4", "--seq", "16", "--peer", "fsdp2"]
    assert main([*asked, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    job = replace(TINY, ranks=4, micro_batch=1)
    theirs = result.pop("peers")["fsdp2"]
    assert theirs == simulate_fsdp2(job)
    assert result["peak_bytes"] == simulate(job, "nccl")["peak_bytes"]
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert "FSDP2" in said and "sent in a step" in said


def test_what_cannot_be_simulated(capsys):
    with pytest.raises(BadInput, match="stage is 1: FSDP2 shards parameters, so it must be 3, or 2"):
        simulate_fsdp2(replace(TINY, stage=1))
    with fake_world(0, 2), pytest.raises(BadInput, match="this process is in a process group"):
        simulate_fsdp2(TINY)
    assert not dist.is_initialized()
    assert main(["simulate", "--model", "gpt2-tiny", "--stage", "0", "--peer", "fsdp2"]) == 2
    assert "stage is 0" in capsys.readouterr().err
