"""Precision: the loss scale and its rules, training in fp16, the dtypes of gradients, and simulated fp8."""

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
import worlds
from torch import nn
from worlds import Case, Net, Stack, check_exact, net_rows, squares

import zerocourse
from zerocourse.engine.config import Config
from zerocourse.engine.config.explain import counts
from zerocourse.errors import BadInput, LossScaleError
from zerocourse.measure.storages import raw_grad
from zerocourse.models.gpt2 import CONFIGS
from zerocourse.precision import DynamicLossScaler, LossScaler
from zerocourse.precision.fp8 import cast, mx_cast, mx_scales, simulate
from zerocourse.precision.loss_scaler import LONGEST_ROW
from zerocourse.zero.buffers.buffer import FlatBuffer
from zerocourse.zero.options import refuse_emulated_bf16

STAGES = (0, 1, 2, 3)
CLIP = 0.75

# -- the loss scaler ---------------------------------------------------------------------------------------------------

SCRIPTS = [  # settings; what each step does, "x" overflows and "." does not; the scale after each step
    # hysteresis 1: every overflow halves; after a window the scale doubles, one step late, as DeepSpeed counts
    ({"initial": 8, "window": 2, "hysteresis": 1}, "x..x.......", [4, 4, 4, 2, 2, 2, 4, 4, 8, 8, 16]),
    # before the first overflow the count begins at the first step
    ({"initial": 8, "window": 3, "hysteresis": 1}, ".......", [8, 8, 8, 16, 16, 16, 32]),
    # the first overflow is tolerated, the second and the third are not: hysteresis comes back with a rise only
    ({"initial": 16, "window": 2, "hysteresis": 2}, "xx.x...x", [16, 8, 8, 4, 4, 4, 8, 8]),
    # ... or with each good step
    ({"initial": 16, "window": 9, "hysteresis": 2, "consecutive_hysteresis": True}, "x.x.xx.x",
     [16, 16, 16, 16, 16, 8, 8, 8]),
    # the minimum need not be a power of two
    ({"initial": 16, "hysteresis": 1, "minimum": 3}, "xxx", [8, 4, 3]),
    ({}, "xxxx" + "." * 1001, [2**16, 2**15, 2**14, 2**13] + [2**13] * 1000 + [2**14]),
]


@pytest.mark.parametrize("settings, steps, scales", SCRIPTS)
def test_the_scale_follows_its_rules(settings, steps, scales):
    scaler, found = DynamicLossScaler(**settings), []
    for step in steps:
        scaler.update(step == "x")
        found.append(scaler.loss_scale)
        again = DynamicLossScaler(**settings)
        again.load_state_dict(scaler.state_dict())
        scaler = again  # whatever matters is in the state
    assert found == scales


def test_a_scale_at_its_minimum_cannot_fall():
    scaler = DynamicLossScaler(initial=2, hysteresis=2)
    for _ in range(2):
        scaler.update(True)
    with pytest.raises(LossScaleError, match="loss scale 1, which is already at minimum .fp16.min_loss_scale."):
        scaler.update(True)
    with pytest.raises(BadInput, match="smallest loss scale, 4, is above the first one, 2"):
        DynamicLossScaler(initial=2, minimum=4)
    with pytest.raises(BadInput, match="the loss scale is 0"):
        LossScaler(0)


def test_a_static_scale_stays():
    scaler = LossScaler(128)
    scaler.update(True)
    scaler.load_state_dict(DynamicLossScaler().state_dict())
    assert scaler.loss_scale == 128 and not scaler.dynamic and scaler.state_dict() == {}
    dynamic = DynamicLossScaler()
    dynamic.load_state_dict(scaler.state_dict())
    assert dynamic.loss_scale == 2**16


def test_a_static_scale_does_not_skip_for_ever():
    scaler = LossScaler(2.0**100)
    for _ in range(2):  # a good step begins the count anew
        for _ in range(LONGEST_ROW - 1):
            scaler.update(True)
        scaler.update(False)
    for _ in range(LONGEST_ROW - 1):
        scaler.update(True)
    with pytest.raises(LossScaleError, match="overflowed in 20 steps in a row at the loss scale 1.26765e.30, which is static"):
        scaler.update(True)


# -- fp16 through the engine -------------------------------------------------------------------------------------------

def adamw(params) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=0.01)


