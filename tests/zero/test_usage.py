"""The ways in which people use models and optimizers, under every stage: whatever works unsharded works sharded."""

import copy
import gc
import warnings
import weakref
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import worlds
from torch import nn
from torch.utils.checkpoint import checkpoint
from worlds import STAGES, Block, Case, Stack, check_exact, check_same_state, rows, squares

from zerocourse import load_state_dict, shard, state_dict
from zerocourse.comm import Comm
from zerocourse.errors import BadInput
from zerocourse.init.deferred import deferred_init, materialize_model
from zerocourse.measure.ledger import Ledger
from zerocourse.zero.buffers.unit import cut_into_units
from zerocourse.zero.extras.refusals import check_trainable


def of_stack(make=Stack, **fields) -> list[Case]:
    """A case a stage of a model that takes rows."""
    return [Case(stage, **{"make": make, "loss": squares, "steps": 2} | fields) for stage in STAGES]


# -- what goes in and comes out of a unit ----------------------------------------------------------------------------

@dataclass
class Hidden:
    x: torch.Tensor
    more: dict


class Wrapped(Block):
    """A block that takes and returns its tensor in the way that `wrap` and `unwrap` say."""

    wrap, unwrap = staticmethod(lambda x: x), staticmethod(lambda x: x)

    def forward(self, x):
        return self.wrap(super().forward(self.unwrap(x)))


class Wrappers(Stack):
    def forward(self, x):
        x = self.blocks[0].wrap(self.first(x))
        for block in self.blocks:
            x = block(x)
        return self.last(self.blocks[0].unwrap(x))


def wrapping(wrap, unwrap):
    """A model whose blocks pass their tensor on in something else."""

    def make() -> Stack:
        model = Wrappers.__new__(Wrappers)
        block = type("Wrapping", (Wrapped,), {"wrap": staticmethod(wrap), "unwrap": staticmethod(unwrap)})
        type(model).block, before = block, Stack.block
        try:
            model.__init__()
        finally:
            type(model).block = before
        return model

    return make


WRAPS = {
    "tuple": (lambda x: (x, None, 3), lambda x: x[0]),
    "dict": (lambda x: {"x": x, "mask": x > 0}, lambda x: x["x"]),
    "dataclass": (lambda x: Hidden(torch.zeros(1), {"x": [x]}), lambda x: x.more["x"][0]),
    "an object": (lambda x: SimpleNamespace(x=x), lambda x: x.x),
    "two parts": (lambda x: (x[:, :3], x[:, 3:]), lambda x: torch.cat(x, 1)),
    "split": (lambda x: x.split(2, 1), lambda x: torch.cat(x, 1)),
    "changed in place": (lambda x: x, lambda x: x.mul_(1.5)),
}


@pytest.mark.parametrize("way", WRAPS)
def test_what_a_unit_takes_and_returns(pool, way):
    check_exact(pool, of_stack(wrapping(*WRAPS[way])))


class Bag(dict):
    """PyTorch's pytrees do not look into a kind of dictionary that they do not know."""


HANDS_OVER = {"nothing": lambda box, y: box.append(y), "a namespace": lambda box, y: SimpleNamespace(x=y), "a kind of dict": lambda box, y: Bag(x=y)}


@pytest.mark.parametrize("what", HANDS_OVER)
def test_a_parameter_of_the_unit_itself_and_an_output_without_tensors(pool, what):
    class Scaled(Block):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.full((6,), 0.7))

        def forward(self, box):
            return HANDS_OVER[what](box, super().forward(box.pop()) * self.scale)

    class Boxes(Stack):
        block = Scaled

        def forward(self, x):
            box = [self.first(x)]
            for block in self.blocks:
                if (got := block(box)) is not None:
                    box.append(got["x"] if isinstance(got, dict) else got.x)
            return self.last(box.pop())

    check_exact(pool, of_stack(Boxes))


class Penalised(Block):
    """Leaves a term of its own weights behind, to which no output leads."""

    def forward(self, x):
        y = super().forward(x)
        self.penalty = (self.up.weight @ self.up.weight.t() - torch.eye(7)).square().sum()
        return y


