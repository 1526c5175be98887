"""What the tests of the stages share: a small GPT, data that differs per rank, runs, and the unsharded oracle.

A *case* is one way to train. `train(case, comm)` trains it sharded on this rank; `exact(case)` is the unsharded
model that adds the gradients of all ranks' micro-batches in the order in which the stages add them; `whole(case)` is
the unsharded model on the whole batch at once, as a user would have written it.
"""

import functools
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from zerocourse import shard, state_dict
from zerocourse.comm import Comm
from zerocourse.engine import Engine, initialize
from zerocourse.models.gpt2 import GPT, GPTConfig

T, V = 5, 29
STAGES = (0, 1, 2, 3)
SIZE = 2  # samples a micro-batch


def gpt(**overrides) -> GPT:
    """Two blocks, a tied head, sizes that no number of ranks divides: 2,008 parameters."""
    torch.manual_seed(1)
    return GPT(GPTConfig(**{"n_layer": 2, "n_head": 2, "n_embd": 8, "block_size": T, "vocab_size": V} | overrides))


class Block(nn.Module):
    """A residual block with a bias that no number of ranks divides."""

    def __init__(self, width: int = 6):
        super().__init__()
        self.up, self.down = nn.Linear(width, 7), nn.Linear(7, width)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Stack(nn.Module):
    """Three blocks between two layers: what the traps make their own model of."""

    block: Callable[[], nn.Module] = Block

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(type(self).block() for _ in range(3))
        self.last = nn.Linear(6, 6)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Recomputed(Stack):
    """Its blocks are computed again in the backward."""

    reentrant = False

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.last(x)


class RecomputedReentrant(Recomputed):
    reentrant = True


class Net(nn.Module):
    """Two blocks between two layers, with a loss as its output; no size is divisible by the number of ranks."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(5, 7), nn.Linear(7, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(7, 7), nn.Tanh()) for _ in range(2))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x).float().square().mean()


def net_rows(number: int, rank: int) -> torch.Tensor:
    """A rank's micro-batch (2, 5) for `Net`."""
    return torch.randn(2, 5, generator=torch.Generator().manual_seed(97 * number + rank))


def rows(step: int, micro: int, rank: int, size: int = 4) -> torch.Tensor:
    """Inputs of a Stack (size, 6), different for each step, micro-batch and rank."""
    return torch.randn(size, 6, generator=torch.Generator().manual_seed(1_000_003 * step + 1_009 * micro + rank))


def squares(model: nn.Module, step: int, micro: int, rank: int) -> torch.Tensor:
    """A loss for whatever takes rows."""
    return model(rows(step, micro, rank)).square().mean()


def batch(step: int, micro: int, rank: int, size: int = SIZE) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets (size, T) that differ from step to step, micro-batch to micro-batch and rank to rank."""
    generator = torch.Generator().manual_seed(1_000_003 * step + 1_009 * micro + rank)
    tokens = torch.randint(V, (size, T + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def gpt_loss(model: nn.Module, step: int, micro: int, rank: int) -> torch.Tensor:
    return model(*batch(step, micro, rank))


def adamw(params, lr: float = 3e-3) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=lr, weight_decay=0.1)


def sgd(params, lr: float = 0.3) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=lr, momentum=0.9, weight_decay=0.01)


def by_name_length(shapes, world_size: int) -> dict[str, int]:
    """A user's rank map, of no use but to be obeyed."""
    return {name: len(name) % world_size for name in shapes}


@dataclass(frozen=True)
class Case:
    """One way to train for `steps` steps on `world_size` ranks."""

    stage: int = 3
    world_size: int = 2
    make: Callable[[], nn.Module] = gpt
    loss: Callable = gpt_loss  # (model, step, micro, rank)
    optimizer: Callable = adamw
    rank_map: object = None
    bucket_size: int | None = None
    accumulation: int = 1
    clip: float = 0.0
    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    accumulate_dtype: torch.dtype | None = None
    engine: bool = False  # through the engine and its config; else plain backward() and step()
    steps: int = 3
    last_window: int | None = None  # micro-batches in the last step, when they are fewer (engine)
    options: tuple = ()  # more arguments of shard(), as pairs

    def __str__(self) -> str:
        default = Case()
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{name} {getattr(value, '__name__', value)}" for name, value in said.items()
                         if name in ("stage", "world_size", "optimizer") or value != getattr(default, name))

    def micros(self, step: int) -> int:
        return self.last_window if self.last_window and step == self.steps - 1 else self.accumulation



