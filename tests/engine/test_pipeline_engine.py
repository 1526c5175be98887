"""DeepSpeed's PipelineModule: `train_batch` and `eval_batch` give what one process gives on the same micro-batches."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from zerocourse.engine import initialize
from zerocourse.engine.pipeline_engine import PipelineEngine
from zerocourse.engine.pipeline_module import LayerSpec, PipelineModule, TiedLayerSpec
from zerocourse.engine.updates.schedules import SCHEDULES
from zerocourse.errors import BadInput

MICRO, GAS, STEPS = 2, 3, 3


def logits(embedding: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, embedding.weight)


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs.flatten(0, 1).float(), labels.flatten())


def net(num_stages: int, **more) -> PipelineModule:
    """Tokens to logits, by a tied embedding, two blocks, a function and a module that is there already."""
    torch.manual_seed(1)
    return PipelineModule([TiedLayerSpec("embed", nn.Embedding, 11, 6), LayerSpec(nn.Linear, 6, 6), torch.tanh, nn.LayerNorm(6),
                           LayerSpec(nn.Linear, 6, 6, bias=False), TiedLayerSpec("embed", nn.Embedding, 11, 6, forward_fn=logits)],
                          num_stages=num_stages, loss_fn=cross_entropy, **more)


def batches(rank: int):
    """Endless micro-batches of a data-parallel rank."""
    generator = torch.Generator().manual_seed(rank)
    while True:
        tokens = torch.randint(11, (MICRO, 5), generator=generator)
        yield tokens[:, :-1], tokens[:, 1:]


def settings(stage: int, **more) -> dict:
    return {"train_micro_batch_size_per_gpu": MICRO, "gradient_accumulation_steps": GAS, "gradient_clipping": 0.5,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "zero_optimization": {"stage": stage},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-3, "warmup_max_lr": 1e-2, "warmup_num_steps": 2}}, **more}


def train(num_stages: int, stage: int, **more) -> dict:
    engine, optimizer, _, scheduler = initialize(model=net(num_stages, **more), config=settings(stage))
    assert isinstance(engine, PipelineEngine) and optimizer is engine.optimizer and scheduler is engine.lr_scheduler
    data, found = batches(engine.data.rank), {"losses": [], "norms": [], "eval": []}
    for _ in range(STEPS):
        found["eval"].append(engine.eval_batch(batches(100 + engine.data.rank)))
        found["losses"].append(engine.train_batch(data_iter=data))
        found["norms"].append(engine.get_global_grad_norm())
    return found | {"steps": engine.global_steps, "lr": engine.get_lr(), "samples": engine.train_batch_size()}


def by_hand(replicas: int) -> dict:
    model, found = net(1), {"losses": [], "norms": [], "eval": []}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0)
    data = [batches(rank) for rank in range(replicas)]
    scheduler = SCHEDULES["WarmupLR"](optimizer, **settings(0)["scheduler"]["params"])
    for _ in range(STEPS):
        with torch.no_grad():
            evaluated = [next(each) for each in [batches(100 + rank) for rank in range(replicas)] for _ in range(GAS)]
            found["eval"].append(sum(cross_entropy(model(x), y).item() for x, y in evaluated) / len(evaluated))
        total = 0.0
        for each in data:
            for _ in range(GAS):
                x, y = next(each)
                loss = cross_entropy(model(x), y) / GAS / replicas
                loss.backward()
                total += loss.item()
        found["losses"].append(total)
        found["norms"].append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return found


@pytest.mark.parametrize("ranks, stages, zero", [(2, 2, 0), (2, 1, 1), (4, 2, 0), (4, 2, 1), (3, 3, 1)])
def test_equals_one_process(pool, ranks, stages, zero):
    expected = by_hand(ranks // stages)
    for found in pool(ranks).run(train, stages, zero):
        for name in ("losses", "norms", "eval"):
            assert found[name] == pytest.approx(expected[name], rel=1e-4), name
        assert found["steps"] == STEPS and found["samples"] == MICRO * GAS * ranks // stages


@pytest.mark.parametrize("more", [{"partition_method": "uniform"}, {"partition_method": "type:linear"}, {"activation_checkpoint_interval": 1}])
def test_cuts_and_recomputing_change_nothing(pool, more):
    assert pool(2).run(train, 2, 1, **more)[0]["losses"] == pytest.approx(by_hand(1)["losses"], rel=1e-4)


def from_a_dataset(half: dict) -> list[float]:
    torch.manual_seed(0)
    rows = torch.randint(11, (12, 5))
    dataset = torch.utils.data.TensorDataset(rows[:, :-1], rows[:, 1:])
    engine = initialize(model=net(2), config=settings(1) | half, training_data=dataset)[0]
    return [engine.train_batch() for _ in range(6)]


@pytest.mark.parametrize("half", [{}, {"bf16": {"enabled": True}}])
def test_a_dataset_is_read_again_and_again(pool, half):
    losses = pool(2).run(from_a_dataset, half)
    assert losses[0] == losses[1] and losses[0][-1] < losses[0][0]


def at_the_end_of_the_data() -> str:
    engine, *_ = initialize(model=net(3), config=settings(1))
    data = batches(0)
    engine.train_batch(data_iter=iter([next(data) for _ in range(GAS)]))
    try:
        engine.train_batch(data_iter=iter([next(data)]))
    except (StopIteration, BadInput) as error:
        return f"{type(error).__name__}: {error}"
    return "went on"


def test_no_stage_waits_at_the_end_of_the_data(pool):
    first, between, last = pool(3).run(at_the_end_of_the_data)
    assert first == last == "StopIteration: "
    assert between == "BadInput: rank 0 of 3 cannot run its part of the batch: StopIteration"


def mistakes() -> list[str]:
    said, model = [], lambda: net(2)
    engine = initialize(model=model(), config=settings(0))[0]
    for attempt in (lambda: engine.backward(1), engine.train_batch, lambda: engine.save_checkpoint("x"),
                    lambda: engine.eval_batch(batches(0), return_logits=True),
                    lambda: initialize(model=model(), config=settings(0) | {"fp16": {"enabled": True}}),
                    lambda: initialize(model=net(4), config=settings(0)),
                    lambda: initialize(model=model(), optimizer=torch.optim.SGD(model().parameters(), 0.1), config=settings(0)),
                    lambda: net(2, topology=object()), lambda: net(2, activation_checkpoint_interval=2),
                    lambda: net(2, partition_method="best").cuts(), lambda: LayerSpec(3), lambda: PipelineModule([3], 1, loss_fn=print),
                    lambda: initialize(model=model(), config=settings(1) | {
                        "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}),
                    lambda: initialize(model=net(1), config=settings(1) | {"expert_parallel": {"enabled": True, "autoep_size": 2}})):
        with pytest.raises(BadInput) as caught:
            attempt()
        said.append(str(caught.value))
    return said


def test_what_it_does_not_do_says_so(pool):
    for said in pool(2).run(mistakes):
        for sentence, words in zip(said, ("train_batch runs the backwards", "needs data_iter", "Parallel3D", "returns the mean loss", "no loss scale",
                                          "does not divide the 2 ranks", "give a function", "takes no topology", "0, or 1", "'type:REGEX'",
                                          "a class of torch.nn.Module", "a LayerSpec, a module", "keeps everything",
                                          "keeps all experts of a stage"), strict=True):
            assert words in sentence and "\n" not in sentence