class Penalties(Stack):
    block, detached = Penalised, False

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            y = block(x)
            x = x + y.detach() if self.detached else y
        return self.last(x), sum(block.penalty for block in self.blocks)


class PenaltiesAlone(Penalties):
    detached = True


def with_penalties(model, step, micro, rank):
    out, penalties = model(rows(step, micro, rank))
    return out.square().mean() + 0.01 * penalties


@pytest.mark.parametrize("make", (Penalties, PenaltiesAlone))
def test_a_term_that_a_unit_leaves_behind(pool, make):
    check_exact(pool, of_stack(make, loss=with_penalties))


class KeepsItsLoss(Stack):
    """Returns nothing."""

    def forward(self, x):
        self.loss = super().forward(x).square().mean()


def kept_loss(model, step, micro, rank):
    model(rows(step, micro, rank))
    loss = model.loss
    with torch.no_grad():
        model(rows(9, 9, rank))
    return loss


def test_a_loss_that_the_model_leaves_behind_and_a_look_in_between(pool):
    check_exact(pool, of_stack(KeepsItsLoss, loss=kept_loss))


class HandsThrough(Block):
    def forward(self, x, drops):
        return x if drops else super().forward(x)


class Loops(Stack):
    """Its blocks run twice, and some calls return their input as it came."""

    block, dropped = HandsThrough, ()

    def forward(self, x):
        x = self.first(x)
        for turn in range(2):
            for number, block in enumerate(self.blocks):
                x = block(x, (turn, number) in self.dropped)
        return self.last(x)


@pytest.mark.parametrize("calls", (((1, 0),), ((1, 2),), ((0, 1), (1, 0)), ((0, 2), (1, 1))))
def test_units_that_run_twice_and_hand_their_input_through(pool, calls):
    check_exact(pool, of_stack(type("Dropping", (Loops,), {"dropped": calls})))


class Clamps(Stack):
    """Writes into its blocks, which do not compute then."""

    def forward(self, x):
        with torch.no_grad():
            for block in self.blocks:
                block.up.weight.clamp_(-0.2, 0.2)
        return super().forward(x)


def test_a_model_that_writes_into_its_units(pool):
    check_exact(pool, of_stack(Clamps, steps=3))


def computed_again(model, step, micro, rank):
    return checkpoint(model, rows(step, micro, rank).requires_grad_(), use_reentrant=True).square().mean()


def test_a_whole_model_that_is_computed_again(pool):
    check_exact(pool, of_stack(loss=computed_again))


class Skippable(Stack):
    def forward(self, x, skips):
        x = self.first(x)
        for number, block in enumerate(self.blocks):
            x = x if skips and number == 1 else block(x)
        return self.last(x)


def frozen_later(rank_of, stage: int | None, thaws: bool) -> dict[str, torch.Tensor]:
    """A block is frozen or thawed after `shard`, and rank 1 skips it. Without a stage: both ranks in one process."""
    model, ranks = Skippable(), [dist.get_rank()] if stage is not None else [0, 1]
    if thaws:
        model.blocks[1].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if stage is not None:
        shard(model, optimizer, stage)
    model.blocks[1].requires_grad_(thaws)
    for step in range(2):
        for rank in ranks:
            (model(rows(step, 0, rank), skips=rank == 1).square().mean() / len(ranks)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict() if stage is None else state_dict(model)


@pytest.mark.parametrize("thaws", (False, True))
@pytest.mark.parametrize("stage", (0, 1, 2))
def test_a_unit_that_is_frozen_later_and_skipped_on_a_rank(pool, stage, thaws):
    wanted = frozen_later(None, None, thaws)
    for state in pool(2).run(frozen_later, None, stage, thaws):
        for name, value in wanted.items():
            torch.testing.assert_close(state[name], value, rtol=1e-6, atol=1e-6)


class KeywordsOnly(Stack):
    class block(Block):
        def forward(self, *, x, scale=1.0):
            return super().forward(x) * scale

    def forward(self, *, rows):
        x = self.first(rows)
        for block in self.blocks:
            x = block(x=x, scale=torch.tensor(0.5))
        return {"out": self.last(x), "names": ["a", "b"]}


def keywords(model, step, micro, rank):
    return model(rows=rows(step, micro, rank))["out"].square().mean()


class Viewed(Block):
    def forward(self, x):
        return super().forward(x).view(x.shape)


class ChangesViews(Stack):
    """Changes in place what its blocks returned, which are views."""

    block = Viewed

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
            x += 1
        return self.last(x)


def test_views_that_are_changed_in_place(pool):
    check_exact(pool, of_stack(ChangesViews))


class Differentiates(Stack):
    """Takes a gradient of its own in the middle of its forward, as models of forces do."""

    def forward(self, x):
        with torch.enable_grad():
            at = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.last(self.blocks[0](self.first(at))).square().sum(), at)
        return super().forward(x + slope)