def sgd(params) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def halving(optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def engine_of(stage: int, optimizer=sgd, fp16: dict | None = None, **settings) -> zerocourse.Engine:
    fp16 = {"enabled": True, "auto_cast": True, "initial_scale_power": 10, "hysteresis": 1} if fp16 is None else fp16
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.0, "zero_optimization": {"stage": stage},
              "fp16": fp16} | settings
    return zerocourse.initialize(Net(), optimizer, config=config, lr_scheduler=halving)[0]


def trained(stage: int, scale: float, clip: float, accumulation: int, steps: int = 3) -> tuple[dict, list[float]]:
    """Final weights and norms under a static loss scale."""
    engine = engine_of(stage, fp16={"enabled": True, "auto_cast": True, "loss_scale": scale}, gradient_clipping=clip,
                       gradient_accumulation_steps=accumulation)
    norms = []
    for number in range(steps * accumulation):
        engine.backward(engine(net_rows(number, engine.global_rank)))
        engine.step()
        if engine.was_step_applied():
            norms.append(engine.get_global_grad_norm())
    assert engine.skipped_steps == 0 and engine.loss_scale() == scale and not engine.dynamic_loss_scale()
    return engine.state_dict(), norms


def scaled_and_not() -> list:
    """By stage: with accumulation and clipping, and the same under another scale."""
    return [[trained(stage, scale, CLIP, 2) for scale in (1024.0, 256.0)] for stage in STAGES]


def by_hand(world_size: int, clip: float, accumulation: int, steps: int = 3) -> tuple[dict, list[float]]:
    """The unsharded model in fp32, on all ranks' samples of a window at once."""
    model, norms = Net(), []
    optimizer = sgd(model.parameters())
    scheduler = halving(optimizer)
    for step in range(steps):
        numbers = range(step * accumulation, (step + 1) * accumulation)
        model(torch.cat([net_rows(number, rank) for number in numbers for rank in range(world_size)])).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return model.state_dict(), norms


@pytest.mark.parametrize("world_size", (2, 3))
def test_fp16_trains_as_fp32_does_at_all_stages_under_any_scale(pool, world_size):
    exact, norms = by_hand(world_size, CLIP, 2)
    assert min(norms) < CLIP < max(norms), "clipping must matter in some steps, and not in all"
    for found in pool(world_size).run(scaled_and_not):
        for stage, ((state, of_steps), (other, _)) in enumerate(found):
            assert of_steps == pytest.approx(norms, rel=5e-3), f"stage {stage}"
            for name, value in exact.items():
                assert state[name].dtype is torch.float16
                assert (state[name].float() - value).abs().max() <= 2e-3, f"stage {stage}, {name}"
                assert torch.equal(state[name], other[name]), "powers of two round nothing, so the scale cannot be seen"


def faint(scale: float) -> float:
    """How far fp32 weights move by gradients near 1e-10, which fp16 cannot hold, at a learning rate of 1e8."""
    fp16 = {"enabled": True, "auto_cast": True, "loss_scale": scale}
    engine = engine_of(2, lambda params: torch.optim.SGD(params, lr=1e8), fp16)
    before = [flat.master.clone() for flat in engine.zero.flats]
    engine.backward(engine(net_rows(0, engine.global_rank)) * 1e-9)
    engine.step()
    return max((flat.master - old).abs().max().item() for flat, old in zip(engine.zero.flats, before, strict=True))


def faint_pair() -> tuple[float, float]:
    return faint(1.0), faint(2.0**17)


def test_trap_18_the_loss_is_scaled_in_fp32_and_gradients_are_unscaled_in_fp32(pool):
    """2**17 is not even a number of fp16's; gradients that only exist scaled must reach the fp32 weights."""
    for without, scaled in pool(2).run(faint_pair):
        assert without == 0.0 and 0.01 < scaled < 1.0


def half_loss() -> tuple[int, float]:
    """A loss in fp16, with a scale that fp16 cannot hold, of which each of two micro-batches takes half."""
    fp16 = {"enabled": True, "auto_cast": True, "loss_scale": 2.0**16}
    engine = engine_of(1, sgd, fp16, gradient_accumulation_steps=2)
    for number in range(2):
        returned = engine.backward(engine(net_rows(number, engine.global_rank)).half() * 1e-3)
        engine.step()
    return engine.skipped_steps, returned.item()


