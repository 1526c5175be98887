"""Instruments that find bugs from outside: the norm auditor, the staleness meter, the first NaN."""

import pytest
import torch
import worlds
from torch import nn

from zerocourse import shard
from zerocourse.course.museum import planted
from zerocourse.errors import BadInput
from zerocourse.measure.norm_audit import norm_counts
from zerocourse.measure.not_finite import NotFinite
from zerocourse.measure.staleness import LEARNING_RATES, critical_rate, diverges, staleness

NAMES = [name for name, _ in worlds.gpt().named_parameters()]


# -- the norm auditor ------------------------------------------------------------------------------------------------

def squares_of(model: nn.Module, weights: dict[str, float], dtype=torch.float32):
    """A norm that counts parameters so often, by name; the others once."""
    def norm():
        squares = {name: param.grad.to(dtype).square().sum() for name, param in model.named_parameters()}
        return sum(weights.get(name, 1) * square for name, square in squares.items()).sqrt()

    return norm


def audit(weights: dict[str, float], **options) -> dict[str, int]:
    model = worlds.gpt()
    return norm_counts(model, lambda: worlds.gpt_loss(model, 0, 0, 0).backward(),
                       squares_of(model, weights, options.get("dtype", torch.float32)), **options)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_a_right_norm_counts_every_parameter_once(dtype):
    assert audit({}, dtype=dtype) == dict.fromkeys(NAMES, 1)


def test_the_last_element_is_marked_if_asked_for():
    """A norm without each parameter's first element, as if that were on a rank which is forgotten."""
    model = worlds.gpt()

    def norm():
        return torch.stack([param.grad.flatten()[1:].norm() for param in model.parameters()]).norm()

    for last, count in ((False, 0), (True, 1)):
        counts = norm_counts(model, lambda: worlds.gpt_loss(model, 0, 0, 0).backward(), norm, last=last)
        assert set(counts.values()) == {count}


def test_gradients_of_before_do_not_count():
    model = worlds.gpt()
    worlds.gpt_loss(model, 0, 0, 0).backward()
    counts = norm_counts(model, lambda: worlds.gpt_loss(model, 0, 0, 0).backward(), squares_of(model, {}))
    assert set(counts.values()) == {1} and not any(param.grad is not None for param in model.parameters())


def test_torchs_own_norm_is_right():
    model = worlds.gpt()
    counts = norm_counts(model, lambda: worlds.gpt_loss(model, 0, 0, 0).backward(),
                         lambda: nn.utils.get_total_norm([param.grad for param in model.parameters()]))
    assert set(counts.values()) == {1}


@pytest.mark.parametrize("times, highest", ((0, 3), (2, 3), (3, 3), (4, 4), (16, 16)))
def test_a_parameter_that_is_counted_otherwise_is_named(times, highest):
    """As often as ranks hold a copy of it, or never."""
    wrong = {"ln_f.weight": times, NAMES[0]: times, "h.1.attn.c_attn.bias": times}
    assert audit(wrong, highest=highest) == dict.fromkeys(NAMES, 1) | wrong


def sharded_counts(stage: int, bug: str | None = None, last: bool = False) -> dict[str, int]:
    model = worlds.gpt()
    shard(model, torch.optim.SGD(model.parameters(), lr=0.1), stage)

    def counts():
        return norm_counts(model, lambda: worlds.gpt_loss(model, 0, 0, 0).backward(), model.zero.grad_norm, last=last)

    if bug is None:
        return counts()
    with planted(bug):
        return counts()


@pytest.mark.parametrize("stage", worlds.STAGES)
def test_every_stage_counts_every_parameter_once(pool, stage):
    for last in (False, True):
        assert pool(2).run(sharded_counts, stage, last=last) == [dict.fromkeys(NAMES, 1)] * 2


def test_a_norm_that_forgets_the_other_ranks_shards(pool):
    first, second = pool(2).run(sharded_counts, 1, "norm_of_a_shard")
    assert set(first.values()) == {0, 1}
    assert {name: first[name] + second[name] for name in NAMES} == dict.fromkeys(NAMES, 1)


