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
from zerocourse.launch import Ranks
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


def by_kernel():
    """For rows that the kernel takes, and for those that it leaves to PyTorch: how often it ran, and how far it is off."""
    from unittest import mock

    from zerocourse.kernels import int8_product as module

    torch.manual_seed(0)
    linears = {"bias": nn.Linear(512, 40), "no bias": nn.Linear(256, 33, bias=False), "not whole scales": nn.Linear(384, 40)}
    rows, seen = {"one row": (1, 1), "a vector": (), "three rows": (3, 1)}, {}
    for name, linear in linears.items():
        plain, small = SmallLinear(linear, 8), SmallLinear(linear, 8, kernel=True)
        for what, shape in rows.items():
            for dtype in (torch.float32, torch.bfloat16):
                x = torch.randn(*shape, linear.in_features).to(dtype)
                with mock.patch.object(module, "int8_product", side_effect=module.int8_product) as ran, torch.no_grad():
                    ours, theirs = small(x), plain(x)
                assert ours.dtype is dtype and ours.shape == theirs.shape
                off = ((ours - theirs).float().norm() / theirs.float().norm()).item()
                seen[name, what, dtype] = ran.call_count, off
    x = torch.randn(512, requires_grad=True)
    SmallLinear(linears["bias"], 8, kernel=True)(x).sum().backward()
    four = SmallLinear(linears["bias"], 4, kernel=True)(x.detach())
    return seen, x.grad, SmallLinear(linears["bias"], 8).weight().sum(0), four.shape


def written_by_kernel():
    from zerocourse.models.gpt2 import build_model

    torch.manual_seed(0)
    model = build_model("gpt2-tiny", n_layer=1, n_embd=256, vocab_size=64)
    tokens, sizes = [], []
    for kernel in (False, True):
        small = shrink_weights(copy.deepcopy(model), 8, kernel=kernel)
        server = Server(small, blocks=10)
        tokens.append(server.add([3, 1, 4], 5))
        server.run()
        sizes.append(weights_bytes(small))
    return [request.tokens for request in tokens], sizes


def test_a_kernel_takes_single_rows_and_gives_what_pytorch_gives():
    pytest.importorskip("triton", reason="kernels need triton (Linux; the `triton` extra)")
    with Ranks(1, env={"TRITON_INTERPRET": "1"}, timeout=100, quiet=True) as ranks:
        (seen, grad, weight, four), = ranks.run(by_kernel)
        (tokens, sizes), = ranks.run(written_by_kernel)
    for (name, what, dtype), (calls, off) in seen.items():
        assert calls == (name != "not whole scales" and what != "three rows"), (name, what)
        assert off < (1e-6 if dtype is torch.float32 else 1e-2), "bf16 restores weights in bf16, and the kernel in fp32"
    assert torch.allclose(grad, weight, atol=1e-5) and four == (40,)
    assert tokens[0] == tokens[1] and sizes[0] == sizes[1]


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
    with pytest.raises(BadInput, match="kernel is True and bits is 4: the kernel reads weights of 8 bits"):
        shrink_weights(nn.Linear(4, 4), 4, kernel=True)
    with pytest.raises(BadInput, match="has no linear layer"):
        shrink_weights(nn.LayerNorm(4))
    model = nn.Sequential(nn.Linear(4, 4))
    shard(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    with pytest.raises(BadInput, match="is sharded"):
        shrink_weights(model)