@dataclass
class Run:
    """What a training gave: this rank's loss at each step, the whole parameters at the end, the norms if clipped."""

    losses: list[float]
    state: dict[str, torch.Tensor]
    norms: list[float]


def sharded(case: Case, comm: Comm | None = None, **options) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = case.make()
    dtypes = {name: getattr(case, name) for name in ("param_dtype", "reduce_dtype", "accumulate_dtype")}
    options = dtypes | dict(case.options) | options
    return shard(model, case.optimizer(model.parameters()), case.stage, case.rank_map, bucket_size=case.bucket_size,
                 comm=comm, **options)


def train(case: Case, comm: Comm | None = None, **options) -> Run:
    """Train the case on this rank."""
    return train_engine(case) if case.engine else train_plain(case, *sharded(case, comm, **options))


def train_plain(case: Case, model: nn.Module, optimizer: torch.optim.Optimizer) -> Run:
    losses, norms, rank = [], [], model.zero.comm.rank
    for step in range(case.steps):
        total = 0.0
        for micro in range(case.micros(step)):
            last = micro == case.micros(step) - 1
            with nullcontext() if last else model.zero.no_sync():
                loss = case.loss(model, step, micro, rank) / case.micros(step)
                loss.backward()
            total += loss.item()
        if case.clip:
            norms.append(model.zero.clip_grad_norm_(case.clip).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return Run(losses, state_dict(model), norms)


def train_engine(case: Case) -> Run:
    config = {"train_micro_batch_size_per_gpu": SIZE, "gradient_accumulation_steps": case.accumulation,
              "gradient_clipping": case.clip, "zero_optimization": {"stage": case.stage}}
    if case.bucket_size is not None:
        config["zero_optimization"]["reduce_bucket_size"] = case.bucket_size
    engine: Engine
    engine, *_ = initialize(case.make(), case.optimizer, config=config)
    losses, norms = [], []
    for step in range(case.steps):
        total = 0.0
        for micro in range(case.micros(step)):
            loss = case.loss(engine, step, micro, engine.global_rank)
            engine.set_gradient_accumulation_boundary(micro == case.micros(step) - 1)
            engine.backward(loss)
            engine.step()
            total += loss.item() / case.micros(step)
        losses.append(total)
        norms.append(engine.get_global_grad_norm())
    return Run(losses, engine.state_dict(), norms if case.clip else [])


def train_all(cases: list[Case], around: Callable = nullcontext) -> list[Run]:
    """One case after the other, on this rank, inside `with around():`."""
    with around():
        return [train(case) for case in cases]


def runs_of(pool, cases: list[Case], around: Callable = nullcontext) -> Iterable[tuple[Case, list[Run]]]:
    """Each case with the run of every rank."""
    return zip(cases, zip(*pool(cases[0].world_size).run(train_all, cases, around), strict=True), strict=True)


# -- the unsharded oracles -------------------------------------------------------------------------------------------

def exact(case: Case) -> list[Run]:
    """The unsharded model, stepping on every rank's micro-batches: one run a rank, which differ in their losses alone.

    Stages 0 and 1 add a rank's micro-batches first and then the ranks, stages 2 and 3 the other way round: rounding is
    the same as theirs. A parameter that no rank used has no gradient. With `param_dtype`, the model is in it, ranks are
    added in fp32, and an fp32 copy is what the optimizer steps. What a rank sends is rounded to `reduce_dtype`, and so
    is the sum of the ranks; micro-batches are added up in `accumulate_dtype`.
    """
    return _exact(replace(unsharded(case), stage=0 if case.stage < 2 or case.accumulation == 1 else 2))


def unsharded(case: Case) -> Case:
    """The case without what is of no concern to one process, so that cases share their oracle."""
    return replace(case, rank_map=None, bucket_size=None, engine=False, options=())


@functools.cache
def _exact(case: Case) -> list[Run]:
    model = case.make()
    params = list(model.parameters())
    masters = [nn.Parameter(param.detach().clone()) for param in params] if case.param_dtype else params
    model.to(case.param_dtype)
    optimizer = case.optimizer(masters)
    losses, norms, ranks, share = [], [], range(case.world_size), 1 / case.world_size
    sent, added = case.reduce_dtype, case.accumulate_dtype
    if sent is not None and added is None:
        added = torch.promote_types(sent, case.param_dtype or torch.float32)
    for step in range(case.steps):
        micros = range(case.micros(step))
        grads, of_step = {}, []
        for rank in ranks:
            total = 0.0
            for micro in micros:
                model.zero_grad()
                loss = case.loss(model, step, micro, rank) / len(micros)
                loss.backward()
                grads[rank, micro] = {param: param.grad for param in model.parameters()}
                total += loss.item()
            of_step.append(total)
        for param, master in zip(params, masters, strict=True):
            if case.stage < 2:
                of_ranks = [add([to(grads[rank, micro][param], added) for micro in micros], share) for rank in ranks]
                grad = to(add_ranks([to(grad, sent or case.param_dtype) for grad in of_ranks]), added)
            else:
                grad = add([to(add_ranks([to(add([to(grads[rank, micro][param], sent, widen=True)], share), sent)
                                          for rank in ranks]), added) for micro in micros])
            master.grad = grad if grad is None else grad.to(master.dtype)
        if case.clip:
            norms.append(nn.utils.clip_grad_norm_(masters, case.clip).item())
        optimizer.step()
        for param, master in zip(params, masters, strict=True):
            param.data.copy_(master.data)
        losses.append(of_step)
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    return [Run([of_step[rank] for of_step in losses], state, norms) for rank in ranks]


def to(tensor: torch.Tensor | None, dtype: torch.dtype | None, widen: bool = False) -> torch.Tensor | None:
    """In that dtype, if both are there.   widen: in one that holds all numbers of both."""
    if tensor is None or dtype is None:
        return tensor
    return tensor.to(torch.promote_types(tensor.dtype, dtype) if widen else dtype)


def add(terms: list[torch.Tensor | None], share: float = 1.0) -> torch.Tensor | None:
    """Their sum times `share`, left to right, into new memory; None when there is nothing to add."""
    first, *rest = [term for term in terms if term is not None] or [None]
    if first is None:
        return None
    total = first * share
    for term in rest:
        total.add_(term, alpha=share)
    return total


def add_ranks(terms: list[torch.Tensor | None]) -> torch.Tensor | None:
    """The same in fp32 at least, rounded once."""
    total = add([term if term is None or term.element_size() > 2 else term.float() for term in terms])
    return total if total is None else total.to(next(term.dtype for term in terms if term is not None))


def whole(case: Case) -> Run:
    """The unsharded model on the whole batch of each step, in one forward and one backward."""
    return _whole(replace(unsharded(case), stage=0))


@functools.cache
def _whole(case: Case) -> Run:
    model = case.make()
    optimizer = case.optimizer(model.parameters())
    losses, norms = [], []
    for step in range(case.steps):
        parts = [batch(step, micro, rank) for micro in range(case.micros(step)) for rank in range(case.world_size)]
        loss = model(*(torch.cat(part) for part in zip(*parts, strict=True)))
        optimizer.zero_grad()
        loss.backward()
        if case.clip:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), case.clip).item())
        optimizer.step()
        losses.append(loss.item())
    return Run(losses, {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}, norms)


