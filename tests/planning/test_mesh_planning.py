"""Plans over meshes: a pipeline's bubble and what is in flight, the links of each axis, and the pruned search."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from zerocourse.cli import main
from zerocourse.errors import BadInput
from zerocourse.parallel.pipeline.schedules.actions import plan as schedule_plan
from zerocourse.parallel.pipeline.schedules.makespan import Costs, simulate
from zerocourse.parallel.pipeline.schedules.synchronous import interleaved, one_f_one_b
from zerocourse.parallel.pipeline.schedules.zero_bubble import zb_h1
from zerocourse.planning import Candidate, ask, candidates, computed
from zerocourse.planning.by_simulation import simulated
from zerocourse.planning.mesh_parts import bubble_seconds, end_parts, heads_refused, in_flight, links
from zerocourse.planning.published_meshes import RUNS, beside_published, table
from zerocourse.planning.search import AS_FAST, evaluate
from zerocourse.simulation.clusters import Network

SMALL = ask("gpt2", "16x8xA100", batch=64, ranks=(16,), most_micro_batch=4, mesh=True)


@pytest.mark.parametrize("schedule, compute, chunks",
                         [("1f1b", one_f_one_b, 1), ("interleaved", interleaved, 2), ("zb-h1", zb_h1, 1)])
@pytest.mark.parametrize("p, m", [(2, 4), (4, 8), (4, 16)])
def test_bubble_and_in_flight_are_those_of_the_schedules_own_lists(schedule, compute, chunks, p, m):
    way = Candidate(1, p, 1, m, pipeline=p, schedule=schedule, chunks=chunks)
    lists = schedule_plan(schedule, compute, p, m, chunks)
    timing = simulate(lists, Costs(1, 2, 1, 1))
    slot = 3 * chunks
    assert bubble_seconds(way, [slot] * p) == pytest.approx(float(timing.makespan - m * slot))
    for rank in (0, p - 1):
        assert in_flight(way, rank) == Fraction(timing.in_flight(rank), chunks)


def test_an_uneven_pipeline_waits_for_its_slowest_rank():
    """Exactly where the last rank is slowest, as with a head; where the first is, it waits no longer than that."""
    def both(slots):
        costs = Costs([n // 3 for n in slots], [n * 2 // 3 for n in slots])
        timing = simulate(schedule_plan("1f1b", one_f_one_b, 3, 6), costs)
        return 6 * max(slots) + bubble_seconds(Candidate(1, 3, 1, 6, pipeline=3), slots), timing.makespan

    assert len(set(both([3, 3, 6]))) == 1
    formula, exact = both([6, 3, 3])
    assert 6 * 6 <= exact <= formula


def test_groups_that_talk_at_once_share_a_nodes_adapters():
    network = Network(8, 300e9, 200e9)
    assert links(Candidate(1, 64, tensor=8, pipeline=4), 8) == {
        "tensor": "inside a node", "data": "between nodes", "pipeline": "between nodes", "expert": "inside a node"}
    assert network.every(1).rate(16) == 200e9 and network.every(8).rate(4) == 25e9
    assert network.every(4).rate(2) == 300e9 and network.every(4).rate(4) == 50e9


def test_what_each_axis_sends():
    way = Candidate(1, 16, 1, 16, tensor=2, pipeline=2)  # data 4
    sent = {each.axis: each.nbytes for each in computed(SMALL, way).traffic}
    passed = 1024 * 768 * 2  # bytes of one micro-batch between layers: s b h in bf16
    assert sent["tensor"] == 16 * (6 * 8 + 3) * passed // 2, "8 s b h (t - 1)/t for each of 6 layers, and the embedding"
    tied = 2 * 50257 * 768 // 2 // 4  # its gradient, of which this rank has a slice
    assert sent["pipeline"] == pytest.approx(16 * passed // 2 + tied, rel=1e-3), "one way, divided by the tensor axis"
    again = {each.axis: each.nbytes for each in computed(SMALL, replace(way, stage=3)).traffic}
    twice = {each.axis: each.nbytes for each in computed(SMALL, replace(way, stage=2)).traffic}
    assert again["data"] * 2 == sent["data"] * 3 * 16 and twice["data"] * 2 == sent["data"] * (16 + 1)


def test_a_mesh_divides_states_and_activations():
    alone = Candidate(1, 16, 4, 1)
    halved = Candidate(1, 16, 4, 2, tensor=2)
    one, two = (computed(replace(SMALL, pipelines=(1,)), way) for way in (alone, halved))
    assert 0.45 < two.kinds["parameters"] / one.kinds["parameters"] < 0.55
    assert 0.4 < two.peak_bytes / one.peak_bytes < 0.6


@pytest.mark.parametrize("memory", (2 * 10**9, 4 * 10**9, 80 * 10**9))
def test_what_is_pruned_is_not_the_best(memory):
    question = replace(SMALL, budgets=SMALL.budgets | {"device": memory})
    fitting, _, _ = evaluate(question)
    everything = [each for each in (computed(question, way) for way in candidates(question)) if each.fits]
    assert len({each.candidate.kind for each in everything}) == 4
    for kind in {each.candidate.kind for each in everything}:
        ours, fastest = (max(map(question.rate, (each for each in some if each.candidate.kind == kind))) for some in (fitting, everything))
        assert ours >= (1 - AS_FAST) * fastest, kind


def test_key_value_heads_are_copied_where_ranks_outnumber_them():
    """As `parallel.tensor` does: 2 of them on 4 ranks are two copies of both matrices."""
    question = ask("llama-tiny", "8xA100", batch=64, tensor=4)
    (part,) = end_parts(question.model, Candidate(0, 4, tensor=4))
    (whole,) = end_parts(question.model, Candidate(0, 1))
    assert 4 * part.block - whole.block == 2 * 64 * 32
    assert heads_refused(replace(question.model, heads=6, kv_width=4 * question.model.width // 6), 3) is not None


def test_the_best_of_each_kind(capsys):
    words = "plan --model llama-7b --cluster 16x8xA100 --batch 64 --ranks 16 --mesh --simulate 0 --most-micro-batch 4".split()
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kinds = found["best_by_kind"]
    assert list(kinds) == ["ZeRO alone", "tensor parallelism", "a pipeline", "tensor parallelism and a pipeline"]
    assert found["chosen"] in kinds.values()
    assert all((each["tensor"] > 1, each["pipeline"] > 1) == ("tensor" in kind, "pipeline" in kind) for kind, each in kinds.items())
    fastest = max(each["tokens_per_second"] for each in kinds.values())
    assert found["chosen"]["tokens_per_second"] >= (1 - AS_FAST) * fastest
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "The best of each kind:\n- ZeRO alone: " in said
    assert main("plan --model gpt2 --cluster 8xA100 --batch 64 --simulate 0".split()) == 0
    assert "The best of each kind" not in capsys.readouterr().out


@pytest.mark.parametrize("name", RUNS)
def test_published_meshes_fit_and_come_near(name):
    found = beside_published(name)
    assert found["fits"] and 1.05 < found["ratio"] < 1.3, "too fast, because nothing but products and their traffic takes time"
    run = RUNS[name]
    model = ask(name, "8xA100").model
    assert model.params == pytest.approx(float(name[9:-1]) * {"b": 1e9, "t": 1e12}[name[-1]], rel=0.02)
    micro_batches = run.batch * run.tensor * run.pipeline // run.ranks
    assert 0.9 < found["bubble"] * (micro_batches + run.pipeline - 1) / (run.pipeline - 1) < 2, "with the wait for the head"
    assert 1 <= found["faster"] < 2 and f"{found['ratio']:.2f}" in table()


def test_pinned_axes_and_what_would_help_where_nothing_fits(capsys):
    assert main("plan --model llama-7b --cluster 8xA100 --batch 64 --tensor 2 --pipeline 2 --simulate 0 --json".split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert {(each["tensor"], each["pipeline"]) for each in found["best"]} == {(2, 2)}
    big = "plan --model llama-1t --cluster 8xA100 --batch 64 --card 1GB --simulate 0".split()
    assert main(big) == 1 and "activations are not divided: --mesh divides both" in capsys.readouterr().out
    assert main([*big, "--mesh"]) == 1
    said = capsys.readouterr().out
    assert "not divided" not in said and "the ranks of a node limit how far a model is divided" in said


def test_without_a_mesh_all_ranks_are_the_data_axis():
    alone = ask("gpt2", "8xA100", batch=64)
    assert {way.replica for way in candidates(alone)} == {1}
    assert all(not each.traffic and not each.bubble for each in evaluate(alone)[0])


@pytest.mark.parametrize("values, says", [
    ({"tensor": 5}, "12 heads cannot be divided among 5 ranks"), ({"pipeline": 13}, "12 layers are too few for 13"),
    ({"mesh": True, "batch": None}, "say with --batch"), ({"tensor": 4, "ranks": (6,)}, "cannot hold replicas of 4")])
def test_what_cannot_be_is_refused(values, says):
    with pytest.raises(BadInput, match=says):
        ask("gpt2", "8xA100", **{"batch": 64, **values})


@pytest.mark.parametrize("way", (Candidate(1, 8, 1, 4, tensor=2, pipeline=2), Candidate(3, 8, 2, 2, tensor=4, recompute=True),
                                 Candidate(2, 8, 1, 8, pipeline=2, schedule="interleaved", chunks=2)), ids=str)
def test_a_mesh_by_formula_and_by_simulation(way):
    question = ask("llama-tiny", "8xA100", batch=way.samples, ranks=(8,), mesh=True)
    formula, counted = computed(question, way), simulated(question, way)
    assert counted.source == "simulated" and counted.step_seconds == formula.step_seconds
    for ours, theirs in zip(counted.traffic, formula.traffic, strict=True):
        assert ours.nbytes == pytest.approx(theirs.nbytes, rel=0.08), ours.axis  # norms send, too
    assert formula.peak_bytes == pytest.approx(counted.peak_bytes, rel=0.12)


def test_the_best_mesh_is_confirmed(capsys):
    words = "plan --model gpt2 --cluster 16x8xA100 --batch 64 --ranks 16 --tensor 2 --pipeline 2 --most-micro-batch 2 --seq 64".split()
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chosen"]["source"] == "simulated" and found["chosen"]["tensor"] == found["chosen"]["pipeline"] == 2
    assert [each["source"] for each in found["best"][1:]] == ["computed"] * (len(found["best"]) - 1)
