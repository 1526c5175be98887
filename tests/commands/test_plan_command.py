"""What a plan says: the facts of its sentences, and `zerocourse plan`."""

import json
from dataclasses import replace

import pytest

from zerocourse.cli import main
from zerocourse.errors import BadInput
from zerocourse.formulas.units import gb
from zerocourse.planning import Candidate, ask, computed, plan
from zerocourse.planning.plan_files import config_of
from zerocourse.planning.reasons import choice, decides, fewest_ranks, host_needed, nothing_fits, reason, why
from zerocourse.planning.search import evaluate

WHOLE = 80 * 10**9  # of a card, without a reserve
LLAMA = ask("llama-7b", "8xA100", memory=WHOLE)


def saying(sentences: list[str], begins: str) -> str:
    return next(each for each in sentences if each.startswith(begins))


# Sentences ------------------------------------------------------------------------------------------------------------

def test_the_choice_and_its_neighbours():
    found = plan(LLAMA, simulate=0)
    way, sentences = found.chosen.candidate, why(found)
    assert way == Candidate(1, 8, 4), "stage 1 sends two passes, stage 3 three, and nothing has to wait"
    said = choice(found)
    assert f"micro-batch 4, in bf16, without recomputation: the peak is {gb(found.chosen.peak_bytes)} of the" in said
    assert said.startswith("Take ZeRO-1 on 8 ranks with ") and said.endswith(
        "(computed). The reason: no lower stage fits; ZeRO-1 sends 2 passes over all parameters where ZeRO-3 sends 3 "
        "passes and is 1.0% faster, which counts as equal; recomputation is not needed; micro-batch 4 is the largest "
        "power of two that fits.")
    for begins, other in (("data parallel", replace(way, stage=0)), ("micro-batch 8", replace(way, micro_batch=8)),
                          ("4 ranks", replace(way, ranks=4))):
        over = computed(LLAMA, other).peak_bytes - 80 * 10**9
        assert f"too large by {gb(over)}, because its peak is" in saying(sentences, begins), begins
    again = computed(LLAMA, replace(way, recompute=True))
    slower = 1 - again.tokens_per_card / found.chosen.tokens_per_card
    assert f"do {slower:.1%} less" in saying(sentences, "with recomputation") and 0.15 < slower < 0.25
    assert "µs for each of its tokens" in saying(sentences, "with recomputation")
    two = saying(sentences, "ZeRO-2 instead")
    assert "both send 23.6 GB per rank and step, and the lower stage is the simpler one" in two
    assert len(sentences) == 7
    three = saying(sentences, "ZeRO-3 instead")
    assert "be as fast" in three
    assert "it sends 35.4 GB (3 passes over all parameters) and the choice 23.6 GB (2 passes)" in three


def test_what_is_said_to_decide_is_so():
    """The choice may need more memory than what is nearly as fast: then that is no reason for it."""
    found = plan(ask("gpt2", "8xA100", batch=64, seq=512), simulate=0)
    best = found.chosen
    way = replace(best.candidate, recompute=False)
    for ours, theirs, sentence in (
            ({"held": {"device": 3 * 10**9}}, {"held": {"device": 4 * 10**9}}, "the choice needs less: its peak is 3.00 GB rather than 4.00"),
            ({}, {"compute_seconds": 1.01 * best.compute_seconds, "held": {"device": 10**9}}, "% faster, though its peak is"),
            ({}, {"candidate": replace(way, recompute=True)}, "the choice computes no forward a second time"),
            ({}, {"candidate": replace(way, stage=way.stage + 1)}, "the lower stage is the simpler one"),
            ({}, {"candidate": replace(way, stage=way.stage - 1), "held": {"device": 10**9}}, "a simulation put the choice first")):
        one, other = replace(best, candidate=way), replace(best, candidate=way)
        assert sentence in decides(found.question, replace(one, **ours), replace(other, **theirs)), sentence


def test_the_reason_names_what_decides():
    tight = choice(plan(ask("gpt2-xl", "2xT4"), simulate=0))
    assert "no lower stage fits" in tight and "micro-batch 4 does not fit without recomputation" in tight
    assert "no lower stage fits" not in choice(plan(ask("gpt2-xl", "8xA100", memory=WHOLE), simulate=0))
    assert "no lower stage fits" in choice(plan(ask("llama-13b", "8xA100", memory=WHOLE), simulate=0))
    away = choice(plan(ask("llama-7b", "2xT4", host=128 * 10**9), simulate=0))
    assert "no stage fits with all of it on the card" in away
    assert "micro-batch 8 is the largest power of two that fits" in away


def test_cards_without_bf16_train_in_fp16():
    tight, other = plan(ask("gpt2", "2xT4"), simulate=0), plan(ask("gpt2", "8xA100"), simulate=0)
    assert ", in fp16, " in choice(tight) and "fp16" in config_of(tight.chosen.candidate) and "bf16" not in config_of(tight.chosen.candidate)
    assert ", in bf16, " in choice(other) and config_of(other.chosen.candidate)["bf16"] == {"enabled": True}
    assert "bf16" not in config_of(plan(ask("gpt2", "2xT4", dtypes=("fp32",)), simulate=0).chosen.candidate)
    with pytest.raises(BadInput, match="the cards of 2xT4 have no bf16: plan for fp16 or fp32"):
        ask("gpt2", "2xT4", dtypes=("bf16",))


