"""Simulated ranks against real ones: the same bytes, to the byte, in the same order of events."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from zerocourse.cli import main
from zerocourse.comm import Comm
from zerocourse.comm.simulated import SimulatedComm
from zerocourse.errors import BadInput
from zerocourse.formulas.volumes import passes
from zerocourse.models.llama import Llama
from zerocourse.models.model_layers import model_layers
from zerocourse.simulation import SimulatedJob, one_rank, run_job, shapes, simulate, simulate_time
from zerocourse.simulation.clusters import Cluster, Machine, Network
from zerocourse.zero.buffers.groups import Groups

COUNTED = ("params", "parameters_bytes", "gradients_bytes", "optimizer_bytes", "total_bytes", "peak_bytes", "peak_kinds",
           "sent_bytes", "sent", "replicas_bytes", "padding_bytes")
TINY = SimulatedJob("gpt2-tiny", ranks=2, micro_batch=2, seq=16)
WAYS = ({}, {"half": True, "recompute": True, "accumulation": 2})


def in_real_ranks(jobs: list[SimulatedJob]) -> list[dict]:
    results = []
    for job in jobs:
        comm = Comm()
        results.append(run_job(replace(job, rank=comm.rank), comm))
    return results


def what_happened(result: dict) -> list[tuple]:
    """The events, without the waits: a simulated collective is complete when it begins."""
    return [(event["verb"], event["unit"], event["bytes"], event["alive"]) for event in result["events"] if event["verb"] != "wait"]


@pytest.mark.parametrize("ranks", (2, 3))
def test_a_simulated_rank_is_a_real_one(pool, ranks):
    """With two ranks each of them, plainly; with three the last, whose slices are shorter, with everything. Four are below."""
    jobs = [replace(TINY, ranks=ranks, stage=stage, **WAYS[ranks - 2]) for stage in range(4)]
    by_rank = pool(ranks).run(in_real_ranks, jobs)
    for number, job in enumerate(jobs):
        simulated = [simulate(replace(job, rank=rank)) for rank in (range(2) if ranks == 2 else [ranks - 1])]
        for ours, measured in zip(simulated, by_rank[-len(simulated):], strict=True):
            real = measured[number]
            assert {name: ours[name] for name in COUNTED} == {name: real[name] for name in COUNTED}, job
            assert what_happened(ours) == what_happened(real), job
        if ranks == 2:  # each of the ranks sends a slice of its own length, and together they send what the formula says
            times = passes(job.stage, job.accumulation).total * (2 if job.half else 4)
            assert sum(ours["sent_bytes"] for ours in simulated) == times * ours["params"], job


def with_one_comm(jobs: list[SimulatedJob]) -> list[dict]:
    comm = Comm()
    return [run_job(replace(job, rank=comm.rank), comm) for job in jobs]


def test_one_comm_runs_jobs_one_after_the_other(pool):
    """Its recorder counts on: of each job the second step's events come back, and not those of the second step ever."""
    jobs = [replace(TINY, stage=stage) for stage in (1, 3)]
    for job, real in zip(jobs, pool(2).run(with_one_comm, jobs)[0], strict=True):
        ours = simulate(job)
        assert {name: ours[name] for name in COUNTED} == {name: real[name] for name in COUNTED}, job
        assert what_happened(real) and what_happened(ours) == what_happened(real), job


