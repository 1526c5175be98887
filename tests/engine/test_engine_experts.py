"""`expert_parallel` in a config: the engine's training equals one process, and what is saved knows experts by their numbers."""

import re
import warnings

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, MixtralConfig

import zerocourse
from zerocourse.course.chapters.experts.small_mixtures import mixture_model
from zerocourse.engine.config import Config
from zerocourse.engine.config.rules import groups_of_experts
from zerocourse.launch import RankError
from zerocourse.layout.mesh import Mesh

ROWS, LENGTH, STEPS = 8, 12, 3


def built(kind: str) -> nn.Module:
    """In fp64, so that another order of a sum is no other training."""
    if kind == "gpt":
        return mixture_model().double()
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(MixtralConfig(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        num_local_experts=4, initializer_range=0.2), experts_implementation="eager").double()  # grouped_mm knows no fp64


def loss_of(model, tokens: torch.Tensor, kind: str) -> torch.Tensor:
    return model(tokens[:, :-1], tokens[:, 1:]) if kind == "gpt" else model(input_ids=tokens, labels=tokens).loss


def samples(step: int) -> torch.Tensor:
    return torch.randint(64, (ROWS, LENGTH), generator=torch.Generator().manual_seed(step))


def adamw(params) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-2)


def engine_of(kind: str, ep: int, stage: int, optimizer=adamw, experts: dict | None = None, model: nn.Module | None = None, zero: dict | None = None,
              **keys):
    experts = {"enabled": True, "autoep_size": ep} if experts is None else experts
    config = {"train_batch_size": ROWS, "gradient_clipping": 0.5, "zero_optimization": {"stage": stage} | (zero or {}), "expert_parallel": experts}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return zerocourse.initialize(model or built(kind), optimizer, config=config | keys)[0]


def train(engine, kind: str, steps: range = range(STEPS)) -> tuple[list[float], list[float]]:
    """The mean losses of all ranks, and the norms."""
    losses, norms = [], []
    for step in steps:
        mean = 0.0
        for tokens in samples(step).chunk(engine.world_size)[engine.global_rank].chunk(engine.gradient_accumulation_steps()):
            mean += engine.backward(loss_of(engine, tokens, kind)).item()
            engine.step()
        norms.append(engine.get_global_grad_norm())
        losses.append(sum(engine.zero.comm.all_gather_object(mean)) / engine.world_size)
    return losses, norms


def one_process(kind: str, steps: int = STEPS) -> tuple[list[float], list[float], dict]:
    model, losses, norms = built(kind), [], []
    optimizer = adamw(model.parameters())
    for step in range(steps):
        loss = loss_of(model, samples(step), kind)
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms, model.state_dict()


def equals(results, kind: str, first: int = 0) -> None:
    losses, norms, weights = one_process(kind, first + STEPS)
    for (ours, our_norms), state in results:
        assert ours == pytest.approx(losses[first:], rel=1e-6)
        assert our_norms == pytest.approx(norms[first:], rel=1e-6)
        assert state.keys() == weights.keys()
        assert all((value - weights[name]).abs().max() < 1e-6 for name, value in state.items())


def on_ranks(kind: str, ep: int, stage: int, options: dict):
    engine = engine_of(kind, ep, stage, **options)
    return train(engine, kind), engine.state_dict()


@pytest.mark.parametrize("kind, ranks, ep, stage, options", (
    *((kind, ranks, 2, stage, {}) for kind in ("gpt", "mixtral") for ranks in (2, 4) for stage in (1, 3)), ("mixtral", 4, 2, 2, {}),
    ("gpt", 4, 4, 0, {}), ("gpt", 4, 2, 2, {"use_data_before_expert_parallelism": True}), ("gpt", 2, 2, 3, {"activation_checkpointing": {}}),
    ("gpt", 2, 2, 2, {"zero": {"offload_optimizer": {"device": "cpu"}}}), ("gpt", 2, 1, 2, {}),
    ("mixtral", 2, 2, 2, {"gradient_accumulation_steps": 2})))
def test_equals_one_process(pool, kind, ranks, ep, stage, options):
    equals(pool(ranks).run(on_ranks, kind, ep, stage, options), kind)


def held(optimizer_first: bool) -> tuple[dict, dict, list[str]]:
    """Bytes of memory and of what was sent, and the names of parameters with experts that others have not."""
    model = built("gpt")
    engine = engine_of("gpt", 2, 2, adamw(model.parameters()) if optimizer_first else adamw, model=model)
    train(engine, "gpt")
    cut = [name for name, param in engine.module.named_parameters() if hasattr(param, "expert_comm")]
    params = dict(engine.module.named_parameters())
    assert all(zerocourse.safe_get_full_fp32_param(params[name]).shape == params[name].shape for name in cut)
    return engine.memory(), engine.communication(), cut


