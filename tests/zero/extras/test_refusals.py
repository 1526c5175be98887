"""Habits of people who train unsharded models: each works on a sharded one, or is refused at once in one sentence.

Never silence, never NaN that nobody explains, never an error of PyTorch's own about memory that a stage freed.
"""

import time
from collections.abc import Callable
from functools import partial

import pytest
import torch
import worlds
from attempts import A_PARAMETER, SECONDS, attempts, by_stage, is_state, judge, pieces_of, plain_sgd, prepared, report, state_of, unsharded
from torch import nn
from worlds import STAGES, Stack, rows, squares

from zerocourse import shard
from zerocourse.errors import BadInput
from zerocourse.init.deferred import deferred_init
from zerocourse.launch.processes.failures import RankError

# -- gradients that no backward brought ------------------------------------------------------------------------------

def by_hand(comm, stage, some: bool) -> dict:
    """Two steps on gradients that are assigned, to all parameters or to those of one layer alone."""
    model, optimizer = prepared(comm, stage, optimizer_of=worlds.sgd)
    params = list(model.blocks[1].parameters() if some else model.parameters())
    for step in range(2):
        for param, gradient in zip(params, torch.autograd.grad(squares(model, step, 0, 0), params), strict=True):
            param.grad = gradient
        optimizer.step()
        optimizer.zero_grad()
    return state_of(model)


@pytest.mark.parametrize("some", (False, True))
def test_gradients_assigned_by_hand(pool, some):
    by_stage(pool, by_hand, unsharded(by_hand, some), A_PARAMETER, args=(some,))


def added_by_hand(comm, stage) -> dict:
    """A backward, and a gradient of one parameter that is assigned in place of the one it brought."""
    model, optimizer = prepared(comm, stage)
    squares(model, 0, 0, 0).backward()
    model.first.weight.grad = torch.ones_like(model.first.weight)
    optimizer.step()
    return state_of(model)


def test_a_gradient_replaced_after_the_backward(pool):
    by_stage(pool, added_by_hand, unsharded(added_by_hand), r"first\.weight")


def sharpness_aware(comm, stage, pieces: bool) -> dict:
    """SAM: climb along the gradient, take the gradient there, come back, step. pieces: over what the optimizer holds,
    instead of model.parameters(). Without SAM's norm, so that the loop is right on slices too."""
    model, optimizer = prepared(comm, stage)
    params = pieces_of(optimizer) if pieces else list(model.parameters())
    for step in range(2):
        squares(model, step, 0, 0).backward()
        with torch.no_grad():
            climbed = {param: param.grad.clone() for param in params if param.grad is not None}
            for param, gradient in climbed.items():
                param.add_(gradient, alpha=0.5)
        optimizer.zero_grad()
        squares(model, step, 0, 0).backward()
        with torch.no_grad():
            for param, gradient in climbed.items():
                param.sub_(gradient, alpha=0.5)
        optimizer.step()
        optimizer.zero_grad()
    return state_of(model)


@pytest.mark.parametrize("pieces", (False, True))
def test_sharpness_aware_loops(pool, pieces):
    """`param.grad` of a model's parameter is None at every stage, and the loop would climb nowhere without a word."""
    by_stage(pool, sharpness_aware, unsharded(sharpness_aware, pieces), r"grad|written|outside of", args=(pieces,))


def zeroed(comm, stage, of_model: bool) -> dict:
    """A step after zero_grad(set_to_none=False), whose gradients are zeros: momentum and decay go on."""
    model, optimizer = prepared(comm, stage, optimizer_of=worlds.sgd)
    for step in range(2):
        squares(model, step, 0, 0).backward()
        optimizer.step()
        (model if of_model else optimizer).zero_grad(set_to_none=False)
    optimizer.step()
    return state_of(model)


@pytest.mark.parametrize("of_model", (False, True))
def test_gradients_zeroed_and_not_removed(pool, of_model):
    by_stage(pool, zeroed, unsharded(zeroed, of_model), "set_to_none", args=(of_model,))


# -- clipping --------------------------------------------------------------------------------------------------------

THERE = r"optimizer\.param_groups|model\.zero"  # where the gradients are


