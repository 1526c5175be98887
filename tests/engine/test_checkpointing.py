"""Activation checkpointing by the config: the same training to the last bit, dropout included, and fewer bytes."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from zerocourse.activations import checkpoint_blocks, saving
from zerocourse.engine import initialize
from zerocourse.errors import BadInput
from zerocourse.models.gpt2 import build_model

STAGES = (0, 1, 2, 3)
BLOCKS = 3


class Habits(nn.Module):
    """Blocks with dropout, batch statistics, a frozen layer, keyword arguments and two outputs."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen, self.layer = nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 6)
            self.norm, self.drop = nn.BatchNorm1d(6), nn.Dropout(0.4)

        def forward(self, x, *, scale: float = 1.0):
            x = self.drop(torch.tanh(self.layer(self.norm(self.frozen(x)))))
            return x * scale, x.square().mean()

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.blocks = nn.Linear(5, 6), nn.ModuleList(self.Block() for _ in range(BLOCKS))

    def forward(self, x):
        x, loss = self.first(x), 0.0
        for block in self.blocks:
            x, extra = block(x, scale=0.5)
            loss = loss + extra
        return x.square().mean() + 0.1 * loss


def hugging_face() -> nn.Module:
    torch.manual_seed(2)
    return GPT2LMHeadModel(GPT2Config(n_layer=BLOCKS, n_head=2, n_embd=8, n_positions=12, vocab_size=23, bos_token_id=0,
                                      eos_token_id=0, initializer_range=0.2))  # with dropout, and with its cache


def ours() -> nn.Module:
    torch.manual_seed(2)
    return build_model("gpt2-tiny", n_layer=BLOCKS, n_embd=8, n_head=2, block_size=12, vocab_size=23, dropout=0.3)


def loss_of(kind: str, engine, step: int) -> torch.Tensor:
    seeded = torch.Generator().manual_seed(31 * step + engine.global_rank)
    if kind == "habits":
        return engine(torch.randn(4, 5, generator=seeded))
    tokens = torch.randint(1, 23, (2, 9), generator=seeded)
    return engine(tokens, labels=tokens).loss if kind == "hugging face" else engine(tokens[:, :-1], tokens[:, 1:])


MODELS = {"habits": Habits, "hugging face": hugging_face, "ours": ours}


def train(kind: str, stage: int, section: dict | None, bf16: bool) -> dict:
    model = MODELS[kind]()
    engine, *_ = initialize(model, config={
        "train_batch_size": 2 * dist.get_world_size(), "zero_optimization": {"stage": stage}, "bf16": {"enabled": bf16},
        "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}, "activation_checkpointing": section})
    runs, losses, gathers = [0], [], []
    blocks = model.transformer.h if kind == "hugging face" else model.h if kind == "ours" else model.blocks
    first = blocks[0].ln_1 if kind != "habits" else blocks[0].frozen
    first.register_forward_hook(lambda *_: runs.__setitem__(0, runs[0] + 1))
    torch.manual_seed(5 + engine.global_rank)  # dropout's masks differ from rank to rank
    for step in range(3):
        if step == 1:
            with torch.no_grad():
                loss_of(kind, engine, 100)
        before = engine.zero.comm.sent.get("all_gather", 0)
        loss = loss_of(kind, engine, step)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        gathers.append(engine.zero.comm.sent.get("all_gather", 0) - before)
    return {"losses": losses, "state": engine.state_dict(), "runs": runs[0], "gathers": gathers[1:]}


def all_of(kind: str, stage: int) -> list[dict]:
    """Without, with every block, and with the first two checkpointed."""
    return [train(kind, stage, section, bf16=stage == 2 and kind != "habits") for section in (
        None, {"partition_activations": False, "number_checkpoints": None}, {"number_checkpoints": 1})]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", MODELS)
def test_the_key_is_applied_and_changes_no_bit(pool, kind, stage):
    for plain, every, one in pool(2).run(all_of, kind, stage):
        for found in (every, one):
            assert found["losses"] == plain["losses"]
            assert all(torch.equal(value, plain["state"][name]) for name, value in found["state"].items())
            assert (plain["runs"], found["runs"]) == (4, 7), "three forwards again, not the one without gradients"
            assert found["gathers"] == plain["gathers"], "nothing is gathered once more"


def saved_bytes(kind: str, number: int | None, checkpoint: bool = True) -> int:
    """Bytes of all storages that a forward keeps for its backward, parameters apart."""
    model = MODELS[kind]()
    if checkpoint:
        checkpoint_blocks(model, number)
    kept = {}
    own = {param.untyped_storage().data_ptr() for param in model.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = tensor, storage.nbytes()  # alive, so that no address is used again
        return tensor.detach()

    engine, *_ = initialize(model, config={"train_batch_size": 1})
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss_of(kind, engine, 0)
    return sum(nbytes for address, (_, nbytes) in kept.items() if address not in own)


def test_a_checkpointed_block_keeps_its_input():
    """Blocks of width 8 on 2 x 8 tokens: 512 bytes each, where they would keep 16 times as much and more."""
    plain, one, every = saved_bytes("ours", None, checkpoint=False), saved_bytes("ours", 1), saved_bytes("ours", None)
    assert plain - one > 15 * 512 and plain - every > BLOCKS * 15 * 512
    assert (plain - one) * (BLOCKS - 1) < plain - every, "one block is not every block"


def test_what_cannot_be_checkpointed_is_refused():
    with pytest.raises(BadInput, match="asks for every block: Linear has no blocks"):
        checkpoint_blocks(nn.Linear(2, 2))
    with pytest.raises(BadInput, match="asks for 4 of them: Habits has 3 blocks"):
        checkpoint_blocks(Habits(), 4)
    with pytest.raises(BadInput, match="asks for every block"):
        initialize(nn.Linear(2, 2), config={"train_batch_size": 1,
                                            "activation_checkpointing": {"number_checkpoints": None}})


def test_blocks_with_batch_statistics_may_keep_their_products():
    """The copies of the statistics, on which a block is computed again, are no part of what selective checkpointing sees."""
    found = []
    for context in ({}, {"context": saving()}):
        model = Habits()
        checkpoint_blocks(model, **context)
        torch.manual_seed(5)
        model(torch.ones(4, 5) * torch.arange(4)[:, None]).backward()
        found.append([*(param.grad for param in model.parameters() if param.requires_grad), *model.buffers()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_names_and_the_cache():
    model = hugging_face()
    assert checkpoint_blocks(model, 2) == ["transformer.h.0", "transformer.h.1"]
    assert model.config.use_cache is False
    tokens = torch.arange(1, 5)[None]
    assert model.generate(tokens, max_new_tokens=3, do_sample=False).tolist() == hugging_face().generate(
        tokens, max_new_tokens=3, do_sample=False).tolist()
