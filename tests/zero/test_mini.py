"""`zero/mini.py` equals the unsharded model, sends and holds what each stage promises, and refuses the rest."""

import ast
import gc
import io
import re
import time
import tokenize
import warnings
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import worlds
from torch import nn
from torch.utils.checkpoint import set_checkpoint_early_stop
from worlds import STAGES, Case, Recomputed, RecomputedReentrant, Run, Stack, check_bitwise, check_near, check_same_state, check_whole

from zerocourse.errors import BadInput
from zerocourse.measure.storages import raw_grad
from zerocourse.zero import mini
from zerocourse.zero.mini import mini_shard


def sharded(model: nn.Module, stage: int, optimizer=worlds.adamw) -> tuple[nn.Module, torch.optim.Optimizer]:
    return mini_shard(model, optimizer(model.parameters()), stage)


# -- equal to the unsharded model --------------------------------------------------------------------------------------

def train(case: Case) -> tuple[Run, list]:
    """Train the case with mini on this rank. Returns the run, and what it said to the other ranks."""
    model, issued, losses = case.make(), [], []
    with torch.no_grad():
        for param in model.parameters():
            param.add_(dist.get_rank())  # all ranks begin with rank 0's values, whatever their own are
    with recorded(issued), warnings.catch_warnings():
        warnings.simplefilter("error")  # torch 2.13 warns of collectives that it renamed
        model, optimizer = sharded(model, case.stage, case.optimizer)
        for step in range(case.steps):
            total = 0.0
            for micro in range(case.accumulation):
                loss = case.loss(model, step, micro, dist.get_rank()) / case.accumulation
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(total)
    if case.stage == 3:
        for unit in model.mini_units:
            unit.unshard()
    return Run(losses, {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}, []), issued


def recorded(issued: list):
    """While entered, `issued` gets the name of each collective and the bytes of its longer side."""
    def noting(name):
        collective = getattr(dist, name)

        def call(*args, **kwargs):
            sides = [arg if isinstance(arg, list) else [arg] for arg in args]
            issued.append((name, max(sum(tensor.nbytes for tensor in side) for side in sides)))
            return collective(*args, **kwargs)

        return call

    names = ("broadcast", "all_reduce", "reduce_scatter", "all_gather")
    return patch.multiple(dist, **{name: noting(name) for name in names})


def train_all(cases: list[Case]) -> list[tuple[Run, list]]:
    return [train(case) for case in cases]


@pytest.mark.parametrize("world_size", (1, 2, 3))
def test_equals_the_unsharded_model(pool, world_size):
    """A GPT-2 with its head tied, and a stack of blocks; bitwise, for two numbers have one sum in whatever order."""
    cases = [Case(stage, world_size, optimizer=optimizer, accumulation=accumulation)
             for stage in STAGES for optimizer, accumulation in ((worlds.adamw, 1), (worlds.sgd, 3))]
    cases += [Case(stage, world_size, make=Stack, loss=worlds.squares) for stage in STAGES]
    for case, of_ranks in zip(cases, zip(*pool(world_size).run(train_all, cases), strict=True), strict=True):
        runs, issued = zip(*of_ranks, strict=True)
        for rank, (run, oracle) in enumerate(zip(runs, worlds.exact(case), strict=True)):
            (check_bitwise if world_size < 3 else check_near)(run, oracle, f"rank {rank} of {case}")
            check_same_state(run.state, runs[0].state, f"{case}: ranks 0 and {rank}")
            assert issued[rank] == issued[0], f"{case}: ranks 0 and {rank} issued different collectives"
        if case.make is worlds.gpt:
            check_whole(list(runs), case)


# -- what is sent and held ---------------------------------------------------------------------------------------------

ROOT = 4 * 84  # bytes of a Stack's first and last layer, which 2 and 3 divide
BLOCK = {1: 4 * 97, 2: 4 * 98, 3: 4 * 99}  # bytes of one block, padded
FULL = {1: 4 * 375, 2: 4 * 378, 3: 4 * 381}  # bytes of all


def one_step(stage: int) -> list:
    """What a rank says in its second step, and when."""
    issued = []
    model, optimizer = sharded(Stack(), stage)
    with recorded(issued):
        for step in range(2):
            issued.clear()
            loss = worlds.squares(model, step, 0, dist.get_rank())
            issued.append("backward")
            loss.backward()
            issued.append("step")
            optimizer.step()
    return issued


@pytest.mark.parametrize("stage", STAGES)
def test_collectives_come_at_the_moments_of_the_table(pool, stage):
    block, root = BLOCK[2], ROOT
    reduce, gather = "all_reduce" if stage == 0 else "reduce_scatter", "all_gather"
    units = (block, block, block, root)
    forward, backward, step = [], [], []
    if stage == 3:  # the root is there first, and its last gradient is that of its first layer
        forward = [(gather, root), *[(gather, block)] * 3]
        backward = [(gather, root), *[(gather, block), (reduce, block)] * 3, (reduce, root)]
    elif stage == 2:
        backward = [(reduce, size) for size in units]
    else:
        step = [(reduce, size) for size in units]
    if stage in (1, 2):
        step += [(gather, size) for size in units]
    for issued in pool(2).run(one_step, stage):
        assert issued == [*forward, "backward", *backward, "step", *step]