def test_trap_18_a_loss_in_fp16_is_scaled_in_fp32_too(pool):
    for skipped, returned in pool(2).run(half_loss):
        assert skipped == 0 and 0 < returned < 1e-2, "what is returned is not scaled"


def scaled_between() -> list[float]:
    """By stage, the norm of a gradient g that is multiplied by 1/2 and to which g is added then; over that of g."""
    found = []
    for stage in STAGES:
        model, _ = zerocourse.shard(Own(), stage=stage, param_dtype=BF16)
        squares(model, 0, 0, dist.get_rank()).backward()
        norm = model.zero.grad_norm().item()
        model.zero.scale_gradients(0.5)
        half = model.zero.grad_norm().item()
        squares(model, 0, 0, dist.get_rank()).backward()
        found += [half / norm, model.zero.grad_norm().item() / norm]
    return found


def test_a_factor_is_on_the_gradients_that_were_there(pool):
    """In half precision it waits for fp32, but not for more gradients."""
    assert all(found == pytest.approx([0.5, 1.5] * 4, rel=1e-2) for found in pool(2).run(scaled_between))


STEPS = "..x.xx.."  # what each step does: "x" overflows, on rank 1 alone


def overflowing(stage: int, accumulation: int) -> dict:
    """Train with overflows on one rank, and look at everything that must not move."""
    fp16 = {"enabled": True, "auto_cast": True, "initial_scale_power": 8, "hysteresis": 2, "loss_scale_window": 2}
    engine = engine_of(stage, adamw, fp16, gradient_accumulation_steps=accumulation)
    found = {"scales": [], "overflow": [], "applied": [], "rates": [], "norms": [], "moved": []}
    for step, kind in enumerate(STEPS):
        before = [*(flat.master.clone() for flat in engine.zero.flats), *(
            value.clone() for state in engine.optimizer.state.values() for value in state.values())]
        for micro in range(accumulation):
            loss = engine(net_rows(step, engine.global_rank))
            if kind == "x" and micro == 0 and engine.global_rank == 1:
                loss = loss * 1e20  # in fp32 this is a number, in fp16 a gradient of it is not
            engine.backward(loss)
            engine.step()
        after = [*(flat.master for flat in engine.zero.flats), *(
            value for state in engine.optimizer.state.values() for value in state.values())]
        found["moved"].append(len(before) != len(after) or any(not torch.equal(*pair) for pair in zip(before, after)))
        found["scales"].append(engine.loss_scale())
        found["overflow"].append(engine.optimizer.overflow)
        found["applied"].append(engine.was_step_applied())
        found["rates"].append(engine.optimizer.param_groups[0]["lr"])
        found["norms"].append(engine.get_global_grad_norm())
        assert engine.optimizer.cur_scale == engine.loss_scale() == engine.loss_scaler.loss_scale
        assert engine.memory()["gradients_bytes"] == 0
    return found | {"counts": (engine.global_steps, engine.skipped_steps), "state": engine.state_dict()}


def all_overflowing() -> list[dict]:
    return [overflowing(stage, accumulation) for stage in STAGES for accumulation in (1, 2)]


def test_trap_17_an_overflow_on_one_rank_is_one_everywhere(pool):
    by_rank = pool(2).run(all_overflowing)
    good = [kind == "." for kind in STEPS]
    rates = [0.01 * 0.5 ** sum(good[:step + 1]) for step in range(len(STEPS))]
    for here, there in zip(*by_rank, strict=True):
        for found in (here, there):
            assert found["scales"] == [256, 256, 256, 256, 128, 64, 64, 64]
            assert found["moved"] == found["applied"] == [not each for each in found["overflow"]] == good
            assert found["rates"] == pytest.approx(rates)
            assert found["counts"] == (8, 3)
            assert all(norm < 100 for norm in found["norms"]), "the norm is that of the last good step"
        assert here["norms"] == there["norms"]
        assert all(torch.equal(value, there["state"][name]) for name, value in here["state"].items())