def in_hybrid_ranks(jobs: list[SimulatedJob]) -> list[dict]:
    """Ranks 0 and 1 divide a buffer, and so do 2 and 3, which hold the same."""
    rank, pairs, results = dist.get_rank(), [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])], []
    for job in jobs:
        comm = Comm(pairs[rank // 2])
        groups = Groups(comm, Comm(pairs[2 + rank % 2], recorder=comm.recorder))
        results.append(run_job(replace(job, rank=rank), groups))
    return results


def test_a_simulated_rank_of_a_hybrid_is_a_real_one(pool):
    """With two nodes of two ranks. What goes to the other node is 2Ψ/S (R - 1)/R elements, of gradients alone, and once per
    step, however many micro-batches it has."""
    jobs = [replace(TINY, ranks=4, stage=stage, shard_ranks=2, half=stage == 2, accumulation=1 + stage % 2)
            for stage in range(4)]
    by_rank = pool(4).run(in_hybrid_ranks, jobs)
    for number, job in enumerate(jobs):
        for rank in (0, 3):
            ours, real = simulate(replace(job, rank=rank)), by_rank[rank][number]
            assert {name: ours[name] for name in COUNTED} == {name: real[name] for name in COUNTED}, job
            assert what_happened(ours) == what_happened(real), job
        assert ours["replicas_bytes"] == ours["params"] // 2 * (2 if job.half else 4), job


def test_ranks_in_nodes_gather_over_the_fast_link():
    """Each of two nodes gathers by itself, so that only its share of the gradients waits for the slow link between them,
    which the two ranks of a node use at once."""
    job, network = replace(TINY, ranks=4), Network(2, 1e9, 1e6, latency=0.0)
    plain, hybrid = (simulate_time(each, Cluster(Machine(1e12, 1e12, 2**30), network, 10**6))
                     for each in (job, replace(job, shard_ranks=2)))
    assert plain["wire_seconds"] == pytest.approx(plain["sent_bytes"] / 1e6, rel=1e-3)  # and a small message
    inside = hybrid["sent_bytes"] - hybrid["replicas_bytes"]
    assert hybrid["wire_seconds"] == pytest.approx(hybrid["replicas_bytes"] / (1e6 / 2) + inside / 1e9, rel=1e-3)
    assert hybrid["step_seconds"] < plain["step_seconds"]


@pytest.mark.parametrize("stage, shard_ranks", ((0, None), *((stage, 2) for stage in range(4))))
def test_every_part_of_a_reduction_travels_while_the_backward_goes_on(stage, shard_ranks):
    """Stage 0's second half, and the sums over replicas: where a rank computes long enough, only the last units' are waited for."""
    job = replace(TINY, ranks=4, stage=stage, shard_ranks=shard_ranks)
    network = Network(2, 1e9, 2e8, latency=0.0, latency_between=0.0)
    result = simulate_time(job, Cluster(Machine(1e10, 1e9, 2**30), network, 10**6))
    assert result["wire_seconds"] < 0.4 * result["compute_seconds"]
    assert result["exposed_seconds"] < (0.4 if shard_ranks is None else 0.25) * result["wire_seconds"]


def test_a_llama_holds_and_sends_what_real_ranks_do(pool):
    jobs = [replace(TINY, model="llama-tiny", stage=stage, **way)
            for stage, way in ((0, WAYS[0]), (3, WAYS[0]), (3, WAYS[1]))]
    for rank, measured in enumerate(pool(2).run(in_real_ranks, jobs)):
        for job, real in zip(jobs, measured, strict=True):
            ours = simulate(replace(job, rank=rank))
            assert {name: ours[name] for name in COUNTED} == {name: real[name] for name in COUNTED}, job


def hugging_face(shape):
    """The same as a `LlamaForCausalLM`.

    Its attention is transformers' own "sdpa" under another name, for which transformers makes no mask. For "sdpa" itself it
    reads the positions to see that none is needed, and fake tensors cannot be read.
    """
    from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("causal_sdpa", sdpa_attention_forward)
    with torch.random.fork_rng():
        return LlamaForCausalLM(LlamaConfig(
            attn_implementation="causal_sdpa", num_hidden_layers=shape.layers, hidden_size=shape.width,
            intermediate_size=shape.inner, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
            vocab_size=shape.vocabulary, max_position_embeddings=shape.tokens, use_cache=False))


def test_a_llama_is_hugging_faces(monkeypatch):
    """Names and shapes of its parameters in their order, its loss and gradients, and the bytes that a rank holds and sends."""
    pytest.importorskip("transformers")
    shape = shapes.LLAMAS["llama-tiny"]
    torch.manual_seed(0)
    ours, theirs = Llama(shape), hugging_face(shape)
    assert ([(name, param.shape) for name, param in ours.named_parameters()]
            == [(name, param.shape) for name, param in theirs.named_parameters()])
    theirs.load_state_dict(ours.state_dict())
    tokens = torch.randint(shape.vocabulary, (2, shape.tokens))
    losses = ours(tokens), theirs(input_ids=tokens, labels=tokens).loss
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)

    cut = nn.Sequential(*model_layers(ours))  # as a pipeline takes it
    torch.testing.assert_close(cut(tokens), theirs(input_ids=tokens).logits)

    jobs = [SimulatedJob("llama-tiny", 2, 4, half=True, accumulation=2),
            SimulatedJob("llama-tiny", 3, 4, half=True, recompute=True, micro_batch=3)]
    mine = [simulate(job) for job in jobs]
    known = shapes.find_model("llama-tiny")._replace(
        make=lambda: hugging_face(shape), loss=lambda model, tokens: model(input_ids=tokens, labels=tokens).loss)
    monkeypatch.setattr(one_rank, "find_model", lambda name: known)
    for job, result in zip(jobs, mine, strict=True):
        assert {name: result[name] for name in COUNTED} == {name: simulate(job)[name] for name in COUNTED}


def test_the_memory_of_a_reduction_is_the_backends():
    as_gloo, as_nccl = (simulate(replace(TINY, ranks=64), like)["peak_bytes"] for like in ("gloo", "nccl"))
    assert as_nccl < as_gloo


def test_real_tensors_keep_their_values():
    """As if every rank had what this one has: the mean of equal gradients is the gradient."""
    comm = SimulatedComm(0, 2)
    values = torch.arange(4.0)
    assert comm.all_gather_object("x") == ["x", "x"] and torch.equal(comm.all_reduce(values.clone()), values)
    with FakeTensorMode():
        assert comm.on_any_rank([True, False], torch.device("cpu")) == [True, False]
    assert comm.metadata == 16 + 2


@pytest.mark.parametrize("settings, sentence", (
    ({"rank": 2}, "rank is 2: with 2 ranks it can be at most 1"),
    ({"ranks": 8, "shard_ranks": 3}, "shard_ranks is 3: 8 ranks do not make whole groups of so many"),
    ({"ranks": 8, "shard_ranks": 16}, "shard_ranks is 16: it must be an integer from 1 to 8"),
    ({"seq": 129}, "seq is 129: gpt2-tiny takes 1 to 128 tokens"),
    ({"model": "gpt2-xll"}, "there is no model 'gpt2-xll': did you mean gpt2-xl?"),
))
def test_what_cannot_be_simulated(settings, sentence):
    with pytest.raises(BadInput, match=sentence.replace("?", r"\?")):
        replace(TINY, **settings)


def test_a_cluster_that_is_not_there(capsys):
    assert main(["simulate", "--model", "gpt2-tiny", "--cluster", "8xA10"]) == 2
    assert "there is no cluster '8xA10': did you mean 8xA100?" in capsys.readouterr().err


def test_a_step_takes_the_time_of_what_it_computes_and_of_what_it_waits_for():
    """With as much computed, a link of a tenth of the rate is busy ten times as long, and the step takes what is not hidden."""
    fast, slow = (Cluster(Machine(1e9, 1e9, 2**30), Network(2, rate, rate, latency=0.0), 10**6) for rate in (1e8, 1e7))
    quick, late = (simulate_time(TINY, cluster, "gloo") for cluster in (fast, slow))
    assert quick["compute_seconds"] == pytest.approx(late["compute_seconds"])
    assert late["wire_seconds"] == pytest.approx(10 * quick["wire_seconds"])
    for result in (quick, late):
        assert result["step_seconds"] == pytest.approx(result["compute_seconds"] + result["exposed_seconds"])
        assert max(result["compute_seconds"], result["wire_seconds"]) <= result["step_seconds"] * (1 + 1e-9)
    assert quick["exposed_seconds"] < quick["wire_seconds"], "something must have been hidden"
