"""GPT-2: the published sizes, the published arithmetic, and what ZeRO needs of it."""

import math

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from zerocourse.errors import BadInput
from zerocourse.models.gpt2 import CONFIGS, GPT, GPTConfig, build_model, generate

PUBLISHED = {"gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200}
SMALL = GPTConfig(n_layer=2, n_head=2, n_embd=16, block_size=12, vocab_size=32)


def count(name_or_config, **overrides) -> int:
    with torch.device("meta"):
        model = build_model(name_or_config, **overrides)
    assert all(p.is_meta for p in model.parameters())
    assert model.config.params == sum(p.numel() for p in model.parameters())
    return model.config.params


def tokens(config=SMALL, rows=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocab_size, (2, rows, config.block_size), generator=generator)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name):
    assert count(name) == PUBLISHED[name]


def test_untied_and_without_biases():
    assert count("gpt2", tied=False) == 163_037_184
    # The set-up behind the published two-GPU table: facts of a fork, 163.0/406.2/838.1 million.
    for name, millions in (("gpt2", 163.0), ("gpt2-medium", 406.2), ("gpt2-large", 838.1)):
        assert round(count(name, tied=False, bias=False, vocab_size=50304) / 1e6, 1) == millions


def test_laptop_sizes():
    laptop = {name: count(name) for name in CONFIGS if name not in PUBLISHED}
    assert laptop == {"gpt2-tiny": 224_640, "gpt2-mini": 858_880, "gpt2-laptop": 10_844_160}
    assert all(CONFIGS[name].vocab_size == 256 for name in laptop)


def test_no_buffers_and_one_dtype():
    model = GPT(SMALL)
    assert not list(model.buffers())
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    x_BT, y_BT = tokens()
    assert model(x_BT).shape == (3, 12, 32) and model(x_BT).dtype == torch.float32
    loss = model.bfloat16()(x_BT, y_BT)
    assert loss.shape == () and loss.dtype == torch.float32
    assert model(x_BT).dtype == torch.bfloat16


