"""Reinforcement learning learns what it should and fails where it must, and says the same with any stage of ZeRO."""

import copy
import functools
import re

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from zerocourse import shard
from zerocourse.comm import Comm
from zerocourse.errors import BadInput
from zerocourse.formulas.models.rl_states import MODELS, rl_state_bytes
from zerocourse.models.gpt2 import GPT, GPTConfig
from zerocourse.rl import (
    Brackets,
    RewardModel,
    Rollout,
    Sampler,
    Vowels,
    advantages,
    divergence,
    imitate,
    improve,
    log_probs,
    mean_over,
    policy_loss,
    preference_loss,
)
from zerocourse.zero.whole.consolidate import state_dict

CONFIG = GPTConfig(2, 4, 64, block_size=16, vocab_size=128, tied=False)
TASK, SAMPLES = Brackets(), 8


def new_model(seed=0):
    torch.manual_seed(seed)
    return GPT(CONFIG)


def optimizer_of(model, lr=1e-3):
    return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0, betas=(0.9, 0.95))


def accuracy(model, held_out):
    kinds = TASK.kinds(400, torch.Generator().manual_seed(99), held_out)
    return TASK.reward(Sampler(model, 8192, torch.Generator().manual_seed(5))(TASK.prompts(kinds), 1, TASK.depth)).mean().item()


@functools.cache
def taught_model(seed, wrong, taught):
    """(the model after its teacher, the state of what drew for it, its accuracy on held-out prompts)"""
    model, draw = new_model(seed), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for _ in range(taught):
        imitate(model, optimizer, TASK.taught(TASK.kinds(128, draw), wrong, draw))
    return model, draw.get_state(), accuracy(model, True)


def learned(seed, steps, wrong=0.75, taught=150, pull=0.0):
    """(accuracy after the teacher, and after GRPO, on held-out prompts), and the rewards of its steps."""
    reference, drawn, before = taught_model(seed, wrong, taught)
    model, draw = copy.deepcopy(reference), torch.Generator().set_state(drawn)
    optimizer, sampler, rewards = optimizer_of(model), Sampler(model, 2048, draw), []
    for _ in range(steps):
        rollout = sampler(TASK.prompts(TASK.kinds(16, draw)), SAMPLES, TASK.depth)
        reward = TASK.reward(rollout)
        with torch.no_grad():
            then = log_probs(reference, rollout) if pull else None
        improve(model, optimizer, rollout, advantages(reward, SAMPLES), pull=pull, reference_BT=then)
        rewards.append(reward.mean().item())
    return before, accuracy(model, True), rewards


@pytest.mark.parametrize("seed", range(2))
def test_it_learns_to_close_brackets(seed):
    before, after, rewards = learned(seed, 100)
    assert before < 0.3 and after > 0.95
    assert sum(rewards[:20]) / 20 < 0.75 < 0.9 < sum(rewards[20:40]) / 20


def test_what_is_never_sampled_is_never_learned():
    assert learned(0, 15, taught=0) == (0.0, 0.0, [0.0] * 15)


def test_a_teacher_who_is_too_often_wrong():
    before, after, _ = learned(0, 60, wrong=0.95)
    assert before < 0.1 and after < 0.3


def test_too_strong_a_pull_keeps_it_with_the_wrong_teacher():
    assert 0.4 < learned(0, 60, pull=0.5)[1] < 0.85 < 0.9 < learned(0, 60, pull=0.05)[1]


def test_a_reward_is_taken_at_its_word():
    """Vowels from random weights: the reward is all there is, and the text is none."""
    model, draw = new_model(), torch.Generator().manual_seed(0)
    optimizer, sampler = optimizer_of(model, 3e-3), Sampler(model, 2048, draw)
    for _ in range(60):
        rollout = sampler([[10]], 64, 12)
        improve(model, optimizer, rollout, advantages(Vowels().reward(rollout), 64))
    assert Vowels().reward(rollout).mean() > 0.95
    assert set(rollout.answer(0)) <= set(b"aeiou") or Vowels().reward(rollout)[0] < 1


# -- what was written, and how likely it was --------------------------------------------------------------------------

def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                        num_key_value_heads=2, max_position_embeddings=32, initializer_range=0.2))


def peaked():
    """So that its temperature matters."""
    model = new_model()
    model.lm_head.weight.data *= 20
    return model