def test_a_backward_within_the_forward(pool):
    check_exact(pool, of_stack(Differentiates))


def looks_at_its_input(model, step, micro, rank):
    """Rank 0 alone asks for the gradient of its input, which it reports."""
    x = rows(step, micro, rank).requires_grad_()
    loss = model(x).square().mean()
    if rank == 0:
        assert torch.autograd.grad(loss, x, retain_graph=True)[0].isfinite().all()
    return loss


def test_a_gradient_of_the_input_on_one_rank_alone(pool):
    check_exact(pool, [case for case in of_stack(loss=looks_at_its_input) if case.stage < 3])


class Counts(Stack):
    """Looks at its parameters in the forward, as models do to know their device, and notes which units are whole."""

    def forward(self, x):
        assert all(param.device == x.device for param in self.parameters())
        if hasattr(self, "zero"):
            self.whole = [unit.name for unit in self.zero.units if unit.gathered]
        return super().forward(x)


def test_looking_at_parameters_gathers_none():
    model, _ = shard(Counts(), stage=3, prefetch=0)
    squares(model, 0, 0, 0)
    assert model.whole == ["root"]


class BorrowsLate(Stack):
    """Reads a block's weight after the block has run, when `reshard_after_forward=False` still has it there."""

    def forward(self, x):
        return super().forward(x) + self.blocks[1].up.weight.sum()


def looks_in_between(model, step, micro, rank):
    """Evaluates between the forward and the backward."""
    loss = squares(model, step, micro, rank)
    with torch.no_grad():
        squares(model, 9, 9, rank)
    return loss


def test_a_borrowed_weight_and_a_look_in_between(pool):
    check_exact(pool, [Case(3, make=BorrowsLate, loss=looks_in_between, steps=2, options=(("reshard_after_forward", keep),))
                       for keep in (True, False)])


def test_keyword_arguments(pool):
    check_exact(pool, of_stack(KeywordsOnly, loss=keywords))


class Parallel(Stack):
    """Units without differentiable inputs, side by side; one of them has two outputs, of which one is not used."""

    class block(Block):
        def forward(self, x):
            return super().forward(x), self.up(x).sum()

    def forward(self, x):
        return self.last(sum(block(x)[0] for block in self.blocks))


class Skips(Stack):
    """Every block's output also goes to the end; the middle one's input needs no gradient."""

    def forward(self, x):
        x = self.first(x)
        a = self.blocks[0](x)
        b = self.blocks[1](a.detach())
        return self.last(self.blocks[2](a + b) + a * b + x)


class InTheModel(Stack):
    """Returns its loss, among other things, and keeps a second one on the side."""

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        self.penalty = sum(block.up.weight.square().sum() if block is self.blocks[-1] else 0 for block in self.blocks[-1:])
        self.side = x.abs().mean()
        return SimpleNamespace(loss=self.last(x).square().mean())


def side(model, step, micro, rank):
    return model(rows(step, micro, rank)).loss + model.side + 0.01 * model.penalty