# -- comparing -------------------------------------------------------------------------------------------------------

def check_exact(pool, cases: list[Case], tolerance: float | None = None, around: Callable = nullcontext) -> None:
    """Train the cases (of one world size) on ranks: bitwise the unsharded model, or within a tolerance of it."""
    for case, runs in runs_of(pool, cases, around):
        for rank, (run, oracle) in enumerate(zip(runs, exact(case), strict=True)):
            if tolerance is None:
                check_bitwise(run, oracle, f"rank {rank} of {case}")
            else:
                check_near(run, oracle, f"rank {rank} of {case}", tolerance)
        for other in runs[1:]:
            check_same_state(other.state, runs[0].state, f"{case}: two ranks")


def check_bitwise(run: Run, oracle: Run, what: object) -> None:
    """Losses and parameters are the same, bit for bit."""
    assert run.losses == oracle.losses, f"{what}: losses {run.losses}, unsharded {oracle.losses}"
    check_same_state(run.state, oracle.state, what)


def check_near(run: Run, oracle: Run, what: object, tolerance: float = 1e-6) -> None:
    """Losses and parameters are the same up to rounding: `tolerance` is relative to the largest parameter."""
    for step, (loss, expected) in enumerate(zip(run.losses, oracle.losses, strict=True)):
        assert abs(loss - expected) <= 10 * tolerance * abs(expected), f"{what}: step {step}: loss {loss}, unsharded {expected}"
    largest = max(tensor.abs().max().item() for tensor in oracle.state.values() if tensor.numel())
    for name, tensor in oracle.state.items():
        assert run.state[name].dtype == tensor.dtype, f"{what}: {name} is {run.state[name].dtype}, not {tensor.dtype}"
        gap = (run.state[name].double() - tensor.double()).abs().max().item() / largest if tensor.numel() else 0.0
        assert gap <= tolerance, f"{what}: {name} differs by {gap:.2e} of the largest parameter"


