"""What `shard` can, the engine can: two engines that train a GAN, parameter groups, adapters (LoRA), no_sync, generation."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import softplus
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

from zerocourse.engine import Engine, initialize
from zerocourse.engine.bridge.deepspeed_engine import initialize as of_bridge

STAGES = (0, 1, 2, 3)
RANKS = 2


def settings(stage: int, accumulation: int = 1, clip: float = 0.0, **more) -> dict:
    return {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": accumulation, "gradient_clipping": clip,
            "zero_optimization": {"stage": stage}, **more}


def is_near(state: dict, exact: dict, what: object) -> None:
    assert list(state) == list(exact)
    for name, value in exact.items():
        torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-6, msg=lambda said: f"{what}: {name}: {said}")


# --- a GAN ---

def networks() -> tuple[nn.Module, nn.Module]:
    """A generator (3 → 5) and a discriminator (5 → 1); no size is divisible by the number of ranks."""
    torch.manual_seed(3)
    return (nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 5)), nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)))


def drawn(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's noise (2, 3) and real samples (2, 5)."""
    draw = torch.Generator().manual_seed(97 * step + rank)
    return torch.randn(2, 3, generator=draw), 1 + torch.randn(2, 5, generator=draw)


def groups_of(model: nn.Module) -> list[dict]:
    """Two parameter groups, with rates and decays of their own."""
    return [{"params": [param for param in model.parameters() if param.ndim > 1], "lr": 0.3, "weight_decay": 0.1},
            {"params": [param for param in model.parameters() if param.ndim == 1], "lr": 0.1, "weight_decay": 0.0}]


def momentum(groups) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=0.2, momentum=0.9)


def train_gan(stage: int, detached: bool) -> dict:
    """Detached: the discriminator's loss sees a sample as data. Else gradients of its loss reach the generator too, which
    forgets them, as in many public loops."""
    made = networks()
    generator, discriminator = (initialize(net, momentum, groups_of(net), config=settings(stage))[0] for net in made)
    losses = []
    for step in range(3):
        noise, real = drawn(step, dist.get_rank())
        false = generator(noise)
        loss = softplus(-discriminator(real)).mean() + softplus(discriminator(false.detach() if detached else false)).mean()
        discriminator.backward(loss)
        discriminator.step()
        generator.zero_grad()
        fooled = softplus(-discriminator(generator(noise))).mean()
        generator.backward(fooled)
        generator.step()
        discriminator.zero_grad()
        losses.append([loss.item(), fooled.item()])
    return {"losses": losses, "states": [generator.state_dict(), discriminator.state_dict()],
            "held": [engine.memory()["parameters_bytes"] for engine in (generator, discriminator)]}


def gan_by_hand(detached: bool) -> dict:
    """The same on all ranks' samples at once, without sharding. (The loss is detached or not: the weights are the same.)"""
    generator, discriminator = networks()
    of_generator, of_discriminator = momentum(groups_of(generator)), momentum(groups_of(discriminator))
    for step in range(3):
        noise, real = (torch.cat(rows) for rows in zip(*(drawn(step, rank) for rank in range(RANKS)), strict=True))
        false = generator(noise)
        (softplus(-discriminator(real)).mean() + softplus(discriminator(false)).mean()).backward()
        of_discriminator.step()
        generator.zero_grad()
        softplus(-discriminator(generator(noise))).mean().backward()
        of_generator.step()
        generator.zero_grad()
        discriminator.zero_grad()
    return {"states": [generator.state_dict(), discriminator.state_dict()]}


@pytest.mark.parametrize("detached", (True, False), ids=("detached", "attached"))
@pytest.mark.parametrize("stage", STAGES)
def test_a_gan_of_two_engines(pool, stage, detached):
    exact = gan_by_hand(detached)
    for result in pool(RANKS).run(train_gan, stage, detached):
        for which, state, wanted, net, held in zip("GD", result["states"], exact["states"], networks(), result["held"], strict=True):
            is_near(state, wanted, which)
            whole = 4 * sum(param.numel() for param in net.parameters())
            assert held <= whole / RANKS + 16 if stage == 3 else held >= whole


# --- accumulation without reductions in between ---

def accumulated(stage: int) -> dict:
    """Two micro-batches of a window by the user's own no_sync, and clipping by the norm of the whole gradient."""
    net = networks()[0]
    engine = initialize(net, momentum, groups_of(net), config=settings(stage, clip=0.2))[0]
    engine.optimizer.zero_grad()
    sent = []
    for step in range(2):
        noises = [drawn(10 * step + number, engine.global_rank)[0] for number in range(2)]
        before = engine.communication()["sent_bytes"]
        with engine.no_sync():
            (engine(noises[0]).square().mean() / 2).backward()
        sent.append(engine.communication()["sent_bytes"] - before)
        engine.backward(engine(noises[1]).square().mean() / 2)
        engine.step()
    return {"state": engine.state_dict(), "norm": engine.get_global_grad_norm(), "sent": sent}


@pytest.mark.parametrize("stage", STAGES)
def test_no_sync_adds_up_and_the_norm_is_of_the_whole_gradient(pool, stage):
    net = networks()[0]
    optimizer = momentum(groups_of(net))
    for step in range(2):
        noise = torch.cat([drawn(10 * step + number, rank)[0] for number in range(2) for rank in range(RANKS)])
        optimizer.zero_grad()
        net(noise).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.2).item()
        optimizer.step()
    assert norm > 0.2, "clipping must matter"
    for result in pool(RANKS).run(accumulated, stage):
        is_near(result["state"], net.state_dict(), stage)
        assert result["norm"] == pytest.approx(norm, rel=1e-5)
        assert stage > 1 or result["sent"] == [0, 0], "nothing is reduced inside no_sync"


