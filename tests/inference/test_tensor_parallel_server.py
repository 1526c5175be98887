"""Servers on the ranks of tensor parallelism write what one writes, and each keeps its own heads."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from zerocourse.comm import Comm
from zerocourse.inference import Server
from zerocourse.models.gpt2 import build_model
from zerocourse.parallel.tensor import tensor_parallel

PROMPTS = [[5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8, 9], [5, 6, 7, 8]]


def made(kind):
    torch.manual_seed(0)
    if kind == "ours":
        return build_model("gpt2-tiny", n_layer=2)
    return LlamaForCausalLM(LlamaConfig(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2)).eval()


def written(kind):
    """Tokens of each request, and bytes of the cache."""
    model = made(kind)
    if Comm().world_size > 1:
        model = tensor_parallel(model, Comm())
    server = Server(model, blocks=20, block_size=4, budget=7)
    served = [server.add(prompt, 10) for prompt in PROMPTS]
    server.run()
    return [each.tokens for each in served], server.cache.nbytes


@pytest.mark.parametrize("kind", ("ours", "llama"))
def test_ranks_write_what_one_writes(pool, kind):
    tokens, nbytes = pool(1).run(written, kind)[0]
    assert all(ours == tokens and 2 * kept == nbytes for ours, kept in pool(2).run(written, kind))


def test_under_the_rules_of_nccl(strict_pool):
    assert strict_pool(2).run(written, "ours")[0][0] == written("ours")[0]