def check_same_state(state: dict, expected: dict, what: object) -> None:
    assert state.keys() == expected.keys(), f"{what}: {sorted(state.keys() ^ expected.keys())} are in one state only"
    for name, tensor in expected.items():
        assert state[name].dtype == tensor.dtype, f"{what}: {name} is {state[name].dtype}, not {tensor.dtype}"
        if not torch.equal(state[name], tensor):
            gap = (state[name].double() - tensor.double()).abs().max().item()
            raise AssertionError(f"{what}: {name} differs by up to {gap:.3e}")


def check_whole(runs: list[Run], case: Case) -> None:
    """The ranks' mean loss and their norms are those of the whole batch, within 1e-5; parameters too, within 1e-6 of the
    largest, under SGD (Adam makes steps out of rounding noise where the true gradient is zero)."""
    oracle = whole(case)
    mean = [sum(losses) / len(runs) for losses in zip(*(run.losses for run in runs), strict=True)]
    for step, (loss, expected) in enumerate(zip(mean, oracle.losses, strict=True)):
        assert abs(loss - expected) <= 1e-5 * abs(expected), f"{case}: step {step}: loss {loss}, unsharded {expected}"
    for run in runs:
        for step, (norm, expected) in enumerate(zip(run.norms, oracle.norms, strict=True)):
            assert abs(norm - expected) <= 1e-5 * expected, f"{case}: step {step}: norm {norm}, unsharded {expected}"
    if case.optimizer is sgd:
        check_near(Run(mean, runs[0].state, []), oracle, case)


def check_close(runs: list[Run], oracle: Run, what: object, params: float | None = 1e-6) -> None:
    """The mean of the ranks' losses is within 1e-5 of the oracle's, relative; all ranks hold the same parameters, bit
    for bit, and these are within `params` of the oracle's, relative to the largest (None: Adam's noise forbids it)."""
    for step, loss in enumerate(oracle.losses):
        mean = sum(run.losses[step] for run in runs) / len(runs)
        assert abs(mean - loss) <= 1e-5 * abs(loss), f"{what}: step {step}: loss {mean}, unsharded {loss}"
    for step, norm in enumerate(oracle.norms):
        for run in runs:
            assert abs(run.norms[step] - norm) <= 1e-5 * norm, f"{what}: step {step}: norm {run.norms[step]}, unsharded {norm}"
    for run in runs[1:]:
        check_same_state(run.state, runs[0].state, f"{what}: two ranks")
    largest = max(tensor.abs().max().item() for tensor in oracle.state.values())
    for name, tensor in oracle.state.items() if params is not None else ():
        gap = (runs[0].state[name] - tensor).abs().max().item() / largest
        assert gap <= params, f"{what}: {name} differs by {gap:.2e} of the largest parameter"