# --- adapters ---

def adapted() -> nn.Module:
    """GPT-2 with LoRA in its attention: all but the adapters and a layer norm is frozen. Of what trains beside them, PEFT asks its modules
    for the names when it saves."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(2)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=23, bos_token_id=0, eos_token_id=0, initializer_range=0.2, n_layer=2, n_head=2,
                                       n_embd=8, n_positions=12, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["c_attn"], modules_to_save=["ln_f"], init_lora_weights=False,
                                                       fan_in_fan_out=True))


def tokens(step: int, rank: int) -> torch.Tensor:
    return torch.randint(1, 23, (2, 9), generator=torch.Generator().manual_seed(31 * step + rank))


def train_adapters(stage: int, folder: str) -> dict:
    model = adapted()
    engine: Engine = initialize(model, momentum, [param for param in model.parameters() if param.requires_grad],
                                config=settings(stage))[0]
    for step in range(2):
        ids = tokens(step, engine.global_rank)
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        held = engine.memory()["gradients_bytes"]
        engine.step()
    engine.module.save_pretrained(folder)
    return {"state": engine.state_dict(), "held": held, "states": engine.memory()["optimizer_bytes"]}


@pytest.mark.parametrize("stage", STAGES)
def test_adapters_train_and_are_saved(pool, tmp_path, stage):
    peft = pytest.importorskip("peft")
    plain = adapted()
    before = copy.deepcopy(plain.state_dict())
    optimizer = momentum([param for param in plain.parameters() if param.requires_grad])
    for step in range(2):
        torch.stack([plain(input_ids=ids, labels=ids).loss for ids in (tokens(step, rank) for rank in range(RANKS))]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    trained = sum(param.numel() for param in plain.parameters() if param.requires_grad)
    results = pool(RANKS).run(train_adapters, stage, str(tmp_path))
    for result in results:
        is_near(result["state"], plain.state_dict(), stage)
        assert all(torch.equal(value, before[name]) for name, value in result["state"].items()
                   if not ("lora_" in name or "modules_to_save" in name))
        assert any(not torch.equal(value, before[name]) for name, value in result["state"].items())
        share = RANKS if stage >= 2 else 1
        assert 4 * trained / share - 64 <= result["held"] <= 4 * trained / share + 64, "frozen parameters have no gradient"
    assert sum(result["states"] for result in results) == 4 * trained * (1 if stage else RANKS), "and no state"

    assert {"adapter_model.safetensors", "adapter_config.json"} <= {each.name for each in tmp_path.iterdir()}
    loaded = peft.PeftModel.from_pretrained(adapted().unload(), tmp_path).state_dict()
    for name, value in results[0]["state"].items():
        assert torch.equal(loaded[name], value), name


def saved_by_rank_0(stage: int, folder: str) -> dict:
    """As scripts of DeepSpeed's do it."""
    torch.manual_seed(2)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=23, bos_token_id=0, eos_token_id=0, n_layer=1, n_head=2, n_embd=8, n_positions=12))
    engine = of_bridge(model=model, optimizer=momentum(model.parameters()), config=settings(stage))[0]
    ids = tokens(0, engine.global_rank)
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()
    if engine.global_rank == 0:
        engine.module.save_pretrained(folder)
    return engine.module.state_dict()


@pytest.mark.parametrize("stage", (0, 1, 2))
def test_rank_0_alone_saves_where_each_rank_has_whole_weights(pool, tmp_path, stage):
    wanted = pool(RANKS).run(saved_by_rank_0, stage, str(tmp_path))[0]
    saved = GPT2LMHeadModel.from_pretrained(tmp_path).state_dict()
    assert saved.keys() == wanted.keys() and all(torch.equal(saved[name], wanted[name]) for name in wanted)


# --- generation ---

def generated(stage: int, synced: bool) -> list[list[int]]:
    """Rank 1 asks for more tokens than rank 0."""
    model = GPT2LMHeadModel(GPT2Config(vocab_size=23, bos_token_id=0, eos_token_id=None, n_layer=2, n_head=2, n_embd=8, n_positions=32))
    engine = initialize(model, momentum, config=settings(stage))[0]
    engine.eval()
    length = 3 + 4 * engine.global_rank
    out = engine.generate(tokens(1, 0), max_new_tokens=length, do_sample=False, synced_gpus=synced, pad_token_id=0)
    engine.train()
    loss = engine(input_ids=tokens(2, 0), labels=tokens(2, 0)).loss
    engine.backward(loss)
    engine.step()
    return [out.shape[1] - 9, loss.isfinite().item()]


@pytest.mark.parametrize("stage, synced", [(2, False), (3, True)])
def test_a_rank_that_is_done_early_hangs_nobody(pool, stage, synced):
    assert pool(RANKS).run(generated, stage, synced) == [[3, True], [7, True]]


def encoded() -> tuple[list[int], bool]:
    """Parameter bytes before the encoder, called by itself, and after; and whether it computes what it does in one process."""
    sizes = {"vocab_size": 23, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
    torch.manual_seed(0)
    plain = T5ForConditionalGeneration(T5Config(**sizes)).eval()
    engine = initialize(copy.deepcopy(plain), momentum, config=settings(3))[0].eval()
    before = engine.memory()["parameters_bytes"]
    with torch.no_grad():
        states = [model.get_encoder()(tokens(1, 0)).last_hidden_state for model in (engine.module, plain)]
    return [before, engine.memory()["parameters_bytes"]], states[0].equal(states[1])


def test_an_encoder_that_is_called_by_itself_leaves_nothing_gathered(pool):
    for (before, after), is_same in pool(RANKS).run(encoded):
        assert is_same and before == after