def bad_batches(stage: int, accumulation: int, checks: bool | None, kind: float, width: str | None = None) -> tuple:
    """bf16, where the second of four updates has inf or NaN on the last rank: what moved, and what was counted."""
    bf16 = {"enabled": True} | ({} if checks is None else {"check_grad_overflow": checks})
    engine = zerocourse.initialize(Net(), adamw, lr_scheduler=halving, config={
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": accumulation, "bf16": bf16,
        "zero_optimization": {"stage": stage}, "data_types": {"grad_accum_dtype": width}})[0]
    finite, overflow = [], []
    for step in range(4):
        for micro in range(accumulation):
            bad = step == 1 and micro == 0 and engine.global_rank == engine.world_size - 1
            engine.backward(engine(net_rows(step, engine.global_rank).bfloat16()).float() * (kind if bad else 1))
            engine.step()
        finite.append(all(value.isfinite().all().item() for value in engine.state_dict().values()))
        overflow.append(getattr(engine.optimizer, "overflow", None))
    return finite, overflow, engine.skipped_steps, engine.global_steps, round(engine.optimizer.param_groups[0]["lr"], 9)


def all_bad_batches() -> list[tuple]:
    return [bad_batches(stage, accumulation, checks, kind, width) for stage in STAGES
            for accumulation, checks, kind, width in [(1, None, float("inf"), None), (2, True, float("nan"), "fp32")]]


def test_in_bf16_a_step_with_inf_or_nan_is_skipped_on_all_ranks(pool):
    assert pool(2).run(all_bad_batches) == [[([True] * 4, [False, True, False, False], 1, 4, 0.00125)] * 8] * 2
    unchecked = pool(2).run(bad_batches, 2, 1, False, float("inf"))
    assert unchecked == [([True, False, False, False], [None] * 4, 0, 4, 0.000625)] * 2


def at_the_minimum() -> str:
    engine = engine_of(1, fp16={"enabled": True, "auto_cast": True, "initial_scale_power": 0, "hysteresis": 1})
    engine.backward(engine(net_rows(0, 0)) * float("inf" if engine.global_rank else 1))
    try:
        engine.step()
    except LossScaleError as error:
        return f"{engine.skipped_steps} {engine.memory()['gradients_bytes']} {error}"
    return "nothing"


def test_already_at_minimum_is_said_on_every_rank(pool):
    assert all(said.startswith("1 0 gradients overflow at the loss scale 1, which is already at minimum")
               for said in pool(2).run(at_the_minimum))


# -- the dtypes of gradients -------------------------------------------------------------------------------------------

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
CHOICES = [  # dtypes of the parameters, of the reduction, of the accumulation; bytes of a gradient sent, and kept
    (BF16, None, FP32, 2, 4), (BF16, FP32, None, 4, 4), (FP16, None, FP32, 2, 4), (BF16, FP32, BF16, 4, 2),
    (BF16, FP16, None, 2, 4), (None, BF16, None, 2, 4),
]


class Own(Stack):
    """Takes inputs of any dtype."""

    def forward(self, x):
        return super().forward(x.to(self.first.bias.dtype))


def chosen(stage: int, world_size: int, choice: tuple, **more) -> Case:
    return Case(stage, world_size, Own, squares, worlds.sgd, param_dtype=choice[0], reduce_dtype=choice[1],
                accumulate_dtype=choice[2], accumulation=3, steps=2, **more)


@pytest.mark.parametrize("world_size", (2, 3))
def test_gradients_are_sent_and_added_up_in_the_dtypes_that_were_chosen(pool, world_size):
    """Bitwise one process that rounds where it was asked to, and nowhere else."""
    check_exact(pool, [chosen(stage, world_size, choice) for choice in CHOICES for stage in STAGES])


def gradients_held(cases: list[Case]) -> list[tuple]:
    """After a window: bytes of gradients by the ledger and by the running count; elements kept; bytes of one sent."""
    found = []
    for case in cases:
        model, optimizer = worlds.sharded(case)
        flats, comm = model.zero.flats, model.zero.comm
        for micro in range(case.accumulation):
            with nullcontext() if micro == case.accumulation - 1 else model.zero.no_sync():
                case.loss(model, 0, micro, comm.rank).backward()
        counted = sum(flat.bytes_by_tensor[name] for flat in flats for name in ("bucket", "grad_shard", "master_grads"))
        kept = sum(flat.own.stop - flat.own.start if case.stage > 1 else flat.layout.padded for flat in flats)
        verbs = ("reduce_scatter", "all_gather") if case.stage == 0 else ("reduce_scatter",)
        per_element = {comm.sent[verb] / comm.elements[verb] for verb in verbs}
        found.append((model.zero.memory()["gradients_bytes"], counted, kept, per_element))
        optimizer.step()
        parts = [part for flat in flats if flat.steps_masters for part in flat.shard_params.values()]
        assert all(raw_grad(part) is None for part in parts)
    return found


