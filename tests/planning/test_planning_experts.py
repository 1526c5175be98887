"""Plans for mixtures of experts: by formula near their simulation, with ranks that have different experts among the candidates."""

import json

import pytest

from zerocourse.cli import main
from zerocourse.errors import BadInput
from zerocourse.formulas.what_fits import HOST
from zerocourse.layout.mesh import BOTH, INSIDE
from zerocourse.planning import Candidate, ask
from zerocourse.planning.by_formula import computed
from zerocourse.planning.by_simulation import simulated
from zerocourse.planning.model_sizes import find_sizes
from zerocourse.planning.search import candidates
from zerocourse.simulation.shapes import MIXTURES

QUESTION = ask("mixtral-tiny", "2x8xA100", seq=64, ranks=(16,), batch=64)


@pytest.mark.parametrize("name", MIXTURES)
def test_sizes_are_those_of_the_shape(name):
    sizes, shape = find_sizes(name), MIXTURES[name]
    assert sizes.params == shape.params
    assert sizes.before + sizes.after + sizes.layers * sizes.used == shape.used


@pytest.mark.parametrize("way", [
    Candidate(1, 16, 2, 2), Candidate(1, 16, 2, 2, experts_over=4), Candidate(2, 16, 2, 2, recompute=True, experts_over=8),
    Candidate(3, 16, 4, 1, experts_over=8), Candidate(3, 16, 2, 2, dtype="fp32", recompute=True, experts_over=2)], ids=str)
def test_a_formula_is_near_its_simulation(way):
    formula, simulation = computed(QUESTION, way), simulated(QUESTION, way)
    assert sum(formula.sent.values()) == pytest.approx(sum(simulation.sent.values()), rel=0.01)
    assert formula.peak_bytes == pytest.approx(simulation.peak_bytes, rel=0.12)
    assert formula.step_seconds == pytest.approx(simulation.step_seconds, rel=0.3)
    for ours, theirs in zip(formula.traffic[-2:], simulation.traffic, strict=way.experts_over > 1):
        assert (ours.axis, ours.link) == (theirs.axis, theirs.link) and ours.nbytes == pytest.approx(theirs.nbytes, rel=0.02)


def test_ranks_with_different_experts_are_tried_as_far_as_their_number_divides():
    tried = {each.experts_over for each in candidates(QUESTION)}
    assert tried == {1, 2, 4, 8}
    assert {each.experts_over for each in candidates(ask("mixtral-tiny", "8xA100", ranks=(6,)))} == {1, 2}
    assert {each.experts_over for each in candidates(ask("llama-tiny", "8xA100", ranks=(8,)))} == {1}
    offloaded = [each for each in candidates(ask("mixtral-tiny", "8xA100", ranks=(8,), host=10**9)) if each.optimizer == HOST]
    assert {each.experts_over for each in offloaded} == {1}


def test_where_tokens_leave_a_node_they_wait_for_its_adapters():
    question = ask("qwen3-30b-a3b", "8x8xH100", ranks=(64,))
    inside, outside = (computed(question, Candidate(1, 64, experts_over=over)).traffic[0] for over in (8, 64))
    assert (inside.link, outside.link) == (INSIDE, BOTH) and outside.exposed > 5 * inside.exposed


def test_a_plan_names_the_experts_and_writes_what_it_predicts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["plan", "--model", "mixtral-tiny", "--cluster", "8xA100", "--ranks", "8", "--batch", "16", "--card", "3MB", "--simulate", "1",
             "--write", "plan", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chosen"]["experts_over"] > 1 and "experts over" in found["sentence"] and "expert axis sends" in found["sentence"]
    assert any(line.startswith("experts over") for line in found["why"])
    config = json.loads((tmp_path / "plan" / "ds_config.json").read_text())
    assert config["expert_parallel"] == {"enabled": True, "autoep_size": found["chosen"]["experts_over"]}
    predicted = json.loads((tmp_path / "plan" / "prediction.json").read_text())["predicted"]
    assert predicted["total_bytes"] < predicted["peak_bytes"] == found["chosen"]["peak_bytes"]


@pytest.mark.parametrize("how", [{"mesh": True, "batch": 64}, {"tensor": 2}])
def test_a_mesh_of_experts_is_refused(how):
    with pytest.raises(BadInput, match="mixtral-tiny"):
        ask("mixtral-tiny", "8xA100", **how)