def bytes_alive() -> int:
    """Bytes of every storage that a tensor of this process stands on; scalars, as Adam's step counters are, apart.

    The least of three looks: gloo's threads let go of a tensor a moment after its collective is over.
    """
    gc.collect()  # in ranks that have run a thousand tests it takes a while
    return min(count_bytes() for _ in range(3))


def count_bytes() -> int:
    time.sleep(0.01)
    tensors = [each for each in gc.get_objects() if isinstance(each, torch.Tensor) and each.dim()]
    gradients = [raw_grad(each) for each in tensors if each.is_leaf]  # some other test's model may refuse to show them
    tensors += [each for each in gradients if each is not None]
    storages = {each.untyped_storage()._cdata: each.untyped_storage() for each in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def states_held() -> list[list[int]]:
    return [states_of(stage) for stage in STAGES]


def states_of(stage: int) -> list[int]:
    """Bytes of the parameters; of the gradients after one backward and after another, just before the second step; of
    the optimizer's states after it; of `full` after a forward.
    """
    before = bytes_alive()
    model, optimizer = sharded(Stack(), stage)
    parameters = bytes_alive() - before
    for step in range(2):
        worlds.squares(model, step, 0, 0).backward()
        with_one = bytes_alive() - before
        worlds.squares(model, step, 1, 0).backward()
        with_two = bytes_alive() - before
        optimizer.step()
        optimizer.zero_grad()
        after = bytes_alive() - before
        states = after - parameters
    with torch.no_grad():
        worlds.squares(model, 2, 0, 0)
    assert bytes_alive() - before == after, "a forward left something behind"
    loss = worlds.squares(model, 2, 0, 0)
    held = sum(unit.full.untyped_storage().nbytes() for unit in model.mini_units)
    held += sum(param.nbytes for param in model.parameters()) if stage == 3 else 0
    loss.backward()
    return [parameters, with_one - after, with_two - after, states, held]


@pytest.mark.parametrize("world_size", (1, 2, 3))
def test_a_rank_holds_what_its_stage_promises(pool, world_size):
    full = FULL[world_size]
    part = full // world_size
    promised = [[full, full, full, 2 * full, full], [full, full, full, 2 * part, full],
                [full, part, part, 2 * part, full], [part, part, part, 2 * part, 0]]
    for rank, held in enumerate(pool(world_size).run(states_held)):
        assert held == promised, f"rank {rank}, by stage: parameters, gradients twice, states, `full` after a forward"


# -- one process without a group ---------------------------------------------------------------------------------------

class ToTheEnd(Recomputed):
    """Computes a block again up to its forward hook, where checkpointing stops by itself before."""

    def forward(self, x):
        with set_checkpoint_early_stop(False):
            return super().forward(x)


class Twice(Stack):
    """Calls its first block once more, and lets it return a tuple."""

    def forward(self, x):
        x = super().forward(x)
        return (self.blocks[0](x), x)[0]


def losses_of(model: nn.Module, stage: int | None) -> list[float]:
    """Of four steps in a row of odd things; stage None: unsharded, and the odd things left out."""
    optimizer = worlds.adamw(model.parameters())
    if stage is not None:
        model, optimizer = mini_shard(model, optimizer, stage)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    losses = []
    for step in range(4):
        if step == 1 and stage is not None:
            with torch.no_grad():
                worlds.squares(model, 9, 0, 0)
            with torch.inference_mode():
                worlds.squares(model, 9, 0, 0)
        if step == 2 and stage is not None:
            worlds.squares(model, 9, 0, 0).backward()
            model.zero_grad()  # a gradient that nobody stepped on
            failing = model.last.register_forward_hook(lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                worlds.squares(model, 9, 0, 0)
            failing.remove()
        loss = worlds.squares(model, step, 0, 0)
        loss.backward()
        if stage == 3:
            for unit in model.mini_units:
                unit.unshard()  # somebody looked at the parameters, which the step makes old
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        losses.append(loss.item())
    return losses


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("make", (Stack, Recomputed, ToTheEnd, RecomputedReentrant, Twice))
def test_alone_without_a_process_group(make):
    """With evaluation, dropped gradients, an exception, a scheduler, checkpointing and a block that runs twice."""
    assert not dist.is_initialized()
    expected = losses_of(make(), None)
    for stage in STAGES:
        assert losses_of(make(), stage) == expected, f"stage {stage}"


def test_a_second_step_on_the_same_gradients():
    def run(model, optimizer):
        worlds.squares(model, 0, 0, 0).backward()
        optimizer.step()
        optimizer.step()
        worlds.squares(model, 1, 0, 0).backward()
        optimizer.step()
        return worlds.squares(model, 2, 0, 0).item()

    model = Stack()
    expected = run(model, worlds.sgd(model.parameters()))
    for stage in STAGES:
        assert run(*sharded(Stack(), stage, worlds.sgd)) == expected, f"stage {stage}"


# -- what it refuses ---------------------------------------------------------------------------------------------------

def tied_blocks() -> nn.Module:
    model = Stack()
    model.blocks[2].up.weight = model.blocks[0].up.weight
    return model


def tied_to_root() -> nn.Module:
    model = worlds.gpt()
    model.wpe.weight = nn.Parameter(torch.zeros(8, 8))
    model.h[1].ln_extra = nn.Linear(8, 8)
    model.h[1].ln_extra.weight = model.wpe.weight
    return model


def same_block_twice() -> nn.Module:
    model = Stack()
    model.blocks.append(model.blocks[0])
    return model


def frozen() -> nn.Module:
    model = Stack()
    model.first.bias.requires_grad_(False)
    return model


def mixed() -> nn.Module:
    model = Stack()
    model.blocks[1].double()
    return model


@pytest.mark.parametrize("make, sentence", [
    (tied_blocks, "'blocks.2.up.weight' is tied over two units, blocks.0 and blocks.2"),
    (tied_to_root, "'h.1.ln_extra.weight' is tied over two units, root and h.1"),
    (same_block_twice, "'blocks.3.up.weight' is tied over two units, blocks.0 and root"),
    (frozen, "'first.bias' is frozen"),
    (mixed, "'blocks.1.up.weight' is torch.float64: mini trains every parameter, and all in one dtype, here torch.float32"),
])
def test_models_that_are_not_plain(make, sentence):
    for stage in STAGES:
        with refusal(sentence):
            sharded(make(), stage)


def refusal(sentence: str):
    """One sentence that contains `sentence`."""
    return pytest.raises(BadInput, match=rf"^[^\n]*{re.escape(sentence)}[^\n]*(?<![.\n])$")


def test_optimizers_that_are_not_of_the_model():
    model, other = Stack(), Stack()
    params = list(model.parameters())
    used = worlds.sgd(params)
    worlds.squares(model, 0, 0, 0).backward()
    used.step()
    for optimizer, sentence in (
            (worlds.sgd([*params, other.last.bias]), "differ in 1 parameters"),
            (worlds.sgd(params[2:]), "differ in 2 parameters"),
            (worlds.sgd([{"params": params[:3]}, {"params": params[3:]}]), "2 groups"),
            (used, f"{len(params)} states")):
        with refusal(sentence):
            mini_shard(model, optimizer, 3)
    mini_shard(model, worlds.sgd(params), 3)
    with refusal("the Stack is sharded already"):
        mini_shard(model, worlds.sgd(params), 3)


@pytest.mark.parametrize("kind", (torch.optim.Adafactor, torch.optim.LBFGS, torch.optim.Muon, type("Ours", (torch.optim.Adafactor,), {})))
def test_optimizers_that_look_at_whole_tensors(kind):
    model = nn.Sequential(nn.Linear(4, 4, bias=False))
    for stage in STAGES:
        with refusal(f"{kind.__name__} looks at whole tensors"):
            mini_shard(model, kind(model.parameters()), stage)


@pytest.mark.parametrize("stage", STAGES)
def test_gradients_that_are_clipped_where_there_are_none(stage):
    """torch's clip_grad_norm_ would find no gradient at the parameters, and clip nothing in silence."""
    model, optimizer = sharded(Stack(), stage)
    worlds.squares(model, 0, 0, 0).backward()
    with refusal("mini has gradients in its units alone, and does not clip them"):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


@pytest.mark.parametrize("stage", (-1, 4, "3", None, True, 2.0))
def test_stages_there_are_not(stage):
    with refusal(f"stage is {stage!r}: say 0, 1, 2 or 3"):
        sharded(Stack(), stage)


@pytest.mark.parametrize("stage", STAGES)
def test_a_parameter_without_a_gradient(stage):
    model = Stack()
    model.blocks[1].unused = nn.Linear(2, 2)
    model, optimizer = sharded(model, stage)
    with refusal("has no gradient at this step: call backward() first"):
        optimizer.step()
    worlds.squares(model, 0, 0, 0).backward()
    with refusal("'blocks.1.unused.weight' has no gradient at this step"):
        optimizer.step()


@pytest.mark.parametrize("stage", STAGES)
def test_outputs_that_hide_their_tensors(stage):
    model = Stack()
    model.blocks[1].register_forward_hook(lambda module, inputs, output: {"x": output})
    sharded(model, stage)
    with refusal("blocks.1 returns a dict"):
        worlds.squares(model, 0, 0, 0)


# -- what it is --------------------------------------------------------------------------------------------------------

def test_about_150_lines_over_plain_torch():
    source = Path(mini.__file__).read_text()
    nodes = list(ast.walk(ast.parse(source)))
    imported = {node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert imported == {"torch", "torch.distributed", "torch.optim", "errors"}
    words = {"COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER"}
    code = {line for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if tokenize.tok_name[token.type] not in words for line in range(token.start[0], token.end[0] + 1)}
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            code -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    assert 140 <= len(code) <= 160