@pytest.mark.parametrize("tied", [True, False])
def test_same_as_transformers(tied):
    """The same weights give the same logits, loss and gradients as GPT2LMHeadModel."""
    torch.manual_seed(0)
    ours = build_model(SMALL, tied=tied)
    theirs = GPT2LMHeadModel(GPT2Config(
        n_layer=2, n_head=2, n_embd=16, n_positions=12, vocab_size=32, tie_word_embeddings=tied, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    for p in ours.parameters():  # biases and LayerNorms too: at their initial values they would not be tested
        torch.nn.init.normal_(p, std=0.3)

    def across(name, tensor):  # their Conv1D keeps its weight transposed
        return tensor.t() if "c_" in name and tensor.dim() == 2 else tensor

    mapped = {f"transformer.{name}" if name != "lm_head.weight" else name: across(name, tensor)
              for name, tensor in ours.state_dict().items()}
    theirs.load_state_dict(mapped)
    x_BT, _ = tokens()
    torch.testing.assert_close(ours(x_BT), theirs(x_BT).logits, rtol=1e-5, atol=1e-5)

    loss = ours(x_BT[:, :-1], x_BT[:, 1:])
    their_loss = theirs(x_BT, labels=x_BT).loss
    torch.testing.assert_close(loss, their_loss, rtol=1e-6, atol=1e-6)
    loss.backward()
    their_loss.backward()
    their_grads = {name.removeprefix("transformer."): p.grad for name, p in theirs.named_parameters()}
    for name, p in ours.named_parameters():
        torch.testing.assert_close(p.grad, across(name, their_grads[name]), rtol=1e-4, atol=1e-6, msg=name)


def test_initial_weights():
    torch.manual_seed(0)
    model = build_model("gpt2-mini")
    assert model.wte.weight is model.lm_head.weight
    assert model.h[0].mlp.c_fc.weight.std().item() == pytest.approx(0.02, rel=0.03)
    for block in model.h:
        for linear in (block.attn.c_proj, block.mlp.c_proj):
            assert linear.weight.std().item() == pytest.approx(0.02 / math.sqrt(8), rel=0.03)
            assert not linear.bias.any()
    x_BT, y_BT = tokens(model.config)
    assert model(x_BT, y_BT).item() == pytest.approx(math.log(256), abs=0.1)  # knows nothing yet


def test_init_weights_fills_a_module_that_came_from_meta():
    with torch.device("meta"):
        model = build_model(SMALL)
    linear = model.h[1].attn.c_proj.to_empty(device="cpu")
    linear.weight.data.fill_(torch.nan), linear.bias.data.fill_(torch.nan)
    GPT._init_weights(linear)
    assert linear.weight.std() < 0.015 and not linear.bias.any()  # the scale survived the trip
    GPT._init_weights(model)  # owns no parameter itself: its children stay as they are
    assert model.h[0].attn.c_proj.weight.is_meta


def test_the_future_is_not_seen():
    model, (x_BT, _) = GPT(SMALL), tokens()
    changed = x_BT.clone()
    changed[:, 7:] = 0
    assert torch.equal(model(x_BT)[:, :7], model(changed)[:, :7])
    assert not torch.equal(model(x_BT)[:, 7:], model(changed)[:, 7:])


def test_dropout_only_while_training():
    model, (x_BT, _) = build_model(SMALL, dropout=0.5), tokens()
    assert not torch.equal(model(x_BT), model(x_BT))
    model.eval()
    assert torch.equal(model(x_BT), model(x_BT))


@pytest.mark.parametrize("call, words", [
    (lambda: build_model("gpt2-mediun"), "did you mean 'gpt2-medium'"),
    (lambda: build_model("llama"), "there are gpt2-tiny"),
    (lambda: build_model("gpt2", layers=3), "no field 'layers'"),
    (lambda: build_model("gpt2-tiny", n_head=3), "64 is not divisible by 3"),
    (lambda: build_model("gpt2-tiny", n_layer=0), "n_layer must be a positive"),
    (lambda: build_model("gpt2-tiny", n_embd=64.0), "n_embd must be a positive whole"),
    (lambda: build_model("gpt2-tiny", dropout=1.5), "dropout must be"),
    (lambda: GPT(SMALL)(torch.zeros(1, 13, dtype=torch.int64)), "at most block_size = 12 tokens, not 13"),
])
def test_bad_input(call, words):
    with pytest.raises(BadInput, match=words):
        call()


def test_generate():
    torch.manual_seed(0)
    model, (x_BT, _) = GPT(SMALL), tokens(rows=2)
    prompt, calls = x_BT[:, :5], []
    model.register_forward_pre_hook(lambda module, args: calls.append(args[0].shape[1]))
    out = generate(model, prompt, 20)
    assert out.shape == (2, 25) and torch.equal(out[:, :5], prompt) and not out.requires_grad
    assert calls == [min(12, 5 + i) for i in range(20)]  # as many forwards as asked, whatever came out
    assert torch.equal(out[:, 5], model(prompt)[:, -1].argmax(-1))
    assert torch.equal(generate(model, prompt, 0), prompt)

    def drawn(seed, temperature=1.0):
        return generate(model, prompt, 20, temperature, torch.Generator().manual_seed(seed))
    assert torch.equal(drawn(1), drawn(1)) and not torch.equal(drawn(1), drawn(2))
    assert torch.equal(drawn(1, temperature=1e-6), out)  # cold enough, the likeliest token always wins


def test_learns_one_batch():
    torch.manual_seed(0)
    model, (x_BT, y_BT) = GPT(SMALL), tokens()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first = model(x_BT, y_BT).item()
    for _ in range(60):
        loss = model(x_BT, y_BT)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < first / 3