@pytest.mark.parametrize("make", (peaked, llama))
def test_the_writer_and_the_trainer_agree_also_after_an_update(make):
    """Prompts of different lengths, and answers that end early."""
    model, prompts = make(), [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
    sampler, optimizer = Sampler(model, 2048, torch.Generator().manual_seed(0), temperature=0.6), optimizer_of(model, 1e-2)
    for _ in range(3):
        rollout = sampler(prompts, 6, 8, stop=20)
        with torch.no_grad():
            assert (log_probs(model, rollout) - rollout.drawn_BT).abs().max() < 2e-5
        answers = [rollout.answer(row) for row in range(18)]
        assert all(1 <= len(each) <= 8 and (20 not in each[:-1]) and (len(each) == 8 or each[-1] == 20) for each in answers)
        assert rollout.tokens_BS[17, :5].tolist() == prompts[2] and rollout.written_BT[17, :4].sum() == 0
        hot = Rollout(rollout.tokens_BS, rollout.written_BT, rollout.drawn_BT, 1.0)
        with torch.no_grad():
            apart = mean_over(log_probs(model, hot) - rollout.drawn_BT, rollout.written_BT)
        assert apart < -1e-3, "scored at another temperature, what was drawn is less likely than it was"
        improve(model, optimizer, rollout, torch.randn(18))


def test_a_prompt_is_computed_once_for_all_of_its_samples():
    """Its 9 tokens are two blocks and a token, whose block is copied for all samples but the last one that writes there."""
    sampler = Sampler(new_model(), 2048, torch.Generator().manual_seed(0))
    sampler([list(range(9)), [4, 5]], 6, 3)
    assert sampler.server.rows == 9 + 2 + 2 * 6 * 2 and sampler.server.scheduler.copied == 2 * 5 and not sampler.server.pool.taken


def rollout_of(rows=16):
    return Sampler(new_model(), 2048, torch.Generator().manual_seed(1))(TASK.prompts(TASK.kinds(rows // 4, torch.Generator().manual_seed(2))), 4, 5)


# -- the loss ---------------------------------------------------------------------------------------------------------

def test_where_nothing_has_changed_it_is_reinforce():
    model, rollout = new_model(), rollout_of()
    better = advantages(torch.randn(16, generator=torch.Generator().manual_seed(3)), 4)
    new = log_probs(model, rollout)
    loss = policy_loss(new, new.detach(), better, rollout.written_BT)
    ours = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    plain = torch.autograd.grad(-(new * better[:, None])[rollout.written_BT].mean(), list(model.parameters()))
    assert abs(loss.item()) < 1e-6, "the advantages of a group add up to 0, so the loss says nothing"
    assert all(torch.allclose(one, other, atol=1e-7) for one, other in zip(ours, plain, strict=True))
    assert torch.equal(advantages(torch.ones(8), 4), torch.zeros(8))


def test_a_token_that_has_moved_far_is_pushed_no_further():
    new = torch.tensor([[0.5, 0.1], [-0.5, 0.1], [0.5, 0.1], [-0.5, 0.1]], requires_grad=True)
    loss = policy_loss(new, torch.zeros(4, 2), torch.tensor([1.0, -1.0, -1.0, 1.0]), torch.ones(4, 2, dtype=torch.bool))
    pushed = torch.autograd.grad(loss, new)[0] != 0
    assert pushed.tolist() == [[False, True], [False, True], [True, True], [True, True]]


def test_a_rollout_that_was_learned_from_is_left_alone():
    """Ratios are of the moment at which tokens were drawn, in each epoch: what has moved by more than the clip is pushed no further."""
    model, rollout = new_model(), rollout_of()
    moved = Rollout(rollout.tokens_BS, rollout.written_BT, (rollout.drawn_BT - 1) * rollout.written_BT)
    assert improve(model, optimizer_of(model, 0.0), moved, torch.ones(16), epochs=2).norm == 0
    assert improve(model, optimizer_of(model, 0.0), moved, -torch.ones(16), epochs=2).norm > 0


def test_what_is_averaged():
    values, written = torch.tensor([[1.0, 1, 1, 1], [5, 9, 9, 9]]), torch.tensor([[True] * 4, [True, False, False, False]])
    assert [mean_over(values, written, length).item() for length in ("tokens", "samples", "constant")] == pytest.approx([9 / 5, 3, 9 / 8])
    apart = divergence(torch.randn(3, 4), torch.randn(3, 4))
    assert (apart >= 0).all() and not divergence(values, values).any()


def test_a_group_is_compared_with_itself():
    rewards = torch.tensor([1.0, 0, 0, 0, 5, 5, 5, 9])
    better = advantages(rewards, 4, divide=False)
    assert better.tolist() == pytest.approx([0.75, -0.25, -0.25, -0.25, -1, -1, -1, 3])
    assert advantages(rewards, 4).view(2, 4).sum(1).abs().max() < 1e-5


# -- many ranks -------------------------------------------------------------------------------------------------------

def steps_of(model, optimizer, rollout, better):
    return [improve(model, optimizer, rollout, better, epochs=2, most_norm=0.1).norm for _ in range(2)], state_dict(model) if hasattr(
        model, "zero") else model.state_dict()


def on_a_rank(stage, rollout, better):
    comm, model = Comm(), new_model()
    optimizer = optimizer_of(model)
    shard(model, optimizer, stage)
    part = Rollout(*(each.chunk(comm.world_size)[comm.rank] for each in (rollout.tokens_BS, rollout.written_BT, rollout.drawn_BT)))
    return steps_of(model, optimizer, part, better.chunk(comm.world_size)[comm.rank])


@pytest.mark.parametrize("stage", range(4))
def test_any_stage_equals_one_process(pool, stage):
    rollout, better, model = rollout_of(), advantages(torch.arange(16.0) % 5, 4), new_model()
    norms, weights = steps_of(model, optimizer_of(model), rollout, better)
    for ours, state in pool(2).run(on_a_rank, stage, rollout, better):
        assert ours == pytest.approx(norms, rel=1e-4)
        assert all((state[name] - value).abs().max() < 1e-5 for name, value in weights.items())


def synchronised():
    """Elements that this rank sends in a rollout at stage 3, and those of its parameters' slices; and does the trainer agree after a step?"""
    comm, model = Comm(), new_model()
    optimizer = optimizer_of(model)
    shard(model, optimizer, 3)
    sampler = Sampler(model, 2048, torch.Generator().manual_seed(comm.rank))
    rollout = sampler([[1, 2, comm.rank]], 4, 5 + comm.rank)
    improve(model, optimizer, rollout, advantages(torch.arange(4.0), 4))
    before = sum(model.zero.comm.elements.values())
    rollout = sampler([[1, 2, comm.rank]], 4, 8 + comm.rank)
    sent = sum(model.zero.comm.elements.values()) - before
    with torch.no_grad():
        apart = (log_probs(model, rollout) - rollout.drawn_BT).abs().max().item()
    return sent, sum(flat.layout.real(comm.rank) for flat in model.zero.flats), apart


def test_weights_travel_once_for_a_rollout(pool):
    """And not once for each token; ranks may write answers of different lengths."""
    for sent, own, apart in pool(2).run(synchronised):
        assert sent == own and apart < 1e-5


# -- rewards ----------------------------------------------------------------------------------------------------------

def test_a_reward_model_learns_who_was_liked_better():
    torch.manual_seed(0)
    model, draw = RewardModel(GPTConfig(2, 4, 64, block_size=16, vocab_size=128, tied=False)), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        kinds = TASK.kinds(64, draw)
        preference_loss(model(TASK.taught(kinds, 0.0, draw)), model(TASK.taught(kinds, 1.0, draw))).backward()
        optimizer.step()
        optimizer.zero_grad()
    kinds = TASK.kinds(200, draw, held_out=True)
    kinds = kinds[(kinds != kinds.flip(1)).any(1)]
    with torch.no_grad():
        right, wrong = model(TASK.taught(kinds, 0.0, draw)), model(TASK.taught(kinds, 1.0, draw))
    assert (right > wrong).float().mean() > 0.9


def test_the_reward_is_read_at_the_last_token_that_was_written():
    model = RewardModel(CONFIG).eval()
    tokens = torch.randint(128, (2, 8), generator=torch.Generator().manual_seed(0))
    written = torch.tensor([[0, 0, 1, 1, 0, 0, 0], [0, 1, 1, 1, 1, 1, 1]]).bool()
    short = Rollout(tokens[:1, :5], written[:1, :4], torch.zeros(1, 4))
    assert model(Rollout(tokens, written, torch.zeros(2, 7)))[0].item() == pytest.approx(model(short).item(), abs=1e-6)


def test_bytes_of_the_models():
    """7 billion parameters on 8 ranks, in GB."""
    table = {way: [round(rl_state_bytes(7 * 10**9, *models, stage, 8) / 1e9, 1) for stage in range(4)] for way, models in MODELS.items()}
    assert table == {"PPO": [252, 105, 80.5, 31.5], "GRPO": [126, 52.5, 40.2, 15.8], "GRPO without a reference": [112, 38.5, 26.2, 14]}


@pytest.mark.parametrize("words, make", (
    ("temperature is 0", lambda: Sampler(new_model(), 64, torch.Generator(), 0)), ("4 rewards in groups of 1", lambda: advantages(torch.ones(4), 1)),
    ("4 rewards in groups of 3", lambda: advantages(torch.ones(4), 3)),
    ("length is 'words'", lambda: mean_over(torch.ones(1, 1), torch.ones(1, 1), "words")),
    ("an answer has 4 tokens", lambda: TASK.reward(Sampler(new_model(), 64, torch.Generator())([list(b"(((((=")], 1, 4)))))
def test_what_is_refused(words, make):
    with pytest.raises(BadInput, match=re.escape(words)):
        make()
