"""Models that a stage of ZeRO is not made for: each trains as the unsharded model does, or is refused in one sentence.

Tests without a `refusal` promise that it works. The others leave the choice, and only forbid silence, a hang, and an
error of PyTorch's own about the memory of a parameter that was freed.
"""

from collections import namedtuple
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import worlds
from attempts import by_stage, check_cases, of_stack
from torch import nn
from torch.nn import functional as F
from worlds import Block, Stack, rows, squares

from zerocourse import shard
from zerocourse.errors import BadInput
from zerocourse.zero.buffers.unit import cut_into_units

# -- a loss that reaches a unit's parameters past its output ---------------------------------------------------------


class LocalLoss(Block):
    """A layer-wise loss, or the auxiliary loss of a mixture of experts: kept on the block, outside of its output."""

    def forward(self, x):
        h = torch.tanh(self.up(x))
        self.local = self.down(h).square().mean()
        return x + h[:, :6]


class LocalLosses(Stack):
    """All losses are local. The last block's output is not used."""

    block = LocalLoss

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return torch.stack([block.local for block in self.blocks])


class Detached(LocalLoss):
    def forward(self, x):
        return super().forward(x).detach()


class DetachedLosses(LocalLosses):
    """The same, and no gradient flows from block to block."""

    block = Detached


class Besides(Block):
    """Returns its loss in an object that nobody can look into, beside the tensor."""

    def forward(self, x):
        h = torch.tanh(self.up(x))
        return x + h[:, :6], SimpleNamespace(loss=self.down(h).square().mean())


class LossesBeside(Stack):
    block = Besides

    def forward(self, x):
        x, total = self.first(x), 0
        for block in self.blocks:
            x, beside = block(x)
            total = total + beside.loss
        return total + self.last(x.detach()).square().mean()


def of_features(model, step, micro, rank):
    """A loss of what forward hooks inside the units took; the model's own output is not used."""
    features = []
    handles = [block.up.register_forward_hook(lambda *args: features.append(args[-1])) for block in model.blocks]
    model(rows(step, micro, rank))
    for handle in handles:
        handle.remove()
    return torch.stack([feature.square().mean() for feature in features]).sum()


@pytest.mark.parametrize("make, loss", (
    (LocalLosses, squares), (DetachedLosses, squares), (LossesBeside, squares), (Stack, of_features)))
def test_a_loss_past_the_units_output(pool, make, loss):
    cases = of_stack(make, loss=loss, optimizer=worlds.sgd)
    cases += [replace(case, accumulation=2) for case in cases[2:]]
    check_cases(pool, cases + [replace(cases[3], options=(("prefetch", 2),))], tolerance=1e-6)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(6, 6)

    def forward(self, x):
        return x + torch.tanh(self.inside(x))