def test_what_cannot_be_audited_is_said():
    model = worlds.gpt()
    norm = squares_of(model, {})

    def backward():
        worlds.gpt_loss(model, 0, 0, 0).backward()

    with pytest.raises(BadInput, match="float16"):
        norm_counts(model, backward, norm, dtype=torch.float16)
    with pytest.raises(BadInput, match=r"is 174762\.\d*, where whole"):
        norm_counts(model, backward, lambda: norm() / 2**0.5)
    with pytest.raises(BadInput, match="nan"):
        norm_counts(model, backward, lambda: norm() * torch.nan)
    with pytest.raises(BadInput, match="wte.weight 2 times"):
        norm_counts(model, lambda: [backward() for _ in range(2)], norm)
    model.spare = nn.Linear(2, 2)
    with pytest.raises(BadInput, match="spare.weight 0 times"):
        norm_counts(model, backward, lambda: 1.0)


# -- the staleness meter ---------------------------------------------------------------------------------------------

class Late(torch.optim.SGD):
    """Plain SGD whose gradients wait for `delay` steps."""

    def __init__(self, params, lr: float, delay: int):
        super().__init__(params, lr)
        self.waiting = [torch.zeros(1, dtype=torch.float64)] * delay

    def step(self):
        (param,) = self.param_groups[0]["params"]
        self.waiting.append(param.grad)
        param.grad = self.waiting.pop(0)
        super().step()


@pytest.mark.parametrize("delay", (0, 1, 2, 3, 5))
def test_the_delay_of_an_optimizer(delay):
    assert staleness(lambda model, lr: Late(model.parameters(), lr, delay)) == min(delay, 3)


def test_between_the_rates_lie_the_limits():
    assert [round(critical_rate(delay), 3) for delay in range(4)] == [2.0, 1.0, 0.618, 0.445]
    for delay, rate in enumerate(LEARNING_RATES):
        assert critical_rate(delay + 1) < rate < critical_rate(delay)
    assert diverges(lambda model, lr: torch.optim.SGD(model.parameters(), lr), 2.1, 400)
    assert diverges(lambda model, lr: torch.optim.SGD(model.parameters(), lr * torch.nan), 0.1, 5)


def test_a_slow_divergence_is_one():
    """After 40 steps |x| is far from a million, and growing."""
    assert diverges(lambda model, lr: Late(model.parameters(), lr, 1), 1.1, 40)
    assert not diverges(lambda model, lr: Late(model.parameters(), lr, 1), 0.9, 40)


def delay_of_stage(stage: int, bug: str | None = None) -> int:
    def make(model, lr):
        return shard(model, torch.optim.SGD(model.parameters(), lr=lr), stage)[1]

    if bug is None:
        return staleness(make, steps=60)
    with planted(bug):
        return staleness(make, steps=60)


def test_a_stage_steps_at_once_and_a_late_one_is_noticed(pool):
    assert pool(2).run(delay_of_stage, 2) == [0, 0]
    assert pool(2).run(delay_of_stage, 2, "stale_gradients") == [1, 1]


# -- the first that is not finite ------------------------------------------------------------------------------------

class Odd(nn.Module):
    """A forward whose named part is made infinite or NaN; `inner` returns a dictionary with a list in it."""

    class Inner(nn.Linear):
        def forward(self, x):
            return {"out": [super().forward(x)], "size": 3}

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(2, 2), Odd.Inner(2, 2), nn.Linear(2, 1)

    def forward(self, x):
        return self.last(self.inner(self.first(x))["out"][0]).sum()


def first_found(spoil) -> tuple[str, str] | None:
    model = Odd()
    with NotFinite(model) as watched:
        spoil(model)
    assert not any(module._forward_hooks for module in model.modules())
    return watched.first


def spoil_weight(model):
    model.inner.weight.data[0, 0] = torch.inf
    model(torch.ones(1, 2)).backward()


def spoil_gradient(model):
    out = model(torch.ones(1, 2))
    (out * torch.nan).backward()


@pytest.mark.parametrize("spoil, expected", [
    (lambda model: model(torch.ones(1, 2)).backward(), None),
    (spoil_weight, ("output", "inner")),
    (spoil_gradient, ("gradient", "last")),
    (lambda model: model(torch.full((1, 2), torch.nan)), ("output", "first")),
])
def test_the_first_that_is_not_finite(spoil, expected):
    found = first_found(spoil)
    if found and found[0] == "gradient":  # which parameter of the layer comes first is autograd's choice
        found = "gradient", found[1].partition(".")[0]
    assert found == expected
