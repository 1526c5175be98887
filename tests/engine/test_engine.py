"""The engine: DeepSpeed's loop gives what the plain one on the whole batch gives, Hugging Face's models included."""

import copy
import warnings
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from worlds import Net, net_rows

import zerocourse
from zerocourse.comm import bootstrap as distributed
from zerocourse.engine import Engine, initialize
from zerocourse.errors import BadInput
from zerocourse.simulation.one_rank import step as accumulate_and_step
from zerocourse.zero.whole.consolidate import state_dict

STAGES = (0, 1, 2, 3)
MICRO = 2  # samples a rank and micro-batch
WINDOWS = (3, 3, 2, 3)  # micro-batches before each update: the third window is cut short
CLIP = 0.8


def rows(number: int, rank: int = 0) -> torch.Tensor:
    """A rank's micro-batch (MICRO, 5), of growing size, so that the norm is on both sides of the clip."""
    return net_rows(number, rank) * (0.3 + 0.1 * number)


def sgd(params) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.2, momentum=0.9)


def halving(optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def settings(stage: int, world_size: int, accumulation: int = 1, clip: float = 0.0, **more) -> dict:
    return {"train_batch_size": MICRO * accumulation * world_size, "gradient_accumulation_steps": accumulation,
            "gradient_clipping": clip, "zero_optimization": {"stage": stage}, **more}


def by_engine(stage: int) -> dict:
    """The loop as a user writes it, with an evaluation in the middle of each window."""
    model = Net()
    engine, optimizer, loader, scheduler = initialize(
        model, sgd, lr_scheduler=halving, config=settings(stage, dist.get_world_size(), max(WINDOWS), CLIP))
    assert loader is None and engine.optimizer is optimizer and engine.lr_scheduler is scheduler
    found, number = {"losses": [], "norms": [], "boundaries": [], "rates": []}, 0
    for window in WINDOWS:
        for micro in range(window):
            if micro == 1:
                with torch.no_grad():
                    engine.eval()(rows(1000))
                engine.train()
            if window < max(WINDOWS) and micro == window - 1:
                engine.set_gradient_accumulation_boundary(True)
            loss = engine(rows(number, engine.global_rank))
            found["losses"].append(loss.item())
            found["boundaries"].append(engine.is_gradient_accumulation_boundary())
            engine.backward(loss)
            engine.step()
            number += 1
        found["norms"].append(engine.get_global_grad_norm())
        found["rates"].append(optimizer.param_groups[0]["lr"])
    counts = engine.global_steps, engine.micro_steps, engine.zero_stage, engine.world_size, str(engine.device)
    return found | {"counts": counts, "state": engine.state_dict()}


def by_hand(world_size: int) -> dict:
    """The unsharded model on all ranks' samples of a window at once."""
    model = Net()
    optimizer = sgd(model.parameters())
    scheduler, first, found = halving(optimizer), 0, {"norms": [], "rates": [], "losses": []}
    for window in WINDOWS:
        numbers = range(first, first + window)
        found["losses"] += [[model(rows(number, rank)).item() for rank in range(world_size)] for number in numbers]
        whole = torch.cat([rows(number, rank) for number in numbers for rank in range(world_size)])
        model(whole).backward()
        found["norms"].append(nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        found["rates"].append(optimizer.param_groups[0]["lr"])
        first += window
    return found | {"state": model.state_dict()}


@pytest.mark.parametrize("stage", STAGES)
def test_the_loop_equals_the_plain_one(pool, stage):
    """Accumulation, clipping, a scheduler, evaluations, and a short window with whole ones after it."""
    exact = by_hand(2)
    assert min(exact["norms"]) < CLIP < max(exact["norms"]), "clipping must matter in some windows, and not in all"
    of_ranks = pool(2).run(by_engine, stage)
    assert [list(pair) for pair in zip(*(found["losses"] for found in of_ranks))] == [
        pytest.approx(pair, rel=1e-5) for pair in exact["losses"]]
    for found in of_ranks:
        assert found["norms"] == pytest.approx(exact["norms"], rel=1e-5)
        assert found["rates"] == exact["rates"]
        assert found["boundaries"] == [micro == window - 1 for window in WINDOWS for micro in range(window)]
        assert found["counts"] == (len(WINDOWS), sum(WINDOWS), stage, 2, "cpu")
        assert list(found["state"]) == list(exact["state"])
        largest = max(value.abs().max() for value in exact["state"].values())
        for name, value in exact["state"].items():
            assert (found["state"][name] - value).abs().max() <= 1e-6 * largest, name


# --- Hugging Face ---

COMMON = {"vocab_size": 23, "bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.2}


def hugging_face(kind: str) -> nn.Module:
    torch.manual_seed(2)
    if kind.startswith("gpt2"):
        return GPT2LMHeadModel(GPT2Config(
            n_layer=2, n_head=2, n_embd=8, n_positions=12, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
            tie_word_embeddings=kind == "gpt2 tied", **COMMON))
    return LlamaForCausalLM(LlamaConfig(
        hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=12, tie_word_embeddings=kind == "llama tied", **COMMON))


KINDS = ("gpt2 tied", "gpt2 untied", "llama tied", "llama untied")


def tokens(step: int, rank: int) -> torch.Tensor:
    return torch.randint(1, 23, (MICRO, 9), generator=torch.Generator().manual_seed(31 * step + rank))


def train_hugging_face(kind: str, stage: int) -> dict:
    engine, *_ = initialize(hugging_face(kind), sgd, config=settings(stage, dist.get_world_size()))
    losses, cached = [], []
    for step in range(3):
        ids = tokens(step, engine.global_rank)
        output = engine(input_ids=ids, labels=ids, use_cache=True)
        cached.append(output.past_key_values is not None and output.past_key_values.get_seq_length())
        engine.backward(output.loss)
        engine.step()
        losses.append(output.loss.item())
    engine.eval()
    with torch.no_grad():
        logits = engine(tokens(9, 0)).logits
    return {"losses": losses, "state": engine.state_dict(), "logits": logits, "cached": cached}


def train_unsharded(kind: str, world_size: int) -> tuple[list, dict]:
    model = hugging_face(kind)
    optimizer, losses = sgd(model.parameters()), []
    for step in range(3):
        of_ranks = [model(input_ids=tokens(step, rank), labels=tokens(step, rank)).loss for rank in range(world_size)]
        torch.stack(of_ranks).mean().backward()  # without clipping, which would hide a wrong scale
        optimizer.step()
        optimizer.zero_grad()
        losses.append([loss.item() for loss in of_ranks])
    return losses, model.state_dict()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_hugging_face_models(pool, kind, stage):
    losses, state = train_unsharded(kind, 2)
    assert all(abs(first - last) > 1e-3 for first, last in zip(losses[0], losses[-1])), "it must train at all"
    of_ranks = pool(2).run(train_hugging_face, kind, stage)
    assert [list(pair) for pair in zip(*(found["losses"] for found in of_ranks))] == [
        pytest.approx(pair, rel=1e-5) for pair in losses]
    for found in of_ranks:
        assert found["cached"] == [9, 9, 9], "the outputs hold what use_cache asked for"
        assert list(found["state"]) == list(state)
        for name, value in state.items():
            torch.testing.assert_close(found["state"][name], value, rtol=1e-4, atol=1e-6)
        fresh = hugging_face(kind)
        with torch.no_grad():
            for param in fresh.parameters():
                param.fill_(5.0)
        fresh.load_state_dict(found["state"])
        with torch.no_grad():
            logits = fresh.eval()(tokens(9, 0)).logits
        assert torch.equal(logits, found["logits"]), "a fresh model continues where this one is"
        tied = fresh.get_output_embeddings().weight is fresh.get_input_embeddings().weight
        assert tied == (not kind.endswith("untied"))


# --- what a window sends ---

def window_of(stage: int, drives: bool) -> dict:
    """Two windows of four micro-batches, by the engine, or by the loop that `zerocourse simulate` runs: the collectives of the
    second one, its bytes, and the weights after it."""
    model = Net()
    if drives:
        engine, *_ = initialize(model, sgd, config=settings(stage, dist.get_world_size(), 4))
        stage_of_model = engine.zero
    else:
        model, optimizer = zerocourse.shard(model, sgd(model.parameters()), stage=stage)
        stage_of_model = model.zero
    comm, rank = stage_of_model.comm, dist.get_rank()
    for window in range(2):
        before, sent, padding = len(comm.issued), comm.sent.total(), comm.padding
        batches = iter(rows(4 * window + number, rank) for number in range(4))
        if drives:
            for batch in batches:
                engine.backward(engine(batch))
                engine.step()
        else:
            accumulate_and_step(model, optimizer, lambda model, _: model(next(batches)), None, 4)
    return {"calls": list(comm.issued)[before:], "sent": (comm.sent.total() - sent, comm.padding - padding), "state": state_dict(model)}


@pytest.mark.parametrize("stage", STAGES)
def test_a_window_agrees_once_and_sends_what_is_simulated(pool, stage):
    for by_the_engine, simulated in zip(pool(2).run(window_of, stage, True), pool(2).run(window_of, stage, False), strict=True):
        norm = ("all_reduce_sum", "", 1, torch.float32)  # which only an engine asks for; each rank of stage 0 knows it
        assert [call for call in by_the_engine["calls"] if call != norm] == simulated["calls"]
        assert by_the_engine["calls"].count(norm) == (stage > 0)
        flags = [call for call in by_the_engine["calls"] if call[0] == "all_reduce_max" and call[3] is torch.uint8]
        assert len(flags) == 1, "four micro-batches agree once, at the step"
        assert by_the_engine["sent"] == simulated["sent"]
        for name, value in by_the_engine["state"].items():
            assert torch.equal(value, simulated["state"][name]), name


# --- what one may ask ---

def measured(stage: int) -> dict:
    engine, *_ = initialize(Net(), torch.optim.AdamW, config=settings(stage, dist.get_world_size()))
    before = engine.communication()
    loss = engine(rows(0, engine.global_rank))
    engine.backward(loss)
    gradients = engine.memory()["gradients_bytes"]
    engine.step()
    after = engine.communication()
    layouts = [flat.layout for flat in engine.zero.flats]
    row = sum(layout.padded for layout in layouts)
    return {"memory": engine.memory(), "gradients": gradients, "row": row, "own": row // dist.get_world_size(),
            "real": sum(layout.real(dist.get_rank()) for layout in layouts), "before": before, "after": after}


@pytest.mark.parametrize("stage", STAGES)
def test_bytes_held_and_sent(pool, stage):
    """In fp32 with AdamW: 4 bytes a parameter, 4 a gradient, 8 of states, on the whole row or on a rank's slice.

    Padding has no states, because the optimizer sees parameters only.
    """
    of_ranks = pool(3).run(measured, stage)
    params = sum(param.numel() for param in Net().parameters())
    for found in of_ranks:
        row, own, memory = found["row"], found["own"], found["memory"]
        assert params <= row < params + 3 * 3, "a little padding, in each of three units"
        assert memory["parameters_bytes"] == 4 * (own if stage == 3 else row)
        assert memory["optimizer_bytes"] == 8 * (found["real"] if stage >= 1 else params)
        assert found["gradients"] == 4 * (own if stage >= 2 else row) and memory["gradients_bytes"] == 0
        assert memory["total_bytes"] == sum(value for key, value in memory.items() if key != "total_bytes")
        after = found["after"]
        assert after["sent_bytes"] == sum(after["by_collective"].values()) and found["before"]["sent_bytes"] == 0
        assert set(after) == {"sent_bytes", "by_collective", "padding_bytes", "metadata_bytes"}
        values = [*memory.values(), *after.pop("by_collective").values(), *after.values()]
        assert {type(value) for value in values} == {int}
    # All ranks together send 2Ψ(N-1) elements a step, and stage 3 3Ψ(N-1).
    assert sum(found["after"]["sent_bytes"] for found in of_ranks) == 4 * (3 if stage == 3 else 2) * 2 * params


def test_a_scheduler_that_is_at_its_end_spoils_no_later_step(alone):
    def two_steps(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=2)

    engine, *_ = initialize(Net(), partial(torch.optim.SGD, lr=0.0), lr_scheduler=two_steps, config=settings(1, 1))
    norms = []
    for step in range(4):
        engine.backward(engine(rows(0)))
        with pytest.raises(ValueError) if step > 1 else nullcontext():
            engine.step()
        norms.append(engine.get_global_grad_norm())
        engine.optimizer.param_groups[0]["lr"] = 0.0  # nothing but the scale of the gradients could change the norm
        assert engine.global_steps == step + 1
    assert len(set(norms[1:])) == 1


def fed() -> dict:
    """Twelve samples and one too many, two epochs, on two ranks with two samples each."""
    data = [(torch.full((5,), float(number)), number) for number in range(13)]
    world = dist.group.WORLD
    config = settings(2, dist.get_world_size())
    engine, _, loader, _ = initialize(Net(), torch.optim.SGD, training_data=data, config=config)
    seen = []
    for _ in range(2):
        epoch = []
        for x, number in loader:
            assert x.shape == (engine.train_micro_batch_size_per_gpu(), 5)
            engine.backward(engine(x))
            engine.step()
            epoch.append(number.tolist())
        seen.append(epoch)
    return {"seen": seen, "batches": len(loader), "same group": dist.group.WORLD is world,
            "sizes": (engine.train_batch_size(), engine.gradient_accumulation_steps()),
            "steps": engine.global_steps, "rank": (engine.global_rank, engine.local_rank, engine.world_size)}


def test_the_loader_and_a_group_that_is_there(pool):
    of_ranks = pool(2).run(fed)
    for rank, found in enumerate(of_ranks):
        assert found["same group"] and found["rank"] == (rank, rank, 2)
        assert found["batches"] == 3 and found["steps"] == 6 and found["sizes"] == (4, 1)
    epochs = [sorted(sum(here, []) + sum(there, [])) for here, there in zip(*(found["seen"] for found in of_ranks))]
    for epoch in epochs:
        assert len(set(epoch)) == 12, "each sample once, whichever rank has it"
    assert of_ranks[0]["seen"][0] != of_ranks[0]["seen"][1], "another order each epoch"


def disagree() -> str:
    config = settings(1, dist.get_world_size(), accumulation=1 + dist.get_rank())
    try:
        initialize(Net(), sgd, config=config)
    except BadInput as error:
        return str(error)
    return "nothing"


def test_ranks_that_disagree_on_the_config(pool):
    sentence = ("the ranks disagree on the config: train_batch_size is 4 on rank 0 and 8 on rank 1; "
                "give every rank the same")
    assert pool(2).run(disagree) == [sentence] * 2


# --- one rank, in this process ---

@pytest.fixture
def alone(monkeypatch):
    """No process group, and none of torchrun's variables; what `initialize` starts ends with the test."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert not dist.is_initialized()
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def make(stage: int = 0, optimizer=sgd, **more) -> Engine:
    return initialize(Net(), optimizer, config=settings(stage, 1, **more))[0]


@pytest.mark.parametrize("stage", STAGES)
def test_outside_torchrun_there_is_one_rank(alone, stage):
    as_deepspeed, model = zerocourse, Net()
    optimizer = sgd(model.parameters())
    engine, same, loader, scheduler = as_deepspeed.initialize(
        model=model, optimizer=optimizer, model_parameters=model.parameters(), config=settings(stage, 1))
    assert same is optimizer and engine.module is model and loader is scheduler is None
    assert (engine.world_size, engine.global_rank, engine.local_rank, engine.zero_stage) == (1, 0, 0, stage)
    plain = Net()
    plain_sgd = sgd(plain.parameters())
    for step in range(3):
        engine.backward(engine(rows(step)))
        engine.step()
        plain(rows(step)).backward()
        plain_sgd.step()
        plain_sgd.zero_grad()
    for name, value in plain.state_dict().items():
        assert torch.equal(engine.state_dict()[name], value), "one rank computes what the plain loop does, bitwise"
    assert engine.communication()["sent_bytes"] == 0


def test_a_group_of_the_user_with_one_rank_is_used(alone):
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    group = dist.group.WORLD
    make()
    assert dist.group.WORLD is group


def test_the_optimizer_and_the_scheduler_may_be_made_by_functions(alone):
    model = Net()
    some = list(model.last.parameters())
    engine, optimizer, _, scheduler = initialize(model, partial(torch.optim.SGD, lr=0.5), model_parameters=iter(some),
                                                 lr_scheduler=halving, config=settings(0, 1))
    before = engine.state_dict()
    engine.backward(engine(rows(0)))
    engine.step()
    moved = {name for name, value in engine.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"last.weight", "last.bias"} and optimizer.param_groups[0]["lr"] == 0.25
    assert isinstance(scheduler, torch.optim.lr_scheduler.ExponentialLR)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ArithmeticError("planted")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("where", ["at the loss", "in the model"])
def test_after_a_failed_backward_the_window_begins_anew(alone, stage, where):
    engine = make(stage, accumulation=2)
    engine.backward(engine(rows(0)))
    engine.step()
    forward = engine.module.blocks[0].forward
    with pytest.raises(ArithmeticError, match="planted"):
        if where == "in the model":
            engine.module.blocks[0].forward = lambda x: Fails.apply(forward(x))
        loss = engine(rows(1))
        engine.module.blocks[0].forward = forward
        engine.backward(loss if where == "in the model" else Fails.apply(loss))
    assert engine.global_steps == 0
    for number in (2, 3):
        engine.backward(engine(rows(number)))
        engine.step()
    assert engine.global_steps == 1
    plain = Net()
    optimizer = sgd(plain.parameters())
    ((plain(rows(2)) + plain(rows(3))) / 2).backward()
    optimizer.step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(engine.state_dict()[name], value, rtol=1e-6, atol=1e-7)


def step_twice(engine):
    engine.backward(engine(rows(0)))
    engine.step()
    engine.step()


def detached(engine):
    with torch.no_grad():
        loss = engine(rows(0))
    engine.backward(loss)


@pytest.mark.parametrize("stage", STAGES)
def test_the_norm_is_there_without_clipping(alone, stage):
    engine, model = make(stage, clip=0.0), Net()
    engine.backward(engine(rows(0)))
    engine.step()
    model(rows(0)).backward()
    assert engine.get_global_grad_norm() == pytest.approx(nn.utils.get_total_norm([param.grad for param in model.parameters()]).item())


@pytest.mark.parametrize("mistake, words", [
    (lambda engine: engine.backward(engine(rows(0)).expand(3)), ["one element", "shape (3,)"]),
    (lambda engine: engine.backward(0.5), ["the loss", "a float"]),
    (lambda engine: engine.backward(None), ["the loss", "a NoneType"]),
    (detached, ["without a gradient", "no_grad"]),
    (step_twice, ["engine.step was called without engine.backward"]),
    (lambda engine: engine.step(), ["engine.step was called without engine.backward"]),
    (lambda engine: engine.loader(iter([1])), ["training_data is a list_iterator", "map-style"]),
    (lambda engine: engine.loader([1]), ["1 samples make no batch"]),
])
def test_a_mistake_in_the_loop_is_named(alone, mistake, words):
    with pytest.raises(BadInput) as caught:
        mistake(make())
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


def test_backward_needs_step_only_after_it_worked(alone):
    engine = make()
    loss = engine(rows(0))
    with pytest.raises(BadInput):
        engine.backward(loss.expand(2))
    engine.backward(loss)
    engine.step()
    with pytest.raises(RuntimeError, match="second time"):
        engine.backward(loss)
    engine.backward(engine(rows(1)))
    engine.step()
    assert engine.global_steps == 2


def test_no_optimizer_is_for_looking_only(alone):
    engine = make(3, optimizer=None)
    loss = engine(rows(0))
    engine.backward(loss)
    with pytest.raises(BadInput, match="engine.step has no optimizer"):
        engine.step()
    assert engine.optimizer is None and engine.memory()["optimizer_bytes"] == 0


@pytest.mark.parametrize("arguments, words", [
    (lambda: {"config": None}, ["config="]),
    (lambda: {"config": "no such file.json"}, ["no such file.json", "cannot be read"]),
    (lambda: {"config": None, "args": SimpleNamespace(deepspeed_config="theirs.json")}, ["theirs.json", "cannot be read"]),
    (lambda: {"config": settings(4, 1)}, ["zero_optimization.stage is 4"]),
    (lambda: {"optimizer": sgd(Net().parameters())}, ["parameter group 0", "not a parameter of the model"]),
    (lambda: {"optimizer": "AdamW"}, ["optimizer is a str", "torch optimizer"]),
    (lambda: {"model": lambda x: x}, ["initialize needs model=", "function"]),
    (lambda: {"training_data": iter([1])}, ["map-style"]),
])
@pytest.mark.parametrize("stage", [0, 3])
def test_bad_arguments_are_named(alone, stage, arguments, words):
    given = {"model": Net(), "optimizer": sgd, "config": settings(stage, 1)} | arguments()
    with pytest.raises(BadInput) as caught:
        initialize(**given)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_model_is_initialised_once(alone):
    engine = make(1)
    with pytest.raises(BadInput, match="sharded already"):
        initialize(engine.module, sgd, config=settings(1, 1))


def test_the_config_is_not_changed_and_warns_once(alone):
    config = settings(2, 1, steps_per_print=10)
    before = copy.deepcopy(config)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        initialize(Net(), sgd, config=config)
    ours = [str(warning.message) for warning in caught if "of the config" in str(warning.message)]
    assert len(ours) == 1 and "steps_per_print" in ours[0] and config == before


def test_the_local_rank_comes_from_the_launcher(alone, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert distributed.local_rank() == 3 and make().local_rank == 3


def updates_by_script(stage: int, offload: str = "none") -> list[torch.Tensor]:
    """A script that counts micro-batches itself, 3 for each update but one, where it makes 1. Returns the weights."""
    zero = {"stage": stage, "offload_optimizer": {"device": offload}} if stage else {"stage": stage}
    engine, *_ = initialize(Net(), sgd, config=settings(0, dist.get_world_size(), 3) | {
        "zero_optimization": zero, "managed_gradient_accumulation": False})
    number = 0
    for window in (3, 1, 3):
        for _ in range(window):
            engine.backward(engine(rows(number, engine.global_rank)))
            assert not engine.is_gradient_accumulation_boundary()
            number += 1
        engine.step()
        assert engine.was_step_applied()
    assert engine.global_steps == 3
    with pytest.raises(BadInput, match="set_gradient_accumulation_boundary was called, .* managed_gradient_accumulation is false"):
        engine.set_gradient_accumulation_boundary(True)
    return list(engine.state_dict().values())


def test_every_step_updates_where_the_script_counts_micro_batches(pool):
    model, ranks = Net(), 2
    optimizer, number = sgd(model.parameters()), 0
    for window in (3, 1, 3):
        for _ in range(window):
            for rank in range(ranks):
                (model(rows(number, rank)) / (3 * ranks)).backward()
            number += 1
        optimizer.step()
        optimizer.zero_grad()
    wanted = list(model.state_dict().values())
    for stage, offload in [(0, "none"), (1, "none"), (2, "none"), (3, "none"), (2, "cpu")]:
        for found in pool(ranks).run(updates_by_script, stage, offload):
            assert all(torch.allclose(*pair, rtol=1e-5, atol=1e-6) for pair in zip(found, wanted, strict=True)), (stage, offload)