class ListOfLists(nn.Module):
    """`for attention, mlp in self.layers`: the entries of the list are lists, which nobody calls."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.ModuleList([Layer(), Layer()]) for _ in range(2))
        self.last = nn.Linear(6, 6)

    def forward(self, x):
        for attention, mlp in self.layers:
            x = mlp(attention(x))
        return self.last(x)


def test_a_list_of_lists_has_the_inner_entries_for_units(pool):
    check_cases(pool, of_stack(ListOfLists, optimizer=worlds.sgd))
    assert [unit.name for unit in cut_into_units(ListOfLists())] == [
        "root", "layers.0.0", "layers.0.1", "layers.1.0", "layers.1.1"]
    with pytest.raises(BadInput, match="'layers.0', a ModuleList, which is never called: name its entries"):
        cut_into_units(ListOfLists(), ["layers.0"])


class UsesADetachedWeight(Block):
    """The first use of a weight gives it no gradient, but its own backward needs the values."""

    def forward(self, x):
        return super().forward(x + F.linear(F.linear(x, self.up.weight.detach()), self.down.weight.detach()))


class UsesDetachedWeights(Stack):
    block = UsesADetachedWeight


def test_a_weight_is_there_until_its_units_backward_is_over(pool):
    check_cases(pool, of_stack(UsesDetachedWeights, optimizer=worlds.sgd), tolerance=1e-6)


# -- what a unit is given --------------------------------------------------------------------------------------------

class Labelled(tuple):
    """A tuple that is made in a way of its own, and that knows more than its items."""

    def __new__(cls, x, label):
        made = super().__new__(cls, (x, 2 * x))
        made.label = label
        return made


Pair = namedtuple("Pair", "values indices")
ARGUMENTS = {
    "namedtuple": (lambda x: Pair(x, None), lambda pair: pair.values),
    "sort": (lambda x: x.sort(dim=1), lambda found: found.values + 0.1 * found.indices),
    "topk": (lambda x: x.topk(6, dim=1), lambda found: found.values + 0.1 * found.indices),
    "max": (lambda x: x.max(dim=1, keepdim=True), lambda found: found.values.expand(-1, 6) + 0.1 * found.indices),
    "tuple subclass": (lambda x: Labelled(x, 0.5), lambda labelled: labelled.label * (labelled[0] + labelled[1])),
}


class Given(Block):
    """Insists on the type that the model packed."""

    def forward(self, packed, also=None):
        for each in (packed, also):
            expected = type(self.pack(torch.zeros(2, 6)))
            assert each is None or type(each) is expected, f"the unit got a {type(each).__name__}"
        return super().forward(self.unpack(packed)) + (0 if also is None else self.unpack(also))


class Giving(Stack):
    """Packs what its blocks get: by position, by keyword, and once more."""

    block = Given

    def __init__(self, way: str):
        super().__init__()
        self.way = way
        for block in self.blocks:
            block.pack, block.unpack = ARGUMENTS[way]

    def forward(self, x):
        x, (pack, _) = self.first(x), ARGUMENTS[self.way]
        for block in self.blocks:
            x = block(pack(x), also=pack(0.5 * x))
        return self.last(x)


@pytest.mark.parametrize("way", ARGUMENTS)
def test_arguments_arrive_as_what_they_were(pool, way):
    check_cases(pool, of_stack(partial(Giving, way), optimizer=worlds.sgd), tolerance=1e-6)


class Nested(nn.Module):
    """Linear layers alone, because PyTorch has their backward for both layouts of nested tensors."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.blocks = nn.Linear(6, 6), nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return torch.nested.to_padded_tensor(x, 0.0)


def of_sequences(layout):
    def loss(model, step, micro, rank):
        parts = [rows(step, micro, rank, size) for size in (2, 3 + rank)]
        return model(torch.nested.nested_tensor(parts, layout=layout)).square().mean()

    return loss


@pytest.mark.parametrize("layout", (torch.strided, torch.jagged))
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors(pool, layout):
    check_cases(pool, of_stack(Nested, loss=of_sequences(layout), optimizer=worlds.sgd), tolerance=1e-6)


# -- parameters that are written in the forward ----------------------------------------------------------------------

class Clamping(Block):
    """Keeps its weight within bounds, as a constrained layer does."""

    def forward(self, x):
        with torch.no_grad():
            self.up.weight.clamp_(-0.2, 0.2)
        return super().forward(x)


class Clamped(Stack):
    block = Clamping


class Tokens(nn.Module):
    """An embedding that rescales the rows it looks up (max_norm), in the root or in a unit of its own."""

    def __init__(self, in_a_unit: bool):
        super().__init__()
        torch.manual_seed(1)
        layers = nn.Embedding(20, 4, max_norm=1.0), nn.Linear(4, 3)
        self.layers = nn.ModuleList(layers) if in_a_unit else nn.Sequential(*layers)

    def forward(self, tokens):
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens


def looks_up(apart: bool):
    """A loss for Tokens. apart: each rank looks up tokens of its own, so each rescales other rows."""

    def loss(model, step, micro, rank):
        generator = torch.Generator().manual_seed(100 * step + (rank if apart else 0))
        return model(torch.randint(20, (3, 2), generator=generator)).square().mean()

    return loss


def test_a_weight_clamped_in_its_forward(pool):
    """The write is kept, since every rank writes the same values; or it is refused, with the parameter's name."""
    cases = of_stack(Clamped, steps=3, optimizer=worlds.sgd)
    cases += [replace(case, accumulation=2) for case in cases[2:]]
    check_cases(pool, cases, 1e-6, r"blocks\.\d\.up\.weight")


class ClampingOnce(Block):
    """Its first forward writes a weight, the others do not."""

    done = False

    def forward(self, x):
        if not self.done:
            with torch.no_grad():
                self.up.weight.clamp_(-0.2, 0.2)
            self.done = True
        return super().forward(x)


