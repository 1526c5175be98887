"""The cell of chapter 21 that has transformers' expert parallelism beside ours: equal gradients, and counts that agree to the element."""

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from zerocourse.course.chapters.experts.beside_transformers import by_one_process, by_ours, by_transformers

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