def test_gradients_cost_the_bytes_of_their_dtypes(pool):
    cases = [chosen(stage, 2, choice) for choice in CHOICES for stage in STAGES]
    sizes = [choice[3:] for choice in CHOICES for _ in STAGES]
    for found in pool(2).run(gradients_held, cases):
        for case, (sent, size), (held, counted, kept, per_element) in zip(cases, sizes, found, strict=True):
            assert held == counted == size * kept and per_element == {sent}, case


def held_while_it_steps(hooked: bool) -> list[tuple[int, int, int]]:
    """By stage: the most bytes of fp32 gradients at a time; those of the largest slice, and of all of them."""
    found = []
    for stage in STAGES:
        model, held = Own(), []
        optimizer = worlds.sgd(model.parameters())
        own = optimizer.step

        def step():  # what the stage calls for each buffer; a hook would be seen
            gradients = [raw_grad(part) for flat in model.zero.flats for part in flat.shard_params.values()]
            storages = {each.untyped_storage()._cdata: each.untyped_storage() for each in gradients if each is not None}
            held.append(sum(storage.nbytes() for storage in storages.values()))
            own()

        optimizer.step = step
        model, optimizer = zerocourse.shard(model, optimizer, stage=stage, param_dtype=BF16)
        if hooked:
            optimizer.register_step_post_hook(lambda *_: None)
        squares(model, 0, 0, dist.get_rank()).backward()
        model.zero.clip_grad_norm_(0.1)
        optimizer.step()
        slices = [4 * flat.master.numel() for flat in model.zero.flats]
        found.append((max(held), max(slices), sum(slices)))
    return found


@pytest.mark.parametrize("hooked", [False, True])
def test_fp32_gradients_are_made_one_buffer_at_a_time(pool, hooked):
    """Only where hooks of the optimizer are to see one whole step, all are there at once."""
    for found in pool(2).run(held_while_it_steps, hooked):
        for stage, (held, largest, total) in enumerate(found):
            assert held == (total if hooked else largest), f"stage {stage}"


def test_dtypes_that_cannot_be_chosen_are_refused():
    with pytest.raises(BadInput, match="reduce_dtype is torch.float64: it must be torch.bfloat16, torch.float16, torch"):
        zerocourse.Precision(reduce_dtype=torch.float64)
    for param_dtype, wanted in ((None, "in torch.float32"), (FP16, "in that or in torch.float32")):
        with pytest.raises(BadInput, match=f"accumulate_dtype is torch.bfloat16, and parameters train in .* {wanted}"):
            zerocourse.shard(Own(), param_dtype=param_dtype, accumulate_dtype=BF16)
    assert zerocourse.Precision(BF16, BF16, BF16).of_gradients(torch.float64) == (torch.float64, torch.float64)


def summed_in(dtype: torch.dtype | None) -> torch.Tensor:
    """The gradients of 16 micro-batches in bf16, as the optimizer gets them, at stage 2."""
    model, _ = zerocourse.shard(Own(), stage=2, param_dtype=BF16, accumulate_dtype=dtype)
    for micro in range(16):
        (squares(model, 0, micro, dist.get_rank()) / 16).backward()
    slices = [(flat.grad_shard, part) for flat in model.zero.flats for part in flat.shard_params]
    return torch.cat([FlatBuffer.shard_view_of(slice, part).double() for slice, part in slices])


def sums() -> list[torch.Tensor]:
    """The exact sum of bf16's micro-gradients, and what is made of them."""
    model, gradients = Own().to(BF16), []
    for micro in range(16):
        for rank in range(2):
            model.zero_grad()
            (squares(model, 0, micro, rank) / 16).backward()
            gradients.append({name: param.grad.double() / 2 for name, param in model.named_parameters()})
    sharded, _ = zerocourse.shard(Own(), stage=2, param_dtype=BF16)
    exact = [sum(of[part.name].reshape(-1)[part.start:part.stop] for of in gradients)
             for flat in sharded.zero.flats for part in flat.shard_params]
    return [torch.cat(exact), summed_in(BF16), summed_in(FP32)]


