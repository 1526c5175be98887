"""A model that is run inside `gathered` and `generating`: nothing is freed, nothing travels twice, and nothing is trained."""

import pytest
import torch
from worlds import Block, Stack

import zerocourse
from zerocourse.errors import BadInput
from zerocourse.zero.extras.hidden import HiddenParameter

X = torch.linspace(-1, 1, 12).view(2, 6)


def prepared(stage: int):
    model = Stack()
    return zerocourse.shard(model, torch.optim.SGD(model.parameters(), 0.1), stage=stage)


def gathered_units(model) -> int:
    return sum(unit.gathered for unit in model.zero.units)


def bytes_sent(comm) -> int:
    """With padding."""
    return sum(comm.sent.values()) + comm.padding


def forwards_inside(stage: int) -> None:
    expected = Stack()(X)
    model, optimizer = prepared(stage)
    stage = model.zero
    model(X).sum().backward()  # the second forward of a model prefetches
    optimizer.zero_grad()
    for inside in (zerocourse.gathered, zerocourse.generating):
        before = bytes_sent(stage.comm)
        with inside(model):
            held, sent = gathered_units(model), bytes_sent(stage.comm) - before
            for _ in range(1 + 2 * stage.comm.rank):  # the ranks need not agree on the number
                with torch.no_grad():
                    assert model(X).equal(expected)
                assert model(X).equal(expected) and model.blocks[0](X).isfinite().all()
            assert held == gathered_units(model) == len(stage.units), "something was freed"
            with zerocourse.gathered(model.first), zerocourse.generating(model):
                pass
            zerocourse.state_dict(model)
            assert gathered_units(model) == held, "a context inside freed what this one holds"
            assert bytes_sent(stage.comm) - before == sent, "something travelled twice"
        whole = sum(4 * flat.layout.padded for flat in stage.flats)
        assert sent == (whole - whole // stage.comm.world_size if stage.shards_parameters else 0), "Ψ(N-1)/N, once"
        assert gathered_units(model) == 0 if stage.shards_parameters else True, "and it is free again"
    model(X).square().mean().backward()
    optimizer.step()
    assert model(X).isfinite().all() and not model(X).equal(expected)


@pytest.mark.parametrize("stage", (0, 1, 2, 3))
@pytest.mark.parametrize("ranks", (2, 3))
def test_a_forward_inside_frees_nothing_and_gathers_nothing(pool, stage, ranks):
    pool(ranks).run(forwards_inside, stage)


def trained_inside(stage: int) -> None:
    model, optimizer = prepared(stage)
    with zerocourse.generating(model):
        loss = model(X).square().mean()
        with zerocourse.generating(model):
            pass
        with pytest.raises(BadInput, match="a backward was called inside zerocourse.generating"):
            loss.backward()
        assert model(X).isfinite().all()
    model(X).square().mean().backward()
    optimizer.step()
    model(X).square().mean().backward()
    for inside in (zerocourse.gathered, zerocourse.generating) if stage == 3 else ():
        with inside(model), pytest.raises(BadInput, match=r"step was called inside gathered\(\) or generating\(\)"):
            optimizer.step()
    with pytest.raises(ArithmeticError), zerocourse.generating(model):
        raise ArithmeticError
    optimizer.step()
    assert gathered_units(model) == 0 if stage == 3 else True
    assert model(X).isfinite().all()


@pytest.mark.parametrize("stage", (1, 3))
def test_training_inside_is_refused_and_goes_on_afterwards(pool, stage):
    pool(2).run(trained_inside, stage)


def trained_inside_gathered() -> list:
    """Losses of three steps whose forwards and backwards are inside `gathered`."""
    model, optimizer = prepared(3)
    losses = []
    for step in range(3):
        with zerocourse.gathered(*([model] if step else [model.blocks[1], model.first])):
            loss = model(X * (step + 1)).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_a_backward_inside_gathered_is_the_usual_one(pool):
    model, losses = Stack(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(X * (step + 1)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert pool(2).run(trained_inside_gathered) == [pytest.approx(losses, rel=1e-6)] * 2


def test_generating_wants_a_sharded_model():
    with pytest.raises(BadInput, match="takes a sharded model or its engine, and this Stack is none"), zerocourse.generating(Stack()):
        pass


class Looks(Block):
    """Gathers its own weight to look at it, while it computes."""

    def forward(self, x):
        with zerocourse.gathered(self.up.weight):
            assert self.up.weight.any()
        assert not isinstance(self.up.weight, HiddenParameter), "it was freed while it computes"
        return super().forward(x)


class LookingStack(Stack):
    block = Looks


def looks_while_it_computes() -> None:
    model = zerocourse.shard(LookingStack(), stage=3)[0]
    model(X).sum().backward()
    assert gathered_units(model) == 0


def test_a_unit_that_is_gathered_already_stays_so(pool):
    pool(2).run(looks_while_it_computes)
