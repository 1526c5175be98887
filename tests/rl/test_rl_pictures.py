"""Chapter 24's film is of a step that was made, and its runs are what the chapter says of them."""

import pytest
import torch

from zerocourse.course.chapters.rlhf.bracket_runs import after_vowels, new_model, one_group, rewarded, right_answers, sent_for, taught_model
from zerocourse.course.chapters.rlhf.four_models import ASKED, OF_WAY, HeldModel, counted, formula, held
from zerocourse.course.chapters.rlhf.group_film import MOMENTS, group_film
from zerocourse.course.chapters.rlhf.hybrid_engine import AT_ONCE, CUT, EACH, ONCE, WAYS, seconds_of_steps, written
from zerocourse.course.chapters.rlhf.hybrid_picture import lanes_of, whole_units
from zerocourse.course.show.cells.sentences import UntrueSentence
from zerocourse.formulas.models.rl_states import MODELS, rl_state_bytes


@pytest.fixture(scope="module")
def taught():
    return taught_model()


def test_the_film_is_of_a_step(taught):
    before = right_answers(taught)
    film = group_film(taught)
    prompt, answers, rollout = one_group(taught)
    right = sum(reward for _, reward in answers)
    assert [frame.name for frame in film.frames] == list(MOMENTS)
    assert f"answers to {prompt}" in film.text and f"Of 8, {right:.0f} are right" in film.text
    assert right_answers(taught) == before, "the model itself has not learned"
    assert rollout.answer(0) == list(answers[0][0].encode())


def test_a_film_whose_words_are_not_so_is_none(taught):
    with pytest.raises(UntrueSentence, match="not all right answers have become likelier"):
        group_film(taught, rate=0.5)


def test_a_strong_pull_keeps_it_near_the_teacher(taught):
    shares = [right_answers(rewarded(taught, 30, pull)[0]) for pull in (0.0, 0.5)]
    assert right_answers(taught) < 0.3 and shares[0] > 0.9 > 0.8 > shares[1] > 0.4
    assert sum(rewarded(new_model(), 3)[1]) == 0


def test_vowels_are_learned():
    rewards, texts = after_vowels(steps=40)
    assert rewards[0] < 0.1 and rewards[-1] > 0.95 and all(len(text) == 12 for text in texts)


def test_what_is_gathered(pool):
    for once, times in ((False, 4), (True, 1)):
        for sent, params in pool(2).run(sent_for, 4, once):
            assert sent == pytest.approx(times * params / 2, rel=1e-3) and torch.is_grad_enabled()


# -- the four models --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("ranks", (2, 3, 4))
def test_the_ledger_counts_what_the_formula_says_of_four_models(pool, ranks):
    """To the byte where buffers need no padding; on 3 ranks they do, and at most 16 bytes an element of it are more."""
    for stage in range(4):
        found = pool(ranks).run(held, stage)
        assert (found[0]["actor"].padding == 0) == (ranks != 3)
        for way, names in OF_WAY.items():
            most, said = max(counted(way, each) for each in found), formula(way, found[0], stage, ranks)
            padding = sum(found[0][name].padding for name in names)
            assert 0 <= most - said <= 16 * padding and (most > said) == (padding > 0), (stage, way)
            trained, asked = MODELS[way]
            same = [HeldModel(10**6, 0, each.counted) for each in found[0].values()]
            assert formula(way, dict(zip(found[0], same, strict=True)), stage, ranks) == rl_state_bytes(10**6, trained, asked, stage, ranks)
        for each in found:
            assert all(not each[name].counted.gradients_bytes and not each[name].counted.optimizer_bytes for name in ASKED)


# -- the hybrid engine ------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def ways(pool):
    return {way: pool(4).run(written, way, 5) for way in WAYS}


def test_three_ways_write_the_same(ways):
    texts = [[seen.texts for seen in ranks] for ranks in ways.values()]
    assert texts[0] == texts[1] == texts[2] and len({*map(str, texts[0])}) == 4 and all(len({*text[-5:]}) > 1 for (text,) in texts[0])


def test_weights_travel_for_each_token_or_once(ways):
    params = ways[ONCE][0].params
    assert [{seen.weights for seen in ways[way]} for way in WAYS] == [{5 * params * 3 // 4}, {params * 3 // 4}, {params * 3 // 4}]
    largest = max(event["bytes"] for event in ways[ONCE][0].writing if event["verb"] == "reshard") // 4
    for seen in ways[CUT]:
        assert seen.whole == AT_ONCE * largest and params / 2 < seen.kept < 0.52 * params and seen.activations > 0
    assert all(seen.whole == seen.kept == params for seen in ways[ONCE])
    assert all(2 * largest < seen.whole < params and not seen.kept for seen in ways[EACH])


def test_the_picture_has_each_unit_while_it_is_whole(ways):
    whole = {way: {lane.name: lane.blocks for lane in lanes_of(ranks[0])} for way, ranks in ways.items()}
    assert [len(whole[way]["h.0"]) for way in WAYS] == [2 + 5, 2 + 1, 2 + 1]
    assert all([block.label for block in lanes["passes"]] == ["", "", "", *"12345"] for lanes in whole.values())
    first, last = (whole[ONCE]["passes"][at] for at in (3, -1))
    assert all(blocks[-1].end > last.end > first.end > blocks[-1].start for name, blocks in whole[ONCE].items() if name != "passes")
    assert whole[CUT]["h.3"][-1].end <= whole[CUT]["parts"][0].start == whole[CUT]["passes"][3].start
    shown = whole_units({way: ranks[0] for way, ranks in ways.items()})
    assert "tensor parallel: 6 gathers while it writes, at most 46% of the parameters gathered, 51% kept" in shown.text


def test_most_of_a_step_is_writing(taught):
    writes, learns = seconds_of_steps(taught, 3)
    assert writes > learns > 0
