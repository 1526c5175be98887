"""Weights in few bits are off by half a scale at most, and a text that a model knows by heart survives them."""

import copy

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from zerocourse import shard
from zerocourse.course.chapters.inference.small_models import TEXT, knows_by_heart
from zerocourse.course.chapters.inference.without_cache import without_cache
from zerocourse.errors import BadInput
from zerocourse.inference import Server, SmallLinear, shrink_weights, weights_bytes
from zerocourse.parallel.plusplus.blocks import BLOCK


@pytest.fixture(scope="module")
def model():
    return knows_by_heart()


@pytest.mark.parametrize("bits, largest", ((8, 127), (4, 7)))
def test_a_weight_is_off_by_half_a_scale_at_most(bits, largest):
    torch.manual_seed(0)
    linear = nn.Linear(96, 48)
    small = SmallLinear(linear, bits)
    apart = (small.weight() - linear.weight).abs().reshape(-1, BLOCK)
    assert (apart <= linear.weight.reshape(-1, BLOCK).abs().amax(1, keepdim=True) / largest / 2 * 1.0001).all() and apart.any()
    x = torch.randn(5, 96)
    assert torch.equal(small(x), torch.nn.functional.linear(x, small.weight(), linear.bias))
    assert small(x.bfloat16()).dtype is torch.bfloat16


@pytest.mark.parametrize("bits", (8, 4))
def test_bytes_are_those_of_the_formula(model, bits):
    small = shrink_weights(copy.deepcopy(model), bits)
    linear = sum(module.weight.numel() for module in model.modules() if type(module) is nn.Linear and module.weight is not model.wte.weight)
    assert weights_bytes(model) - weights_bytes(small) == linear * 4 - linear * bits // 8 - 4 * linear // BLOCK


@pytest.mark.parametrize("bits", (8, 4))
def test_a_server_writes_with_them(model, bits):
    """Token by token what the same weights say without a cache, and in 8 bits what the text was."""
    small, prompt = shrink_weights(copy.deepcopy(model), bits), list(TEXT[:40])
    server = Server(small, blocks=40)
    served = server.add(prompt, 60)
    server.run()
    assert served.tokens == without_cache(small, prompt, 60)[0]
    right = sum(one == other for one, other in zip(served.tokens, without_cache(model, prompt, 60)[0], strict=True))
    assert right == 100 if bits == 8 else right >= 60


def test_a_head_that_is_the_embedding_stays():
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, tie_word_embeddings=True)
    llama, tokens = LlamaForCausalLM(config).eval(), torch.arange(12)[None]
    with torch.no_grad():
        before = llama(tokens).logits
        after = shrink_weights(llama)(tokens).logits
    assert llama.lm_head.weight is llama.model.embed_tokens.weight and isinstance(llama.model.layers[0].mlp.up_proj, SmallLinear)
    assert 0 < (after - before).norm() < 0.02 * before.norm()


def test_what_is_refused():
    with pytest.raises(BadInput, match="bits is 3: weights can be kept in 8 or 4"):
        shrink_weights(nn.Linear(4, 4), 3)
    with pytest.raises(BadInput, match="has no linear layer"):
        shrink_weights(nn.LayerNorm(4))
    model = nn.Sequential(nn.Linear(4, 4))
    shard(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    with pytest.raises(BadInput, match="is sharded"):
        shrink_weights(model)