def test_what_accumulation_in_fp32_is_worth(pool):
    """Against the exact sum of the gradients in bf16: the sum in bf16 is off more than twice as far as that in fp32."""
    for found in pool(2).run(sums):
        exact, in_bf16, in_fp32 = found
        off_bf16, off_fp32 = ((found - exact).norm() / exact.norm() for found in (in_bf16, in_fp32))
        assert off_fp32 < off_bf16 / 2, (off_bf16, off_fp32)


def random_gradient(rank: int) -> torch.Tensor:
    return torch.randn(1000, generator=torch.Generator().manual_seed(rank))


def reduced_in(dtype: torch.dtype) -> torch.Tensor:
    """The mean over ranks of one random gradient in fp32, which travels in `dtype`."""
    gradient = random_gradient(dist.get_rank())
    model = nn.Linear(1000, 1, bias=False)
    zerocourse.shard(model, stage=0, reduce_dtype=dtype)
    (model.weight[0] * gradient).sum().backward()
    return model.zero.flats[0].grad_shard


def reduced_in_each() -> list[torch.Tensor]:
    return [reduced_in(dtype) for dtype in (BF16, FP16, FP32)]


@pytest.mark.parametrize("world_size", (2, 4))
def test_trap_19_the_error_of_a_reduction_in_half_precision(pool, world_size):
    """About 0.2 to 0.3 % in bf16, and an eighth of that in fp16, which has three bits more."""
    exact = sum(random_gradient(rank).double() for rank in range(world_size)) / world_size
    for found in pool(world_size).run(reduced_in_each):
        in_bf16, in_fp16, in_fp32 = ((mean.double() - exact).norm() / exact.norm() for mean in found)
        assert 1e-3 < in_bf16 < 4e-3 and 6 < in_bf16 / in_fp16 < 10 and in_fp32 < 1e-6


# -- where it is asked for ---------------------------------------------------------------------------------------------

def by_config(keys: dict) -> list[set]:
    """The dtypes that a config leads to, at stage 2: of parameters, reduction and accumulation."""
    engine = engine_of(2, **keys)
    return [{getattr(flat, name) for flat in engine.zero.flats} for name in ("dtype", "reduce_dtype", "grad_dtype")]


