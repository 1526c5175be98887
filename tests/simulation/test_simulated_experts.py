"""A simulated rank of a mixture of experts against real ones, against the formula, and in a cluster's time."""

import json
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from zerocourse.cli import main
from zerocourse.errors import BadInput
from zerocourse.formulas.models.mixture_shape import mixture_sent_bytes, mixture_states
from zerocourse.layout.mesh import Mesh
from zerocourse.parallel.experts import GatedExperts, Routing, expert_groups, layer, mixture_llama
from zerocourse.parallel.mesh_comms import MeshComms
from zerocourse.simulation import SimulatedJob, find_cluster, run_job, shapes, simulate, simulate_time
from zerocourse.simulation.clusters import Network
from zerocourse.simulation.one_mesh_rank import MeshJob

TINY = SimulatedJob("mixtral-tiny", ranks=4, micro_batch=2, seq=16)
COUNTED = ("params", "parameters_bytes", "gradients_bytes", "optimizer_bytes", "total_bytes", "peak_bytes", "peak_kinds", "sent_bytes",
           "sent", "padding_bytes")


def busy_alike(logits_NE: Tensor, k: int) -> Routing:
    """As `route`, but the experts take turns."""
    probabilities_NE = logits_NE.float().softmax(-1)
    experts_Nk = (torch.arange(len(logits_NE) * k) % logits_NE.shape[1]).view(-1, k)
    weights_Nk = probabilities_NE.gather(1, experts_Nk)
    return Routing(experts_Nk, weights_Nk / weights_Nk.sum(-1, keepdim=True), probabilities_NE)


def in_real_ranks(jobs: list[SimulatedJob]) -> list[dict]:
    results = []
    for job in jobs:
        comms = MeshComms(Mesh({"dp": job.ranks // job.experts_over, "ep": job.experts_over}))
        with patch.object(layer, "route", busy_alike):
            results.append(run_job(replace(job, rank=comms.rank), expert_groups(comms), exchange=comms.along("ep")))
    return results


@pytest.mark.parametrize("ranks, over, stages", [(2, 2, (0, 3)), (4, 2, (1, 3)), (4, 4, (2,))])
def test_a_simulated_rank_is_a_real_one(pool, ranks, over, stages):
    jobs = [replace(TINY, ranks=ranks, experts_over=over, stage=stage, half=stage > 1, recompute=stage == 3,
                    accumulation=1 + stage % 2) for stage in stages]
    by_rank = pool(ranks).run(in_real_ranks, jobs)
    for number, job in enumerate(jobs):
        for rank in (0, ranks - 1):
            with patch.object(layer, "route", busy_alike):
                ours = simulate(replace(job, rank=rank))
            real = by_rank[rank][number]
            assert {name: ours[name] for name in COUNTED} == {name: real[name] for name in COUNTED}, (job, rank)
    routed = simulate(replace(job, rank=ranks - 1))  # the router's own choice is taken for such a one
    assert {name: routed[name] for name in COUNTED} == {name: ours[name] for name in COUNTED}, job


@pytest.mark.parametrize("over", (1, 2, 8))
@pytest.mark.parametrize("stage", range(4))
def test_what_it_holds_and_sends_is_what_the_formula_says(stage, over):
    job = replace(TINY, ranks=16, stage=stage, experts_over=over, half=True)
    ours, shape = simulate(job), shapes.MIXTURES["mixtral-tiny"]
    states = mixture_states(shape, stage, 16, over)
    assert ours["total_bytes"] == pytest.approx(states.total_bytes, rel=0.01)
    counts = ours["sent"].get("all_to_all", 0)  # how many rows come, which no formula counts
    assert ours["sent_bytes"] - counts == pytest.approx(mixture_sent_bytes(shape, stage, 16, over, 32), rel=0.01)


@pytest.mark.parametrize("name, params", [("mixtral-8x7b", 46_702_792_704), ("qwen3-30b-a3b", 30_532_122_624)])
def test_a_mixture_of_that_name_has_the_published_parameters(name, params):
    assert shapes.MIXTURES[name].params == params
    with torch.device("meta"):
        assert sum(map(torch.numel, mixture_llama(shapes.MIXTURES[name]).parameters())) == params


def test_gated_experts_are_those_of_mixtral():
    config = MixtralConfig(hidden_size=16, intermediate_size=24, num_local_experts=4, num_experts_per_tok=2)
    config._experts_implementation = "eager"
    theirs, ours = MixtralExperts(config), GatedExperts(4, 16, 24)
    theirs.load_state_dict(ours.state_dict())
    x_NC, experts_Nk, weights_Nk = torch.randn(10, 16), torch.randint(4, (10, 2)), torch.rand(10, 2)
    assert torch.allclose(ours(x_NC, experts_Nk, weights_Nk), theirs(x_NC, experts_Nk, weights_Nk), atol=1e-6)


def test_a_mixture_by_its_config_is_simulated(tmp_path, capsys):
    file = tmp_path / "config.json"
    config = MixtralConfig(num_hidden_layers=2, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
                           vocab_size=256, max_position_embeddings=64)
    file.write_text(config.to_json_string())
    with torch.device("meta"):
        params = sum(map(torch.numel, AutoModelForCausalLM.from_config(config).parameters()))
    words = ["simulate", "--model", str(file), "--ranks", "8", "--seq", "32", "--experts-over", "4", "--cluster", "8xA100", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["params"] == params and found["sent"]["send"] and found["step_seconds"] > 0


def test_experts_over_more_ranks_send_fewer_gradients_and_more_tokens():
    cluster = find_cluster("2x8xA100")
    alone, shared = (simulate_time(replace(TINY, ranks=16, stage=2, experts_over=over), cluster) for over in (1, 8))
    assert shared["sent"]["reduce_scatter"] < alone["sent"]["reduce_scatter"] and "send" not in alone["sent"]
    assert shared["exposed_seconds"] > 0 and shared["wire_seconds"] > 0


def test_an_all_to_all_has_a_share_of_the_adapters():
    network = Network(per_node=8, inside=400e9, between=100e9, latency=0, latency_between=0)
    assert network.to_each_seconds(4e9, 8) == 4e9 / 400e9
    assert network.to_each_seconds(15e9, 16) == 8e9 * 8 / 100e9  # 8 of 15 parts leave the node, for each of its eight ranks
    assert network.every(8) == network.across()


@pytest.mark.parametrize("job, said", [
    ({"experts_over": 3}, "experts_over is 3: it must divide the 8 experts of a layer, and the 4 ranks"),
    ({"experts_over": 8}, "it must divide the 8 experts of a layer, and the 4 ranks"),
    ({"experts_over": 2, "model": "gpt2-tiny"}, "experts_over is 2: gpt2-tiny has no experts"),
    ({"experts_over": 2, "shard_ranks": 2}, "leave out one of them"),
])
def test_what_cannot_be_is_refused(job, said):
    with pytest.raises(BadInput, match=said):
        replace(TINY, **job)


def test_a_mesh_of_experts_is_refused():
    with pytest.raises(BadInput, match="mixtral-tiny has experts, for which tensor parallelism and pipelines have no plan"):
        MeshJob("mixtral-tiny", {"tp": 2, "dp": 2})
