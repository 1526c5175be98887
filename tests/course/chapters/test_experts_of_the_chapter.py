"""Chapter 21's film is of what happened, its figures say what they show, of its five trainings one equals one process, and so does what
transformers computes beside ours."""

from collections import Counter

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from zerocourse.course.chapters.experts.beside_transformers import by_one_process, by_ours, by_transformers
from zerocourse.course.chapters.experts.routed_text import routed_text
from zerocourse.course.chapters.experts.small_mixtures import MISTAKES, trained
from zerocourse.course.chapters.experts.token_film import MOMENTS, PER_RANK, TOKENS, recorded_trip, token_film
from zerocourse.course.show.plots_curves import training_curves


def test_every_token_goes_to_its_expert_and_home(pool):
    ranks = pool(2).run(recorded_trip)
    home, ordered, there, back = zip(*ranks, strict=True)
    for rank in range(2):
        assert home[rank] == back[rank] and [each.token for each in home[rank]] == list(range(TOKENS))
        assert sorted(home[rank], key=lambda each: each.expert) == ordered[rank]
        assert {each.expert // PER_RANK for each in there[rank]} == {rank}
    assert Counter(sum(home, [])) == Counter(sum(there, []))
    away = sum(each.rank != rank for rank in range(2) for each in there[rank])
    film = token_film(ranks)
    assert [frame.name for frame in film.frames] == list(MOMENTS) and f"{away} of 12 tokens are on another rank" in film.text


@pytest.mark.parametrize("mistake", MISTAKES)
def test_only_the_right_training_equals_one_process(pool, mistake):
    """In six steps. Of a doubled gradient the norm tells at once, of the others the loss."""
    one, both = pool(1).run(trained, "right", 6)[0], pool(2).run(trained, mistake, 6)[0]
    apart = max(abs(loss - right) for loss, right in zip(both["loss"], one["loss"], strict=True))
    assert (apart < 1e-5) == (mistake == "right")
    assert (both["experts"][0] / one["experts"][0] == pytest.approx(2, rel=1e-5)) == (mistake == "doubled")
    assert [sum(layer) for layer in both["busy"][0]] == [sum(layer) for layer in one["busy"][0]]


def test_the_figures_say_what_they_show():
    figure = routed_text("ab", [(0, 2), (2, 1)], 4)
    assert "letters that each expert gets: 1, 1, 2, 0" in figure.get_label() and len(figure.axes[0].patches) == 4
    assert "A goes from 3 to 1" in training_curves({"A": [3, 2, 1]}, "a training", "loss").get_label()


LAST = 256 * 32 + 32  # the head, and the norm before it


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixtral")
    torch.manual_seed(0)
    MixtralForCausalLM(MixtralConfig(vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                                     num_key_value_heads=1)).save_pretrained(path)
    return str(path)


@pytest.mark.parametrize("ranks, group", ((2, 2), (4, 2), (4, 4)))
def test_both_have_the_gradients_of_one_process_and_send_the_same_rows(pool, folder, ranks, group):
    right = by_one_process(folder)
    ours, theirs = (pool(ranks).run(way, folder, group) for way in (by_ours, by_transformers))
    for gradients, _ in ours + theirs:
        assert gradients.keys() == right.keys()
        assert all((gradients[name] - right[name]).abs().max() < 1e-7 for name in right)
    for (_, mine), (_, other) in zip(ours, theirs, strict=True):
        assert mine["tokens"] == other["tokens"] > 0
        assert mine["all else"] == other["all else"] + LAST * (ranks - 1) // ranks