@pytest.mark.parametrize("keys, dtypes", [
    ({}, (FP16, FP16, FP16)),
    ({"fp16": {}, "bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}, (BF16, BF16, FP32)),
    ({"communication_data_type": "fp32"}, (FP16, FP32, FP32)),
    ({"fp16": {}, "communication_data_type": "bf16"}, (FP32, BF16, FP32)),
])
def test_the_config_chooses_the_dtypes(pool, keys, dtypes):
    assert pool(2).run(by_config, keys) == [[{dtype} for dtype in dtypes]] * 2


@pytest.mark.parametrize("keys, gradient, sent", [
    ({}, 2, 6), ({"data_types": {"grad_accum_dtype": "fp32"}}, 4, 6), ({"communication_data_type": "fp32"}, 4, 8),
])
def test_the_explanation_counts_the_bytes_of_gradients(keys, gradient, sent):
    given = {"train_batch_size": 2, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}} | keys
    config = Config.load(given, 2)
    found, model = counts(config, CONFIGS["gpt2-tiny"], 2), CONFIGS["gpt2-tiny"]
    share = -(-model.params // 2)
    assert found["gradients_bytes"] == gradient * share
    assert found["sent_bytes"] == sent * share


@pytest.mark.parametrize("keys, wanted", [
    ({"data_types": {"grad_accum_dtype": "bf16"}}, "trains in fp32: gradients must be added up in 'fp32'"),
    ({"data_types": {"grad_accum_dtype": "bf16"}, "fp16": {"enabled": True}}, "trains in fp16: .* that or in 'fp32'"),
])
def test_sums_that_are_too_narrow_are_refused_by_the_key(keys, wanted):
    with pytest.raises(BadInput, match=f"data_types.grad_accum_dtype is 'bf16', and the model {wanted}"):
        Config.load({"train_batch_size": 2} | keys, 2)


def resumed(folder: str) -> tuple:
    """The scaler of a run that goes on in another engine, at another stage."""
    fp16 = {"enabled": True, "auto_cast": True, "initial_scale_power": 3, "hysteresis": 3}
    engine = engine_of(1, adamw, fp16)
    for scale in (1e20, 1.0, 1e20, 1e20):
        engine.backward(engine(net_rows(0, engine.global_rank)) * scale)
        engine.step()
    engine.save_checkpoint(folder)
    other = engine_of(2, adamw, fp16)
    other.load_checkpoint(folder)
    same = other.loss_scaler.state_dict() == engine.loss_scaler.state_dict()
    counts = other.skipped_steps, other.global_steps, other.loss_scaler.hysteresis_left
    return same, other.loss_scale(), other.optimizer.cur_scale, *counts


def test_a_checkpoint_has_the_loss_scale(pool, tmp_path):
    assert pool(2).run(resumed, str(tmp_path / "c")) == [(True, 4.0, 4.0, 3, 4, 1)] * 2


@pytest.mark.parametrize("capability, refused", [((7, 5), True), ((8, 0), False), ((9, 0), False)])
def test_a_gpu_without_bf16_is_never_given_it(monkeypatch, capability, refused):
    """A T4 has capability 7.5, and torch says that it supports bf16, which it emulates."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    gpu = torch.device("cuda")
    refuse_emulated_bf16({FP16, FP32}, gpu)
    refuse_emulated_bf16({BF16}, torch.device("cpu"))
    for dtypes in ({BF16}, {FP32, BF16}):
        said = pytest.raises(BadInput, match="Tesla T4, whose compute capability is 7.5 .*float16")
        with said if refused else nullcontext():
            refuse_emulated_bf16(dtypes, gpu)
    for precision in ({"param_dtype": BF16}, {"reduce_dtype": BF16}):
        if refused:
            with pytest.raises(BadInput, match="Tesla T4"):
                zerocourse.shard(Own(), device="cuda", **precision)


# -- eight bits --------------------------------------------------------------------------------------------------------

def test_e4m3_and_e5m2_round_to_the_nearest_and_saturate():
    inf, nan = float("inf"), float("nan")
    given = torch.tensor([0.0, 1.0, 1.0625, 1.0626, 1.1875, 448.0, 463.0, 1e6, -inf, 2**-9, 2**-10, 2**-10 * 1.01, 0.1])
    wanted = [0.0, 1.0, 1.0, 1.125, 1.25, 448.0, 448.0, 448.0, -448.0, 2**-9, 0.0, 2**-9, 0.1015625]
    assert cast(given, "e4m3").tolist() == wanted
    given = torch.tensor([1.0, 1.125, 1.126, 1.375, 57344.0, 1e6, 2**-16, 2**-17, 0.1, -inf])
    assert cast(given, "e5m2").tolist() == [1.0, 1.0, 1.25, 1.5, 57344.0, 57344.0, 2**-16, 0.0, 0.09375, -57344.0]
    assert cast(torch.tensor([nan]), "e4m3").isnan().all() and cast(torch.ones(2, dtype=BF16), "e5m2").dtype is BF16


def test_mxfp8_shares_a_power_of_two_among_32():
    """Beside 2**18 in its block 1 is lost; with a block of its own it is not."""
    row = torch.zeros(2, 64)
    row[0, :2] = torch.tensor([1.0, 2.0**18])
    row[1, 0], row[1, 32] = 1.0, 2.0**17
    scaled, scales = mx_cast(row, "e4m3"), mx_scales(row, "e4m3")
    assert scales.tolist() == [[2.0**10, 2.0**-127], [2.0**-8, 2.0**9]]
    assert scaled[0, :2].tolist() == [0.0, 2.0**18] and torch.equal(scaled[1], row[1])
    tiny = torch.full((32,), 2.0**-30)
    assert torch.equal(mx_cast(tiny, "e4m3"), tiny) and not cast(tiny, "e4m3").any()
    just_below = torch.full((32,), 1.999)
    assert mx_cast(just_below, "e4m3").tolist() == [1.75] * 32, "above 1.75 times a power of two it saturates"
    with pytest.raises(BadInput, match="last dimension, 33, is not a multiple of 32"):
        mx_cast(torch.ones(33), "e4m3")
    with pytest.raises(BadInput, match="there is no format 'e3m4': there are e4m3 and e5m2"):
        cast(tiny, "e3m4")


def test_a_simulated_cast_lets_gradients_through():
    """Forward in E4M3, and its gradient in E5M2, as mixed fp8 training has it."""
    x = torch.tensor([0.1, 3.0], requires_grad=True)
    rounded = simulate(x)
    (rounded * torch.tensor([0.3, 1.0])).sum().backward()
    assert rounded.tolist() == [0.1015625, 3.0] and x.grad.tolist() == [0.3125, 1.0]


def window(stage: int, reduce_dtype) -> dict[str, torch.Tensor]:
    """This rank's gradients of three micro-batches in bf16, added up in fp32, and after them the parameters of a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    model, _ = zerocourse.shard(model, stage=stage, units=[nn.Linear], param_dtype=torch.bfloat16,
                                accumulate_dtype=torch.float32, reduce_dtype=reduce_dtype)
    for micro in range(3):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(micro + 9 * model.zero.comm.rank)).bfloat16()
        with model.zero.backward_options(is_last=True) if micro == 2 else model.zero.no_sync():
            model(x).float().square().mean().backward()
    return {flat.name: flat.grad_shard[: flat.layout.numel] for flat in model.zero.flats}