def test_a_rank_holds_its_experts_and_says_what_its_tokens_sent(pool):
    model = built("gpt")
    experts = sum(param.numel() for name, param in model.named_parameters() if ".experts." in name)
    rest = sum(param.numel() for param in model.parameters()) - experts
    for memory, sent, cut in pool(4).run(held, True):
        assert len(cut) == 4, "two matrices of each layer"
        assert memory["parameters_bytes"] == pytest.approx(8 * (rest + experts / 2), rel=1e-3)
        assert memory["optimizer_bytes"] == pytest.approx(16 * (rest + experts) / 4, rel=1e-2)
        assert sent["bytes_by_axis"].keys() == {"dp", "ep", "dp+ep"} and all(sent["bytes_by_axis"].values())
        assert sum(sent["bytes_by_axis"].values()) == sent["sent_bytes"] - sent["padding_bytes"]


def test_an_optimizer_that_was_made_before_has_the_same_parameters(pool):
    before, after = pool(2).run(held, True), pool(2).run(held, False)
    assert before == after


@pytest.mark.parametrize("data_first, groups", ((False, [[0, 1], [2, 3]]), (True, [[0, 2], [1, 3]])))
def test_who_is_in_a_group_with_whom(data_first, groups):
    config = Config.load({"train_batch_size": 4, "use_data_before_expert_parallelism": data_first,
                          "expert_parallel": {"enabled": True, "autoep_size": 2}}, 4)
    assert Mesh(groups_of_experts(config, 4)).groups("ep") == groups


def save(folder: str) -> None:
    engine = engine_of("mixtral", 2, 2)
    train(engine, "mixtral")
    engine.save_checkpoint(folder)


def go_on(folder: str, ep: int, stage: int):
    engine = engine_of("mixtral", ep, stage)
    engine.load_checkpoint(folder)
    return train(engine, "mixtral", range(STEPS, 2 * STEPS)), engine.state_dict()


def test_a_checkpoint_goes_on_with_other_groups(pool, tmp_path):
    pool(4).run(save, str(tmp_path))
    for ranks, ep, stage in ((4, 2, 2), (4, 4, 1), (2, 2, 3), (1, 1, 0)):
        equals(pool(ranks).run(go_on, str(tmp_path), ep, stage), "mixtral", STEPS)


REFUSED = {
    "groups": (lambda: engine_of("gpt", 3, 1), "expert_parallel.autoep_size is 3, and 2 ranks are no whole number of groups with 3 ranks each"),
    "no experts": (lambda: engine_of("gpt", 2, 1, model=nn.Linear(2, 2)), "Linear has no module with `num_experts` and 3-D parameters"),
    "slow links": (lambda: engine_of("gpt", 2, 3, zero={"zero_quantized_weights": True}), "zero_optimization asks for ZeRO++"),
    "router": (lambda: engine_of("gpt", 2, 3, experts={"enabled": True, "autoep_size": 2, "route_norm": False}),
               "expert_parallel.route_norm is not supported: the router is the model's own"),
    "tensors": (lambda: engine_of("gpt", 2, 3, experts={"enabled": True, "expert_tensor_parallel_size": 2}),
                "expert_parallel.expert_tensor_parallel_size is not supported yet: an expert is whole on its rank"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_does_not_do_is_refused(pool, name):
    with pytest.raises(RankError, match=re.escape(REFUSED[name][1])):
        pool(2).run(REFUSED[name][0])


def test_deepspeeds_defaults_change_nothing():
    """What DeepSpeed takes for a key that is left out is accepted; names of modules are, with a warning."""
    defaults = {"route_norm": None, "route_scale": 1.0, "routed_scaling_factor": "auto", "score_apply": "auto", "score_func": "auto", "top_k": "auto",
                "num_expert_groups": None, "num_limited_groups": None, "load_balance_coeff": None, "expert_tensor_parallel_size": 1,
                "expert_activation": None}
    engine_of("gpt", 1, 1, experts={"enabled": True, "autoep_size": 1} | defaults)
    with pytest.warns(UserWarning, match="are ignored: expert_parallel.preset_model, expert_parallel.use_grouped_mm"):
        zerocourse.initialize(built("gpt"), adamw, config={"train_batch_size": 1, "expert_parallel": {
            "preset_model": "mixtral", "use_grouped_mm": False}})