def test_without_a_batch_the_plan_says_what_does_most_in_all():
    found = plan(ask("gpt2", "2xT4"), simulate=3)
    assert found.chosen.candidate.ranks == 1 and "That is the best for each card, as no --batch is given. Most in all is done by" in choice(found)
    assert "Most in all" not in choice(plan(ask("gpt2", "2xT4", batch=16), simulate=0))


def test_a_computed_neighbour_is_compared_with_what_is_computed():
    """As if a simulation had found the choice to be ten times as slow as its formula says."""
    found = plan(LLAMA, simulate=0)
    late = replace(found.chosen, source="simulated", compute_seconds=10 * found.chosen.compute_seconds)
    as_run = replace(found, ranking=(late, *found.ranking[1:]))
    again = replace(late.candidate, recompute=True)
    assert reason(as_run, again) == reason(found, again) and " less, " in reason(as_run, again)


def test_a_batch_that_is_not_divided_is_said():
    found = plan(ask("llama-7b", "8xA100", batch=8 * 12, ranks=(4, 8), memory=WHOLE), simulate=0)
    assert found.chosen.candidate.ranks == 8 and found.chosen.candidate.samples == 96
    assert "of them accumulated" in choice(found)
    sixteen = replace(found.chosen.candidate, micro_batch=8, accumulation=0)
    assert reason(found, sixteen) == "8 × 8 samples do not divide the batch of 96, so it is not possible."
    assert "because it has fewer cards" in saying(why(found), "4 ranks")


def test_where_nothing_fits_it_is_said_what_would():
    question = ask("llama-70b", "8xA100", memory=WHOLE)
    lines = nothing_fits(question)
    ranks, host = fewest_ranks(question), host_needed(question)
    assert ranks == 16 and f"--ranks {ranks}" in lines[1]
    assert "Nearest is ZeRO-3, 8 ranks, micro-batch 1, bf16, recompute" in lines[0]
    for enough, with_ranks in ((True, 16), (False, 8)):
        assert bool(evaluate(replace(question, ranks=(with_ranks,)))[0]) is enough
    for enough, nbytes in ((True, host), (False, host - 1)):
        assert bool(evaluate(replace(question, budgets=question.budgets | {"host": nbytes}))[0]) is enough
    for memory in (40, 50, 60):
        small = ask("llama-70b", "8xA100", memory=memory * 10**9)
        enough = [2**power for power in range(10) if evaluate(replace(small, ranks=(2**power,)))[0]]
        assert fewest_ranks(small) == min(enough), memory
    hopeless = ask("llama3-405b", "2xT4", memory=10**9)
    assert "No number of ranks" in nothing_fits(hopeless)[1] and len(nothing_fits(hopeless)) == 2


def test_offload_is_refused_for_the_card_that_would_do():
    question = ask("llama-7b", "2xT4", host=128 * 10**9)
    found = plan(question, simulate=0)
    assert found.chosen.candidate.optimizer == "host"
    assert {line.split(":")[0] for line in why(found)} >= {f"{name} without offload" for name in
                                                           ("data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3")}
    slow = replace(question, rates=replace(question.rates, link=question.rates.link / 10))
    assert plan(slow, 0).chosen.tokens_per_card < found.chosen.tokens_per_card


# The command ----------------------------------------------------------------------------------------------------------

def test_the_command(capsys):
    assert main(["plan", "--model", "gpt2-tiny", "--cluster", "2xT4", "--ranks", "2", "--most-micro-batch", "2",
                 "--simulate", "1", "--price", "0.5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ranks"] == [2] and found["considered"] == 16 and len(found["best"]) == 5
    assert found["chosen"] == found["best"][0]
    chosen = found["chosen"]
    assert chosen["source"] == "simulated" and {each["source"] for each in found["best"][1:]} == {"computed"}
    for name in ("peak", "sent", "parameters", "gradients", "optimizer", "the_rest"):
        assert type(chosen[f"{name}_bytes"]) is int
    assert chosen["tokens_per_second_per_card"] == pytest.approx(chosen["tokens_per_second"] / 2)
    assert chosen["cost_per_billion_tokens"] == pytest.approx(0.5 * 2 / 3600 * 1e9 / chosen["tokens_per_second"])
    assert found["sentence"].startswith("Take ") and len(found["why"]) >= 4


def test_the_command_for_people(capsys):
    words = "plan --model llama-7b --cluster 8xA100 --simulate 0".split()
    assert main([*words, "--batch", "1048576 tokens"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if " computed " in line]
    assert len(rows) == 5 and rows[0].startswith("> ") and not any(row.startswith(">") for row in rows[1:])
    assert len({len(row) for row in rows}) == 1, "columns stand below each other"
    assert lines[2].startswith("Take ") and "Why not its neighbours?" in lines
    assert any("data sheet" in line for line in lines)


def test_a_plan_that_fails_has_status_1(capsys):
    assert main(["plan", "--model", "llama-70b", "--cluster", "8xA100", "--simulate", "0"]) == 1
    assert capsys.readouterr().out.startswith("Nothing fits. Nearest is ")