class ClampedOnce(Stack):
    block = ClampingOnce


def comparisons(comm, stage: int, param_dtype: torch.dtype) -> list[int]:
    """How often the ranks compared what was written, in each of three steps."""
    model = ClampedOnce()
    model, optimizer = shard(model, worlds.sgd(model.parameters()), stage, comm=comm, param_dtype=param_dtype)
    counts = []
    for step in range(3):
        before = len(comm.issued)
        model(rows(step, 0, comm.rank).to(param_dtype)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        counts.append(sum(verb == "all_gather_object" for verb, *_ in list(comm.issued)[before:]))
    return counts


@pytest.mark.parametrize("param_dtype", (torch.float32, torch.bfloat16))
def test_a_write_is_compared_once(pool, param_dtype):
    """Neither an older write nor the optimizer's own looks like a new one."""
    def once(rank: int, counts: list) -> None:
        assert counts == [1, 0, 0], f"rank {rank} compared what was written {counts} times"

    by_stage(pool, comparisons, once, args=(param_dtype,))


@pytest.mark.parametrize("in_a_unit", (False, True))
@pytest.mark.parametrize("apart", (False, True))
def test_an_embedding_with_max_norm(pool, in_a_unit, apart):
    """Different tokens on each rank: replicas may not part in silence, nor may a rank's write be lost."""
    check_cases(pool, of_stack(partial(Tokens, in_a_unit), loss=looks_up(apart), steps=3, optimizer=worlds.sgd), 1e-6,
                r"layers\.0\.weight", ("BadInput", "CollectiveError") if apart else ("BadInput",))


# -- forwards that train nothing -------------------------------------------------------------------------------------

class Caches(Stack):
    """Assigns a buffer in every forward, as long as its batch, and computes with it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x):
        self.scale = self.scale.new_full((1,), 1.0 + len(x))
        return super().forward(x * self.scale)


def look(model, rank):
    with torch.inference_mode():
        return model(rows(9, 9, rank, size=3))


def look_first(model, step, micro, rank):
    look(model, rank)
    return squares(model, step, micro, rank)


def look_in_between(model, step, micro, rank):
    loss = squares(model, step, micro, rank)
    look(model, rank)
    return loss


def look_around_a_backward(model, step, micro, rank):
    """Before and after a backward of its own; the second loss is the caller's."""
    look_first(model, step, micro, rank).backward()
    look(model, rank)
    return squares(model, step + 50, micro, rank)


@pytest.mark.parametrize("loss", (look_first, look_in_between, look_around_a_backward))
def test_inference_mode_between_training_steps(pool, loss):
    check_cases(pool, of_stack(Caches, loss=loss, steps=3, optimizer=worlds.sgd), tolerance=1e-6)


# -- parameters outside of their unit --------------------------------------------------------------------------------

class Decaying(Stack):
    """Adds its weight decay to what it returns, by iterating over all parameters."""

    def forward(self, x):
        return super().forward(x) + 0.01 * sum(param.square().sum() for param in self.parameters())


class DecayingBlock(Block):
    def forward(self, x):
        return super().forward(x) + 0.01 * sum(param.square().sum() for param in self.parameters())


class DecayingBlocks(Stack):
    block = DecayingBlock


@pytest.mark.parametrize("make", (Decaying, DecayingBlocks))
def test_parameters_read_by_iterating_inside_a_forward(pool, make):
    check_cases(pool, of_stack(make, optimizer=worlds.sgd), 1e-6, r"(first|blocks\.\d).*(weight|bias)|parameters\(\)")


class Encoder(Stack):
    """Has more ways in than forward: one through a layer of the root, one through the blocks too."""

    def encode(self, x):
        return self.first(x)

    def deep(self, x):
        x = self.encode(x)
        for block in self.blocks:
            x = block(x)
        return x


def encoded(model, step, micro, rank):
    return model.encode(rows(step, micro, rank)).square().mean()


def deep(model, step, micro, rank):
    return model.deep(rows(step, micro, rank)).square().mean()


@pytest.mark.parametrize("loss", (encoded, deep))
def test_a_method_other_than_forward(pool, loss):
    check_cases(pool, of_stack(Encoder, loss=loss, optimizer=worlds.sgd), 1e-6, r"forward|gathered|model\(")