@pytest.mark.parametrize("make, loss, tolerance", ((Parallel, squares, None), (Skips, squares, 1e-6), (InTheModel, side, None)))
def test_ways_through_a_model(pool, make, loss, tolerance):
    """Not to the bit where units share an input: each adds up its gradient for itself, which is another order."""
    check_exact(pool, of_stack(make, loss=loss) + of_stack(make, loss=loss, bucket_size=10, accumulation=2), tolerance)


# -- forwards and backwards in other numbers than one ----------------------------------------------------------------

def two_forwards(model, step, micro, rank):
    """One backward for two forwards, and one forward that has none."""
    model(rows(8, 8, rank))
    return squares(model, step, micro, rank) + 0.5 * squares(model, step + 50, micro, rank)


def two_backwards(model, step, micro, rank):
    """Two forwards, then two backwards; the second is the caller's."""
    first, second = squares(model, step, micro, rank), squares(model, step + 50, micro, rank)
    first.backward()
    return second


def retained(model, step, micro, rank):
    """The same graph twice over."""
    loss = squares(model, step, micro, rank)
    loss.backward(retain_graph=True)
    return loss


def of_inputs(model, step, micro, rank):
    """Gradients of the inputs, which train nothing, before the real backward; the input itself needs a gradient."""
    x = rows(step, micro, rank).requires_grad_()
    loss = model(x).square().mean()
    gradient, = torch.autograd.grad(loss, x, retain_graph=True)
    assert not gradient.isnan().any()
    return loss + 0 * gradient.sum()


def test_two_forwards_one_backward(pool):
    check_exact(pool, of_stack(loss=two_forwards) + of_stack(loss=of_inputs))


@pytest.mark.parametrize("loss", (two_backwards, retained))
def test_two_backwards(pool, loss):
    """Each backward reduces: the ranks are added up before the backwards are, at all stages."""
    check_exact(pool, of_stack(loss=loss, optimizer=worlds.sgd), tolerance=1e-6)