def clipped(comm, stage, clip: str, pieces: bool, param_dtype=torch.float32) -> dict:
    """A step on gradients that one of torch's own functions clipped."""
    model, optimizer = prepared(comm, stage, param_dtype=param_dtype)
    model(rows(0, 0, 0).to(param_dtype)).square().mean().backward()
    params = pieces_of(optimizer) if pieces else model.parameters()
    if clip == "norm":
        torch.nn.utils.clip_grad_norm_(params, 0.1)
    elif clip == "early norm":
        torch.nn.utils.clip_grad.clip_grad_norm_(list(params), 0.1, foreach=False)
    else:
        torch.nn.utils.clip_grad_value_(params, 0.0 if clip == "nothing left" else 0.001)
    optimizer.step()
    return state_of(model)


@pytest.mark.parametrize("clip", ("norm", "early norm"))
@pytest.mark.parametrize("pieces", (False, True))
def test_torchs_own_clipping_by_norm(pool, clip, pieces):
    """A model's parameters have no gradients to clip, and the pieces have this rank's part, of another norm on each."""
    by_stage(pool, clipped, unsharded(clipped, clip, pieces), r"model\.zero\.clip_grad_norm_", args=(clip, pieces))


@pytest.mark.parametrize("pieces", (False, True))
def test_torchs_own_clipping_by_value(pool, pieces):
    """Element by element, so on pieces it works; on the model's parameters it would clip nothing."""
    by_stage(pool, clipped, unsharded(clipped, "value", pieces), None if pieces else THERE, args=("value", pieces))


def test_torchs_own_clipping_by_value_under_master_weights(pool):
    """Clipped to zero: nothing moves, whatever is rounded."""
    start = {name: tensor.bfloat16() for name, tensor in Stack().state_dict().items()}
    by_stage(pool, clipped, is_state(start, None), THERE, args=("nothing left", True, torch.bfloat16))


def total_norm(comm, stage, pieces: bool) -> float:
    model, optimizer = prepared(comm, stage)
    squares(model, 0, 0, 0).backward()
    params = pieces_of(optimizer) if pieces else model.parameters()
    return torch.nn.utils.get_total_norm([param.grad for param in params if param.grad is not None]).item()


@pytest.mark.parametrize("pieces", (False, True))
def test_torchs_total_norm(pool, pieces):
    whole = total_norm(None, None, pieces)

    def check(rank: int, norm: float) -> None:
        assert abs(norm - whole) <= 1e-5 * whole, f"rank {rank}: the norm is {norm}, not {whole}"

    by_stage(pool, total_norm, check, r"model\.zero\.(grad_norm|clip_grad_norm_)", args=(pieces,))


# -- surgery ---------------------------------------------------------------------------------------------------------

def resize(model):
    model.wte = nn.Embedding(worlds.V + 3, 8)


def new_layer(model):
    model.blocks[1].up = nn.Linear(6, 7)


def new_parameter(model):
    model.first.weight = nn.Parameter(torch.ones(6, 6))


def adapter(model):
    model.blocks[1].up = nn.Sequential(model.blocks[1].up, nn.Linear(7, 7))


SURGERY = {"wte": (worlds.gpt, worlds.gpt_loss, resize), "blocks.1.up": (Stack, squares, new_layer),
           "first.weight": (Stack, squares, new_parameter), "blocks.1.up.1": (Stack, squares, adapter)}


def operated(comm, stage, name: str) -> None:
    """A step of training after a part of the sharded model was replaced."""
    make, loss, operate = SURGERY[name]
    model, optimizer = prepared(comm, stage, make)
    loss(model, 0, 0, 0).backward()
    optimizer.step()
    optimizer.zero_grad()
    operate(model)
    loss(model, 1, 0, 0).backward()
    optimizer.step()


@pytest.mark.parametrize("name", SURGERY)
def test_a_part_that_was_replaced_after_shard(pool, name):
    """Its new parameters are in no flat buffer, so no optimizer steps them."""
    by_stage(pool, operated, None, rf"\b{name.removesuffix('.1')}\b".replace(".", r"\."), args=(name,))