def all_windows(reduce_dtype) -> list[dict[str, torch.Tensor]]:
    return [window(stage, reduce_dtype) for stage in STAGES]


def test_which_stages_round_the_sum_of_micro_batches(pool):
    """Those that send it: 0 and 1, to what it is sent in. On one rank nothing is sent, so all stages are bitwise alike."""
    for reduce_dtype in (None, torch.float32):
        first, *others = all_windows(reduce_dtype)
        assert all(torch.equal(value, other[name]) for other in others for name, value in first.items())
        assert any((value.bfloat16().float() != value).any() for value in first.values()), "a sum in fp32"
    narrow, wide = (pool(2).run(all_windows, reduce_dtype) for reduce_dtype in (None, torch.float32))
    for rank in range(2):
        for stage, rounded in enumerate((True, True, False, False)):
            for name, value in narrow[rank][stage].items():
                assert rounded == bool((value.bfloat16().float() == value).all()), (stage, name)
        for name, value in wide[rank][1].items():
            assert all(torch.allclose(value, wide[rank][stage][name], rtol=1e-5, atol=1e-8) for stage in (2, 3))


# -- the model's buffers -------------------------------------------------------------------------------------------------

class Normed(nn.Module):
    """Batch statistics in a unit, and a buffer that is no statistics."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), nn.BatchNorm1d(6, affine=False)])
        self.register_buffer("frequencies", torch.tensor([1 / 3]))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return (x * self.frequencies.to(x.dtype)).float().square().mean()


def normed(half: str, stage: int, folder: str) -> dict:
    """Two steps in half precision, a save, and the same again in fp32, from it."""
    found = {}
    for precision in ({half: {"enabled": True}}, {}):
        config = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
                  "zero_optimization": {"stage": stage}, **precision}
        engine, *_ = zerocourse.initialize(model=(model := Normed()), model_parameters=model.parameters(), config=config)
        if found:
            engine.load_checkpoint(folder)
            found["loaded"] = {name: each.float() for name, each in model.named_buffers()}
            break
        dtype = torch.bfloat16 if half == "bf16" else torch.float16
        for step in range(2):
            rows = torch.randn(4, 6, generator=torch.Generator().manual_seed(step + 10 * engine.global_rank))
            engine.backward(engine(rows.to(dtype)))
            engine.step()
        found["dtypes"] = [each.dtype for each in model.buffers() if each.is_floating_point()]
        found["trained"] = {name: each.float() for name, each in model.named_buffers()}
        model.eval()
        with torch.no_grad():
            found["evaluated"] = engine(rows.to(dtype)).isfinite().item()
        engine.save_checkpoint(folder)
    return found


@pytest.mark.parametrize("half, stage", (("bf16", 3), ("fp16", 1)))
def test_running_statistics_follow_their_weights(pool, tmp_path, half, stage):
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[half]
    first, second = pool(2).run(normed, half, stage, str(tmp_path))
    for found in (first, second):
        fp32 = torch.float32
        assert found["dtypes"] == [fp32, dtype, dtype, fp32, fp32], "that of the weights; without any, and others, as they were"
        assert found["evaluated"] and found["trained"]["blocks.0.1.running_mean"].abs().sum() > 0
        assert all(torch.equal(value, first["trained"][name]) and torch.equal(value, found["loaded"][name])
                   for name, value in found["trained"].items())