# -- optimizers ------------------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "fused AdamW": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    "foreach Adam": lambda params: torch.optim.Adam(params, lr=0.01, foreach=True, amsgrad=True),
    "RMSprop": lambda params: torch.optim.RMSprop(params, lr=0.01, momentum=0.5, centered=True),
    "Adagrad": lambda params: torch.optim.Adagrad(params, lr=0.05),
    "Nesterov": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, nesterov=True),
    "maximize": lambda params: torch.optim.SGD(params, lr=0.01, maximize=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(pool, name):
    # A fused kernel rounds the last few elements of a piece, which fill no vector, in another way than the others.
    check_exact(pool, of_stack(optimizer=OPTIMIZERS[name], world_size=3), tolerance=1e-7 if "fused" in name else None)


def part_of(params):
    """Trains every second parameter."""
    return worlds.adamw(list(params)[::2])


def test_an_optimizer_of_a_part_of_the_model(pool):
    check_exact(pool, of_stack(optimizer=part_of, rank_map="round_robin") + of_stack(optimizer=part_of))


def names_fit(optimizer, model) -> bool:
    """Has each piece its parameter's name, in every group?"""
    of_piece = {piece: key.name for flat in model.zero.flats for key, piece in flat.shard_params.items()}
    return all([of_piece[piece] for piece in group["params"]] == group["param_names"] for group in optimizer.param_groups)


def test_an_optimizer_that_knows_names():
    model = Stack()
    named = list(model.named_parameters())
    model, optimizer = shard(model, torch.optim.AdamW(named[:3]), rank_map=lambda shapes, ranks: dict.fromkeys(shapes, 0))
    optimizer.add_param_group({"params": named[3:]})
    assert names_fit(optimizer, model) and len(optimizer.param_groups[1]["params"]) == len(named) - 3


def names_of_slices(stage: int) -> bool:
    """The same where a rank has whole tensors of a few parameters only."""
    model = Stack()
    model, optimizer = shard(model, torch.optim.AdamW(model.named_parameters()), stage, rank_map="round_robin")
    return names_fit(optimizer, model)


def test_an_optimizer_that_knows_names_and_has_some_of_them(pool):
    assert all(pool(2).run(names_of_slices, 2))


def schedules(make_scheduler, early: bool) -> list:
    """The state unsharded and by stage, and warnings, of a schedule made before or after shard()."""
    states = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for stage in (None, *STAGES):
            model = Stack()
            optimizer = worlds.adamw(model.parameters())
            scheduler = make_scheduler(optimizer) if early else None
            if stage is not None:
                shard(model, optimizer, stage)
            scheduler = scheduler or make_scheduler(optimizer)
            for step in range(4):
                squares(model, step, 0, 0).backward()
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            states.append((model.state_dict() if stage is None else state_dict(model), optimizer.param_groups[0]["lr"]))
    return states, [str(warning.message) for warning in said if "lr_scheduler" in str(warning.message)]


def halving(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


@pytest.mark.parametrize("early", (True, False))
def test_learning_rate_schedules(pool, early):
    for states, said in pool(2).run(schedules, halving, early):
        (expected, lr), *others = states
        assert not said and lr == 3e-3 / 16
        for stage, (state, lr_here) in enumerate(others):
            check_same_state(state, expected, f"stage {stage}")
            assert lr_here == lr


def closures(param_dtype) -> list:
    """By stage: two steps by hand, and the same two with a closure; what step() returned."""
    found = []
    for stage in STAGES:
        states = []
        for by_closure in (False, True):
            case = Case(stage, make=Stack, loss=squares)
            model, optimizer = worlds.sharded(case, param_dtype=param_dtype)
            returned = []
            for step in range(2):
                def closure(step=step):
                    optimizer.zero_grad()
                    loss = model(rows(step, 0, dist.get_rank()).to(param_dtype)).square().mean()
                    loss.backward()
                    return loss

                if by_closure:
                    returned.append(optimizer.step(closure).item())
                else:
                    returned.append(closure().item())
                    optimizer.step()
            states.append((state_dict(model), returned))
        found.append(states)
    return found


@pytest.mark.parametrize("param_dtype", (torch.float32, torch.bfloat16))
def test_closures(pool, param_dtype):
    start = {name: tensor.to(param_dtype) for name, tensor in Stack().state_dict().items()}
    for found in pool(2).run(closures, param_dtype):
        for stage, ((state, losses), (by_closure, returned)) in enumerate(found):
            check_same_state(by_closure, state, f"stage {stage}")
            assert returned == losses
            assert not torch.equal(state["first.weight"], start["first.weight"])


def closure_that_looks_again(looks: bool) -> list[float]:
    """Losses after three steps at stage 3, whose closure may run one more forward behind its backward, which leaves the blocks gathered."""
    model, optimizer = worlds.sharded(Case(3, make=Stack, loss=squares), reshard_after_forward=False)
    losses = []
    for step in range(3):
        def closure(step=step):
            optimizer.zero_grad()
            loss = squares(model, step, 0, dist.get_rank())
            loss.backward()
            if looks:
                squares(model, step, 1, dist.get_rank())
            return loss

        optimizer.step(closure)
        losses.append(squares(model, step, 2, dist.get_rank()).item())
    return losses


def test_what_a_closure_leaves_gathered_is_not_used_after_the_step(pool):
    assert pool(2).run(closure_that_looks_again, True) == pool(2).run(closure_that_looks_again, False)


# -- worlds ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("stage", STAGES)
def test_one_rank_without_a_process_group(stage):
    assert not dist.is_initialized()
    case = Case(stage, 1, accumulation=2)
    worlds.check_bitwise(worlds.train(case), worlds.exact(case)[0], case)


def in_a_part_of_the_world(case: Case) -> worlds.Run | None:
    """Ranks 1 and 2 train; rank 0 does something else."""
    group = dist.new_group([1, 2])
    return worlds.train(case, Comm(group)) if dist.get_rank() else None


def test_a_process_group_of_some_ranks(pool):
    for stage in STAGES:
        case = Case(stage, 2)
        nothing, *runs = pool(3).run(in_a_part_of_the_world, case)
        assert nothing is None
        for run, oracle in zip(runs, worlds.exact(case), strict=True):
            worlds.check_bitwise(run, oracle, case)


def two_models() -> list[worlds.Run]:
    """Two sharded models that train in turns, one of them without another's knowledge."""
    cases = [Case(3, make=Stack, loss=squares), Case(1)]
    made = [worlds.sharded(case) for case in cases]
    for step in range(2):
        losses = [case.loss(model, step, 0, dist.get_rank()) for case, (model, _) in zip(cases, made, strict=True)]
        sum(losses).backward()
        for _, optimizer in made:
            optimizer.step()
            optimizer.zero_grad()
    return [state_dict(model) for model, _ in made]


def test_two_models_in_one_backward(pool):
    cases = [Case(3, make=Stack, loss=squares, steps=2), Case(1, steps=2)]
    for states in pool(2).run(two_models):
        for state, case in zip(states, cases, strict=True):
            check_same_state(state, worlds.exact(case)[0].state, case)


# -- what shard refuses ----------------------------------------------------------------------------------------------

ADAMW = torch.optim.AdamW


def takes_other_memory(model, optimizer):
    model.first.weight.data = torch.zeros_like(model.first.weight)
    optimizer.step()


def grown(model, optimizer):
    model.more = nn.Linear(6, 6)
    optimizer.add_param_group({"params": list(model.more.parameters())})


class OfTheirOwn(torch.optim.Optimizer):
    """Nobody knows what it looks at."""


def test_an_optimizer_that_nobody_knows_gets_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for known in (ADAMW, type("Mine", (ADAMW,), {}), type("Parts", (OfTheirOwn,), {"steps_in_parts": True})):
            model = Stack()
            check_trainable(model, known(model.parameters(), *([{}] if issubclass(known, OfTheirOwn) else [])), has_whole=False)
    model = Stack()
    with pytest.warns(UserWarning, match="OfTheirOwn gets slices of tensors"):
        check_trainable(model, OfTheirOwn(model.parameters(), {}), has_whole=False)


@pytest.mark.parametrize("wrong, said", (
    (lambda model: shard(model, bucket_size="25MB"), "bucket_size.*'25MB'.*integer"),
    (lambda model: shard(model, in_flight=-1), "in_flight is -1.*at least 0"),
    (lambda model: shard(model, prefetch=True), "prefetch is True"),
    (lambda model: shard(model, param_dtype="bf16"), "param_dtype is 'bf16'.*torch.bfloat16"),
    (lambda model: shard(ADAMW(model.parameters()), model), "model is of type AdamW.*torch.nn.Module"),
    (lambda model: shard(model, ADAMW), "optimizer is the class AdamW.*model.parameters"),
    (lambda model: shard(model, units=["blocks.7"]), "units names 'blocks.7'.*'blocks.0'"),
    (lambda model: shard(model, units=[0]), "units names 0"),
    (lambda model: shard(model, units=5), "units is 5: it must hold names or classes of modules"),
    (lambda model: shard(model, stage=2.0), "stage is 2.0: it must be 0, 1, 2 or 3"),
    (lambda model: shard(model, stage=True), "stage is True: it must be 0, 1, 2 or 3"),
    (lambda model: shard(model)[0].first.double(), "keeps its dtype and device"),
    (lambda model: shard(nn.Sequential(model.last, shard(model)[0].first)), "'0.weight' is in another sharded model"),
    (lambda model: shard(nn.ModuleDict({"zero": model})), "called `zero`.*rename"),
    (lambda model: shard(model, torch.optim.LBFGS(model.parameters())), "LBFGS looks at more than a rank has"),
    (lambda model: ADAMW(shard(model)[0].parameters()).step(), "AdamW has parameters of a sharded model.*make it first"),
    (lambda model: takes_other_memory(*shard(model, ADAMW(model.parameters()), 1)), "'first.weight' was given other memory"),
    (lambda model: shard(model, ops={"reduse": print}), "function 'reduse'.*reduce, step, unshard, reshard"),
    (lambda model: shard(model)[0].double(), "keeps its dtype and device"),
    (lambda model: copy.deepcopy(shard(model)[0]), "cannot be copied"),
    (lambda model: shard(model, ADAMW(model.parameters()))[1].add_param_group({"params": [torch.ones(3)]}), "not a parameter"),
    (lambda model: grown(*shard(model, ADAMW(model.parameters()))), "that the model has only since it was sharded"),
))
def test_what_cannot_be_is_told_in_a_sentence(wrong, said):
    with pytest.raises(BadInput, match=said) as error:
        wrong(Stack())
    assert "\n" not in str(error.value)


def penalised(model, step, micro, rank):
    """A gradient penalty: the loss holds a gradient, so its backward goes through a backward."""
    x = rows(step, micro, rank).requires_grad_()
    out = model(x).square().sum()
    (gradient,) = torch.autograd.grad(out, x, create_graph=True)
    return out + gradient.square().sum()


@pytest.mark.parametrize("stage", STAGES)
def test_a_model_is_freed_with_its_last_reference(stage):
    model = Stack()
    model, optimizer = shard(model, worlds.adamw(model.parameters()), stage)
    squares(model, 0, 0, 0).backward()
    optimizer.step()
    alive = weakref.ref(model), weakref.ref(model.zero.flats[0])
    del model, optimizer
    gc.collect()
    assert alive[0]() is None and alive[1]() is None


@pytest.mark.parametrize("stage", (0, 1, 2))
def test_a_write_in_place_reaches_the_master_weights(stage):
    model = Stack()
    model, optimizer = shard(model, worlds.sgd(model.parameters()), stage, param_dtype=torch.bfloat16)
    with torch.no_grad():
        model.first.weight.fill_(5.0)
    before = model.last.weight.clone()
    exact = {(flat, key): piece.clone() for flat in model.zero.flats for key, piece in flat.shard_params.items() if key.name != "first.weight"}
    optimizer.step()
    assert model.first.weight.eq(5).all() and model.last.weight.equal(before)
    assert all(flat.shard_params[key].equal(piece) for (flat, key), piece in exact.items())  # also in fp32, beside what was written
    assert all(piece.eq(5).all() for flat in model.zero.flats for key, piece in flat.shard_params.items() if key.name == "first.weight")


@pytest.mark.parametrize("dtype", (torch.float64, torch.complex128))
def test_the_norm_of_a_double_is_a_double(dtype):
    model = nn.Linear(3, 3, dtype=dtype)
    shard(model, stage=1)
    model(torch.ones(1, 3, dtype=dtype)).abs().sum().backward()
    assert model.zero.grad_norm().dtype is torch.float64


def test_a_gradient_penalty_below_stage_3(pool):
    check_exact(pool, [case for case in of_stack(loss=penalised) if case.stage < 3])


def penalty_at_stage_3() -> tuple[str, float]:
    """What is said to it, and the loss of a step after it."""
    model, _optimizer = shard(Stack(), stage=3)
    said = ""
    try:
        penalised(model, 0, 0, dist.get_rank())
    except BadInput as error:
        said = str(error)
    loss = squares(model, 0, 0, dist.get_rank())
    loss.backward()
    return said, loss.item()


def test_a_gradient_penalty_at_stage_3_is_refused(pool):
    for rank, (said, loss) in enumerate(pool(2).run(penalty_at_stage_3)):
        assert "create_graph" in said and "stage 2" in said and "\n" not in said
        assert loss == squares(Stack(), 0, 0, rank).item()


def test_what_changes_nothing_is_allowed():
    model, _ = shard(Stack())
    model.to("cpu").float()


def with_a_scaler() -> str:
    """An overflow on rank 1 alone: what GradScaler leads to."""
    model = Stack()
    model, optimizer = shard(model, worlds.sgd(model.parameters()), stage=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(squares(model, 0, 0, model.zero.comm.rank)).backward()
    if model.zero.comm.rank == 1:
        model.zero.flats[0].grad_shard.fill_(float("inf"))
    try:
        scaler.step(optimizer)
    except BadInput as error:
        return str(error)
    return "nothing"


def test_a_gradient_scaler_is_refused_on_every_rank(pool):
    assert all("GradScaler" in said for said in pool(2).run(with_a_scaler))


# -- where models come from ------------------------------------------------------------------------------------------

def real_in_part() -> tuple[dict, dict]:
    """On rank 1 one half of a block has values; what both ranks then train with, and what they should."""
    with deferred_init():
        model, other = Stack(), Stack()
    whole = copy.deepcopy(materialize_model(other).state_dict())
    if dist.get_rank() == 1:
        model.blocks[1].up = other.blocks[1].up
    return state_dict(shard(model, stage=3)[0]), whole


def test_ranks_may_have_different_parameters_on_meta(pool):
    for found, whole in pool(2).run(real_in_part):
        check_same_state(found, whole, "rank 0's values")


class OnlyBlocks(nn.ModuleList):
    """The model itself is the list, and its first entry holds another one."""

    def __init__(self):
        torch.manual_seed(1)
        super().__init__([nn.ModuleDict({"inner": nn.ModuleList([Block(), Block()])}), Block()])

    def forward(self, x):
        for block in self[0]["inner"]:
            x = block(x)
        return self[1](x)


def test_a_model_that_is_a_list():
    assert [unit.name for unit in cut_into_units(OnlyBlocks())] == ["root", "0.inner.0", "0.inner.1", "1"]


def peak_of_shard() -> tuple[int, int, int, int]:
    """Bytes: the peak of sharding a deferred model at stage 3, what is kept, a block, and the largest module of it."""
    with Ledger() as ledger:
        with deferred_init():
            model = worlds.gpt(n_layer=8, n_embd=64)
        block = sum(4 * param.numel() for param in model.h[0].parameters())
        module = max(sum(4 * param.numel() for param in module.parameters(recurse=False)) for module in model.h[0].modules())
        shard(model, stage=3)
        return ledger.peak, ledger.now().total, block, module


def test_a_deferred_model_takes_its_slices_one_unit_and_one_module_of_it(pool):
    for peak, kept, block, module in pool(2).run(peak_of_shard):
        slack = 25_000  # the state of the random generator, saved twice; padding
        while_drawn, when_cut = kept - block // 2 + block + module, kept + block
        assert when_cut <= peak <= max(while_drawn, when_cut) + slack


def test_a_module_may_be_called_root():
    model = nn.Module()
    model.root, model.other = nn.Linear(2, 2), nn.Linear(2, 2)
    assert [unit.name for unit in cut_into_units(model, ["root"])] == ["root of all", "root"]


# -- a model that is only asked ---------------------------------------------------------------------------------------

def only_asked(stage: int) -> tuple[dict[str, int], bool]:
    """Bytes of masters by whether the model is frozen and whether it has an optimizer; and is the frozen one as it was, in bf16?"""
    masters = {}
    for frozen in (True, False):
        for optimizes in (True, False):
            model = Stack()
            whole = {name: value.detach().bfloat16() for name, value in model.named_parameters()}
            model.requires_grad_(not frozen)
            optimizer = torch.optim.AdamW(model.parameters()) if optimizes else None
            shard(model, optimizer, stage, param_dtype=torch.bfloat16)
            masters[f"{frozen} {optimizes}"] = sum(tensor.nbytes for tensor in model.zero.tensors()["optimizer"])
            if frozen and not optimizes:
                twice = {name: 2 * value for name, value in whole.items()}
                same = all(torch.equal(value, whole[name]) for name, value in state_dict(model).items())
                load_state_dict(model, twice)
                same &= all(torch.equal(value, twice[name]) for name, value in state_dict(model).items())
    return masters, same


@pytest.mark.parametrize("stage", range(4))
def test_what_is_frozen_and_has_no_optimizer_has_no_masters(pool, stage):
    for masters, same in pool(2).run(only_asked, stage):
        assert same and masters.pop("True False") == 0 and len(set(masters.values())) == 1 and min(masters.values()) > 0