# -- other ways to run a model ---------------------------------------------------------------------------------------

def compiled(comm, stage, way: str) -> list[float]:
    """This rank's losses, compiled by `torch.compile` before or after shard(), as a whole or block by block."""
    torch._dynamo.reset()
    make_fast = partial(torch.compile, backend="eager")
    model = Stack()
    model.blocks = model.blocks[:1]  # compiling takes its time
    if way == "before":
        model = make_fast(model)
    elif way == "blocks before":
        model.blocks[0] = make_fast(model.blocks[0])
    if stage is None:
        optimizer = plain_sgd(model.parameters())
    else:
        model, optimizer = shard(model, plain_sgd(model.parameters()), stage, comm=comm)
    if way == "after":
        model = make_fast(model)
    elif way == "blocks after":
        model.blocks[0].compile(backend="eager")
    losses = []
    for step in range(2):
        loss = squares(model, step, 0, 0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("way", ("before", "after", "blocks before", "blocks after"))
def test_compiled_models(pool, way):
    expected = compiled(None, None, "not at all")

    def check(rank: int, losses: list[float]) -> None:
        assert all(abs(loss - other) <= 1e-5 * other for loss, other in zip(losses, expected, strict=True)), \
            f"rank {rank}: losses {losses}, unsharded {expected}"

    by_stage(pool, compiled, check, "compile", args=(way,), stages=(2, 3), timeout=5 * SECONDS)


def test_a_second_compiled_model_of_a_class():
    """A cell that is run again; the compiler keeps what it has of the first."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):  # else it would give up with a warning
        losses = []
        for stage in (1, 1, 3):
            model = torch.compile(Stack(), backend="eager")
            model, optimizer = shard(model, plain_sgd(model.parameters()), stage)
            for step in range(2):
                loss = squares(model, step, 0, 0)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    assert losses == [losses[0]] * 3


# -- what else is refused --------------------------------------------------------------------------------------------

def stale(comm, stage, make: Callable) -> str:
    """Two forwards, the first's backward, a step, the second's backward: what PyTorch says to that."""
    model, optimizer = prepared(comm, stage, make)
    first, second = squares(model, 0, 0, 0), squares(model, 1, 0, 0)
    first.backward()
    optimizer.step()
    optimizer.zero_grad()
    try:
        second.backward()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def without_units() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))


@pytest.mark.parametrize("make", (Stack, without_units))
def test_a_backward_through_weights_that_were_stepped(pool, make):
    assert "modified by an inplace operation" in stale(None, None, make)

    def check(rank: int, said: str) -> None:
        assert said.startswith("RuntimeError: ") and "modified by an inplace operation" in said, f"rank {rank}: {said}"

    by_stage(pool, stale, check, args=(make,))


@pytest.mark.parametrize("stage", STAGES)
def test_lazy_layers(stage):
    with pytest.raises(BadInput, match=r"0\.weight of LazyLinear has no shape yet.*run the model on one") as error:
        shard(nn.Sequential(nn.LazyLinear(4)), stage=stage)
    assert "\n" not in str(error.value)


def two_optimizers(comm, stage, given: bool) -> None:
    """Each of a part of the model. given: both are given to shard()."""
    model = Stack()
    first, second = plain_sgd(model.first.parameters()), plain_sgd(model.blocks.parameters())
    shard(model, first, stage, comm=comm)
    if given:
        shard(model, second, stage, comm=comm)
    squares(model, 0, 0, 0).backward()
    first.step()
    second.step()


@pytest.mark.parametrize("given", (False, True))
def test_two_optimizers_for_one_model(pool, given):
    refusal = "sharded already" if given else "one optimizer|parameter groups?"
    by_stage(pool, two_optimizers, None, refusal, args=(given,))


# -- ranks that part -------------------------------------------------------------------------------------------------

class Blown(worlds.Block):
    """Raises on one rank, in its forward or in its backward."""

    place = None

    def forward(self, x):
        x = super().forward(x)
        if self.place == "backward":
            x.register_hook(self.blow)
        elif self.place == "forward":
            self.blow()
        return x

    @staticmethod
    def blow(*_):
        raise ArithmeticError("blown")


class Fuse(Stack):
    block = Blown


def blows_on_rank_1(stage: int, place: str) -> None:
    model, optimizer = prepared(None, stage, Fuse)
    model.blocks[1].place = place if model.zero.comm.rank == 1 else None
    for step in range(3):
        squares(model, step, 0, 0).backward()
        optimizer.step()


@pytest.mark.parametrize("place", ("forward", "backward"))
@pytest.mark.parametrize("stage", (1, 3))
def test_an_exception_on_one_rank_ends_all(pool, stage, place):
    pool(2).run(Stack)  # so that starting the ranks is not timed
    began = time.monotonic()
    with pytest.raises(RankError, match="rank 1: ArithmeticError: blown") as error:
        pool(2).run(blows_on_rank_1, stage, place)
    assert error.value.rank == 1 and "blow" in error.value.traceback
    assert time.monotonic() - began < 8, f"it took {time.monotonic() - began:.1f} s"


def generates(comm, stage) -> None:
    """Rank 0 is done after three tokens, rank 1 after five."""
    model, _ = shard(Stack(), stage=stage, comm=comm)
    x = rows(0, 0, comm.rank)
    with torch.no_grad():
        for _ in range(3 + 2 * comm.rank):
            x = model(x)


def leaves_early(comm, stage) -> None:
    """Rank 1 makes two steps, the others three."""
    model, optimizer = prepared(comm, stage)
    for step in range(2 if comm.rank == 1 else 3):
        squares(model, step, 0, comm.rank).backward()
        optimizer.step()
        optimizer.zero_grad()


def stuck(ranks: list[dict], done: int, advice: str) -> list[str]:
    """What is wrong with the errors of those that wait for the rank that is done."""
    absent = rf"rank {done}\b[^;.]*(no collective|had left|has left)"
    return [judge(f"rank {rank} waited", [found], None, rf"(?s)^(?=.*{absent}){advice}", ("CollectiveError",))
            for rank, found in enumerate(ranks) if rank != done]


@pytest.mark.ranks_may_differ
def test_generation_of_different_lengths(pool):
    (ranks,) = attempts(pool, generates, [(3,)], timeout=1.5 * SECONDS)
    assert ranks[0]["error"] is None, ranks[0]["error"]
    report(stuck(ranks, 0, "(?=.*(synced_gpus|every rank must run the same number of forwards))"))


@pytest.mark.ranks_may_differ
def test_a_rank_that_leaves_the_loop_early(pool):
    complaints = []
    for stage, ranks in zip((2, 3), attempts(pool, leaves_early, [(2,), (3,)], 3), strict=True):
        assert ranks[1]["error"] is None, f"stage {stage}: {ranks[1]['error']}"
        complaints += [said and f"stage {stage}: {said}" for said in stuck(ranks, 1, "(?!.*must run the same units)")]
    report(complaints)


def over_one_memory(kind: str) -> nn.Module:
    model = nn.Module()
    model.a, model.b = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
    memory = torch.zeros(6, 12)
    if kind == "columns":  # of one matrix: no element is in both
        model.a.weight.data, model.b.weight.data = memory[:, :6], memory[:, 6:]
    elif kind == "rows":
        model.a.weight.data, model.b.weight.data = memory.view(12, 6)[:6], memory.view(12, 6)[6:]
    elif kind == "overlapping columns":
        model.a.weight.data, model.b.weight.data = memory[:, :6], memory[:, 5:11]
    else:
        model.b.weight.data = model.a.weight.data.t() if kind == "transposed" else model.a.weight.data
    return model


def test_two_parameters_over_one_memory():
    for kind in ("assigned", "transposed", "overlapping columns"):
        with pytest.raises(BadInput, match="'a.weight' and 'b.weight' are two objects over one memory.*one nn.Parameter"):
            shard(over_one_memory(kind), stage=1)
    with deferred_init():
        model = nn.ModuleList([nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)])
    for kind in ("columns", "rows"):
        shard(over_one_memory(kind), stage=1)
    for other in (model, nn.LSTM(3, 4, num_layers=2)):
        shard(other, stage=1)
