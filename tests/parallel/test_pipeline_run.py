"""Pipelines in real processes: the gradients, losses and norms of one process that accumulates over the same micro-batches."""

import time
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import pipelining
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from worlds import gpt

from zerocourse.comm import Comm
from zerocourse.errors import BadInput, CollectiveError, PipelineError
from zerocourse.launch.ranks import Ranks
from zerocourse.measure.ledger import Ledger
from zerocourse.models.model_layers import model_layers
from zerocourse.parallel.pipeline import Action, Pipeline, cut, gpipe, interleaved, one_f_one_b, pipedream, pipedream_2bw, plan, simulate, zb_h1
from zerocourse.parallel.pipeline.cutting import PipelineStage
from zerocourse.parallel.pipeline.schedules.delays import stage_delay
from zerocourse.parallel.pipeline.split_backward import deferring, pay
from zerocourse.parallel.pipeline.stage_messages import HEADER, Form, StageMessages, header, read_header
from zerocourse.parallel.pipeline.weighing import count_targets
from zerocourse.parallel.pipeline.weight_versions import WeightVersions

COMPUTE = {"gpipe": (gpipe, 1), "1f1b": (one_f_one_b, 1), "interleaved": (interleaved, 2), "zb-h1": (zb_h1, 1)}
COMMON = {"vocab_size": 29, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "initializer_range": 0.2}


def schedule(name: str, ranks: int, micro_batches: int):
    compute, chunks = COMPUTE[name]
    return plan(name, compute, ranks, micro_batches, chunks)


def cross_entropy(logits_BTV, targets_BT):
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())


def layers_of(kind: str) -> list[nn.Module]:
    """A model as a list of layers, the same on every rank."""
    torch.manual_seed(1)
    if kind == "stack":  # other widths between all stages
        widths = [6, 5, 9, 4, 7, 3, 8, 2]
        return [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(widths)]
    if kind == "norm":  # with statistics of each micro-batch
        return [nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)]
    if kind == "llama":
        return model_layers(LlamaForCausalLM(LlamaConfig(
            **COMMON, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=8, tie_word_embeddings=False)))
    if kind == "hf gpt2":
        return model_layers(GPT2LMHeadModel(GPT2Config(**COMMON, n_layer=2, n_head=2, n_embd=8, n_positions=8, resid_pdrop=0,
                                                       embd_pdrop=0, attn_pdrop=0, tie_word_embeddings=False)))
    return model_layers(gpt(n_layer=4, tied=kind == "tied", dropout=0.3 if kind == "dropout" else 0.0))


def data_of(kind: str, rows: int, step: int = 0):
    generator = torch.Generator().manual_seed(5 + step)
    if kind in ("stack", "norm"):
        return torch.randn(rows, 6, generator=generator), torch.randn(rows, 2, generator=generator)
    tokens = torch.randint(29, (rows, 6), generator=generator)
    targets = tokens[:, 1:].clone()
    targets[:, 1][::2] = -100  # not every row has as many targets
    return tokens[:, :-1], targets


def loss_of(kind: str):
    return F.mse_loss if kind in ("stack", "norm") else cross_entropy


def alone(kind: str, rows: int, micro_batches: int, steps: int = 1, zero: bool = True):
    """One process accumulates over the micro-batches: gradients by name, the losses, buffers, the norm."""
    model, losses = nn.Sequential(*layers_of(kind)), []
    for step in range(steps):
        if zero:
            model.zero_grad()
        inputs, targets = data_of(kind, rows, step)
        counted = [(each if each.is_floating_point() else each != -100) for each in targets.tensor_split(micro_batches)]
        counts = [len(each) if each.is_floating_point() else int(each.sum()) for each in counted]
        total = 0.0
        for x, target, count in zip(inputs.tensor_split(micro_batches), targets.tensor_split(micro_batches), counts):
            loss = loss_of(kind)(model(x), target) * (count / sum(counts))
            loss.backward()
            total += loss.item()
        losses.append(total)
    gradients = {name: param.grad for name, param in model.named_parameters()}
    norm = torch.nn.utils.get_total_norm(gradients.values()).item()
    return gradients, losses, dict(model.named_buffers()), norm


def run(name: str, kind: str, rows: int, micro_batches: int, steps: int = 1, zero: bool = True, **options):
    """The same on this rank of a pipeline; inputs and targets are given only where they are read."""
    comm = Comm()
    pipeline = Pipeline(layers_of(kind), schedule(name, comm.world_size, micro_batches), loss_of(kind), comm, **options)
    losses, sent = [], 0
    for step in range(steps):
        if zero:
            for param in pipeline.parameters():
                param.grad = None
        inputs, targets = data_of(kind, rows, step)
        before = comm.sent["send"]
        losses.append(pipeline.step(inputs if comm.rank == 0 else None,
                                    targets if comm.rank == comm.world_size - 1 else None))
        sent = comm.sent["send"] - before
    gradients = {name: param.grad.clone() for name, param in pipeline.named_parameters().items()}
    buffers = {f"{stage.numbers[int(name.split('.')[1])]}.{name.split('.', 2)[2]}": buffer
               for stage in pipeline.stages.values() for name, buffer in stage.named_buffers()}
    return gradients, losses, buffers, pipeline.clip_grad_norm(1e9), sent


def difference(got: dict, expected: dict) -> float:
    return torch.stack([(got[name].double() - value.double()).abs().max() for name, value in expected.items()]).max().item()


def merged(ranks: list, part: int = 0) -> dict:
    return {name: value for results in ranks for name, value in results[part].items()}


# -- the oracle ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("world_size, kind", ((2, "untied"), (3, "stack")))
@pytest.mark.parametrize("name", COMPUTE)
def test_gradients_are_those_of_one_process_bitwise(pool, world_size, name, kind):
    micro_batches = 2 * world_size
    gradients, losses, _, norm = alone(kind, 13, micro_batches, steps=2)
    ranks = pool(world_size).run(run, name, kind, 13, micro_batches, steps=2)
    got = merged(ranks)
    assert got.keys() == gradients.keys()
    assert all(torch.equal(got[name], gradient) for name, gradient in gradients.items())
    for results in ranks:
        assert results[1] == pytest.approx(losses, rel=1e-6) and results[3] == pytest.approx(norm, rel=1e-6)


@pytest.mark.parametrize("micro_batches", (1, 2, 3, 5))
def test_any_number_of_micro_batches_and_an_uneven_last_one(pool, micro_batches):
    """Fewer than stages, not dividing the batch, and targets that do not count: each weighs what it has."""
    gradients, losses, _, _ = alone("untied", 7, micro_batches)
    ranks = pool(3).run(run, "1f1b", "untied", 7, micro_batches)
    assert all(torch.equal(merged(ranks)[name], gradient) for name, gradient in gradients.items())
    assert ranks[1][1] == pytest.approx(losses, rel=1e-6)
    whole, _, _, _ = alone("untied", 7, 1)
    assert difference(merged(ranks), whole) < 1e-6


def with_rows_that_do_not_count(count) -> tuple[float, dict]:
    """Of 4 micro-batches the second and the last have no target that counts."""
    comm = Comm()
    pipeline = Pipeline(layers_of("untied"), schedule("1f1b", comm.world_size, 4), cross_entropy, comm, count=count)
    tokens, targets = data_of("untied", 8)
    targets[2:4] = targets[6:] = -100
    return pipeline.step(tokens, targets), {name: param.grad for name, param in pipeline.named_parameters().items()}


def count_and_leave_it_there(targets) -> torch.Tensor:
    """As `count_targets` counts on a GPU."""
    return (targets != -100).sum()


@pytest.mark.parametrize("count", (count_targets, count_and_leave_it_there))
def test_a_micro_batch_without_targets_weighs_nothing(pool, count):
    """Its own mean is NaN, which is not the batch's."""
    model, (tokens, targets) = nn.Sequential(*layers_of("untied")), data_of("untied", 8)
    targets[2:4] = targets[6:] = -100
    loss = cross_entropy(model(tokens), targets)
    loss.backward()
    found = pool(2).run(with_rows_that_do_not_count, count)
    assert all(each == pytest.approx(loss.item(), rel=1e-6) for each, _ in found)
    assert difference(merged(found, 1), {name: param.grad for name, param in model.named_parameters()}) < 1e-6


@pytest.mark.parametrize("kind", ("llama", "hf gpt2"))
def test_hugging_face_models_are_cut_by_their_blocks(pool, kind):
    gradients, _losses, _, _ = alone(kind, 4, 2)
    ranks = pool(2).run(run, "1f1b", kind, 4, 2)
    assert all(torch.equal(merged(ranks)[name], gradient) for name, gradient in gradients.items())


def test_layers_compute_what_the_model_does():
    tokens, _targets = data_of("tied", 3)
    model = gpt()
    assert torch.equal(nn.Sequential(*model_layers(model))(tokens), model(tokens))
    config = LlamaConfig(**COMMON, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2)
    for model in (LlamaForCausalLM(config), GPT2LMHeadModel(GPT2Config(**COMMON, n_layer=2, n_head=2, n_embd=8)).eval()):
        assert torch.allclose(nn.Sequential(*model_layers(model))(tokens), model(tokens).logits, atol=1e-6)
    with pytest.raises(BadInput, match="Linear has no layers that are known here"):
        model_layers(nn.Linear(2, 2))


def in_subgroup() -> dict:
    """Ranks 1 and 2 of three are a pipeline of their own, as on an axis of a mesh."""
    group = dist.new_group([1, 2])
    if dist.get_rank() == 0:
        return {}
    comm = Comm(group)
    pipeline = Pipeline(layers_of("tied"), schedule("1f1b", 2, 2), cross_entropy, comm)
    pipeline.step(*data_of("tied", 4))
    pipeline.clip_grad_norm(1e9)
    return {name: param.grad for name, param in pipeline.named_parameters().items()}


def test_a_pipeline_may_be_some_of_the_ranks(pool):
    gradients, _, _, _ = alone("tied", 4, 2)
    got = {name: value for rank in pool(3).run(in_subgroup) for name, value in rank.items()}
    assert difference(got, gradients) < 1e-6


# -- traps -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("world_size, name", ((2, "1f1b"), (3, "1f1b"), (2, "interleaved"), (2, "zb-h1")))
@pytest.mark.parametrize("zero", (True, False))
def test_a_tied_weight_gets_the_sum_of_both_gradients(pool, world_size, name, zero):
    """Its copies stay equal; and what earlier steps left in .grad is not added up, or divided, again."""
    gradients, losses, _, norm = alone("tied", 6, 4, steps=3, zero=zero)
    ranks = pool(world_size).run(run, name, "tied", 6, 4, steps=3, zero=zero)
    assert difference(merged(ranks), gradients) < 1e-6
    first, last = ranks[0][0]["0.wte.weight"], ranks[-1][0]["0.wte.weight"]
    assert torch.equal(first, last)
    for results in ranks:
        assert results[1] == pytest.approx(losses, rel=1e-6)
        assert results[3] == pytest.approx(norm, rel=1e-5), "the tied weight counts once"


def differently_initialised() -> tuple[bool, torch.Tensor]:
    comm = Comm()
    torch.manual_seed(comm.rank)
    layers = [nn.Embedding(5, 3), nn.Linear(3, 3), nn.Linear(3, 5, bias=False)]
    layers[2].weight = layers[0].weight
    pipeline = Pipeline(layers, schedule("1f1b", comm.world_size, 2), F.cross_entropy, comm, cuts=[range(1), range(1, 3)])
    return pipeline.named_parameters()["0.weight"].detach()


def test_copies_of_a_tied_weight_start_equal(pool):
    first, last = pool(2).run(differently_initialised)
    assert torch.equal(first, last)


def counted(digits: int) -> list[float]:
    """Parameter i gets the gradient 2^i in one element, so the square of the norm has a digit for each in base 4."""
    comm = Comm()
    layers = layers_of("tied")
    names = {param: index for index, param in enumerate(dict.fromkeys(nn.Sequential(*layers).parameters()))}
    pipeline = Pipeline(layers, schedule("1f1b", comm.world_size, 2), cross_entropy, comm)
    squares = []
    for start in range(0, len(names), digits):
        for param in pipeline.parameters():
            param.grad = torch.zeros_like(param)
            if start <= names[param] < start + digits:
                param.grad.view(-1)[0] = 2.0 ** (names[param] - start)
        squares.append((pipeline.clip_grad_norm(float("inf")) ** 2, min(digits, len(names) - start)))
    return squares


def test_the_norm_counts_every_parameter_once(pool):
    for squares in pool(3).run(counted, 12):
        for square, digits in squares:
            assert round(square) == sum(4**place for place in range(digits))


def clipped() -> dict:
    comm = Comm()
    pipeline = Pipeline(layers_of("tied"), schedule("1f1b", comm.world_size, 2), cross_entropy, comm)
    pipeline.step(*data_of("tied", 4))
    pipeline.clip_grad_norm(0.01)
    return {name: param.grad for name, param in pipeline.named_parameters().items()}


def test_gradients_are_clipped_by_the_norm_of_all_stages(pool):
    gradients, _, _, norm = alone("tied", 4, 2)
    assert norm > 0.1
    got = {name: value for rank in pool(2).run(clipped) for name, value in rank.items()}
    assert difference(got, {name: gradient * 0.01 / norm for name, gradient in gradients.items()}) < 1e-7


@pytest.mark.parametrize("name", ("1f1b", "zb-h1"))
def test_batch_norm_sees_each_micro_batch_once(pool, name):
    """And nothing else: shapes are found without running the modules on memory that nobody has written."""
    gradients, _, buffers, _ = alone("norm", 8, 4)
    ranks = pool(2).run(run, name, "norm", 8, 4)
    assert all(torch.equal(merged(ranks, 2)[name], buffer) for name, buffer in buffers.items()) and len(buffers) == 6
    assert all(torch.equal(merged(ranks)[name], gradient) for name, gradient in gradients.items())


def test_recomputation_draws_the_same_dropout(pool):
    """Masks depend on micro-batch and layer alone: neither the cut, nor the schedule, nor recomputation changes a bit."""
    unseeded, again = (merged(pool(2).run(run, "1f1b", "dropout", 8, 4, recompute=recompute)) for recompute in (False, True))
    assert all(torch.equal(again[name], gradient) for name, gradient in unseeded.items()), "also without a seed"
    plain, *others = [merged(pool(ranks).run(run, name, "dropout", 8, 4, steps=2, seed=3, recompute=recompute))
                      for ranks, name, recompute in ((2, "1f1b", False), (2, "1f1b", True), (2, "interleaved", False),
                                                     (2, "zb-h1", True), (3, "gpipe", True))]
    for other in others:
        assert all(torch.equal(other[name], gradient) for name, gradient in plain.items())
    another_seed = merged(pool(2).run(run, "1f1b", "dropout", 8, 4, steps=2, seed=4))
    no_dropout = merged(pool(2).run(run, "1f1b", "untied", 8, 4, steps=2))
    assert difference(plain, another_seed) > 1e-4 and difference(plain, no_dropout) > 1e-4


def test_each_layer_of_each_micro_batch_and_step_has_masks_of_its_own():
    stage = PipelineStage([nn.Dropout(0.5), nn.Dropout(0.5)], range(2), seed=3)
    ones, masks = torch.ones(64), []
    for options in ({}, {"micro_batch": 1}, {"step": 1}, {"micro_batch": 1, "step": 1}):
        before = torch.random.get_rng_state()
        masks.append(stage(ones, **options))
        assert torch.equal(masks[-1], stage(ones, **options)) and torch.equal(torch.random.get_rng_state(), before)
    assert all(not torch.equal(one, other) for at, one in enumerate(masks) for other in masks[:at])
    assert 4 < int((masks[0] == 4).sum()) < 28, "kept by both layers, whose masks differ: a quarter"


def shared_in_one_rank() -> tuple[int, torch.Tensor]:
    """Interleaved: stages 0 and 2 are on rank 0, and share a weight."""
    comm = Comm()
    torch.manual_seed(1)
    layers = [nn.Linear(2, 2) for _ in range(4)]
    layers[2].weight = layers[0].weight
    pipeline = Pipeline(layers, schedule("interleaved", 2, 4), F.mse_loss, comm)
    pipeline.step(torch.ones(4, 2), torch.zeros(4, 2))
    return len(pipeline.ties.mine), pipeline.parameters()[0].grad


def test_weights_shared_inside_of_a_rank_need_no_message(pool):
    (ties, gradient), _ = pool(2).run(shared_in_one_rank)
    torch.manual_seed(1)
    layers = [nn.Linear(2, 2) for _ in range(4)]
    layers[2].weight = layers[0].weight
    F.mse_loss(nn.Sequential(*layers)(torch.ones(4, 2)), torch.zeros(4, 2)).backward()
    assert ties == 0 and torch.allclose(gradient, layers[0].weight.grad)


def integers_on_the_way() -> list:
    """Layers that pass on a tuple, of which one tensor is integer, one has no gradient, and one is not read further."""
    class Passes(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))

        def forward(self, x, number=None, mask=None, unread=None):
            x = x * self.weight
            number = torch.tensor(len(x)) if number is None else number
            return x * number, number, torch.ones(2) if mask is None else mask, x + 1

    class Sum(nn.Module):
        def forward(self, x, number, mask, unread):
            return (x * mask).sum(1)

    comm = Comm()
    pipeline = Pipeline([Passes(), Passes(), Sum()], schedule("gpipe", comm.world_size, 2), F.mse_loss, comm,
                        cuts=[range(1), range(1, 3)])
    pipeline.step(torch.ones(4, 2), torch.zeros(4))
    return list(pipeline.messages.forms.values())[0], pipeline.parameters()[0].grad


def test_a_stage_may_pass_on_integers_and_tensors_without_gradient(pool):
    (forms, first), (same, second) = pool(2).run(integers_on_the_way)
    assert forms == same == [Form(torch.float32, True, (2, 2)), Form(torch.int64, False, ()),
                             Form(torch.float32, False, (2,)), Form(torch.float32, True, (2, 2))]
    x = torch.ones(4, 2)
    weights = [torch.tensor([2.0, 3.0], requires_grad=True) for _ in range(2)]
    F.mse_loss((x * weights[0] * 2 * weights[1] * 2).sum(1), torch.zeros(4)).backward()
    assert torch.allclose(first, weights[0].grad) and torch.allclose(second, weights[1].grad)


def test_a_header_says_it_all():
    forms = [Form(torch.bfloat16, True, (3, 4, 5)), Form(torch.bool, False, ())]
    assert read_header(header(forms).tolist()) == forms and header(forms).numel() == HEADER
    with pytest.raises(BadInput, match="do not fit"):
        header([Form(torch.float32, True, (1,) * 5)] * 8)
    with pytest.raises(BadInput, match="cannot send torch.complex64"):
        header([Form(torch.complex64, True, ())])


def test_w_computes_what_i_left():
    """I computes no linear layer's weight gradient, W all of them, and a hook on the parameter is called in W."""
    torch.manual_seed(0)
    model, owed, called = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2, bias=False)), [], []
    model[0].weight.register_post_accumulate_grad_hook(lambda param: called.append(param))
    x = torch.randn(5, 2, 3, requires_grad=True)
    plain = x.detach().requires_grad_()
    with deferring(owed):
        model(x).square().sum().backward()
    assert model[0].weight.grad is None and model[2].weight.grad is None and not called
    assert model[1].weight.grad is not None and len(owed) == 2
    pay(owed)
    got = [param.grad for param in model.parameters()]
    model.zero_grad()
    called.clear()
    model(plain).square().sum().backward()
    assert all(torch.equal(one, param.grad) for one, param in zip(got, model.parameters())) and len(called) == 1
    assert torch.equal(x.grad, plain.grad) and not owed
    with deferring(owed):  # of a first layer neither the input nor a bias needs a gradient
        model[2](torch.randn(3, 4)).sum().backward()
    assert len(owed) == 1


# -- bytes -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name, crossings", [("gpipe", 1), ("1f1b", 1), ("interleaved", 3), ("zb-h1", 1)])
def test_bytes_sent_are_the_formulas(pool, name, crossings):
    """Each boundary between ranks carries each micro-batch's activation and its gradient, and headers only once."""
    ranks = pool(2).run(run, name, "untied", 8, 4, steps=2)
    assert sum(results[4] for results in ranks) == 2 * crossings * 8 * 5 * 8 * 4  # rows, tokens, width, bytes
    first = pool(2).run(run, name, "untied", 8, 4, steps=1)
    assert sum(results[4] for results in first) == 2 * crossings * 8 * 5 * 8 * 4 + crossings * 8 * HEADER


class Keeps(nn.Module):
    """Saves for backward one tensor of the size of its output, 16 elements per row, which nothing else refers to."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x):
        return (x * self.weight).exp() * 1.0 + self.weight  # exp saves its output; x is the stage's input


def held(name: str, micro_batches: int) -> tuple[int, list[int]]:
    """Peak bytes of a step beside parameters and gradients."""
    comm = Comm()
    pipeline = Pipeline([Keeps(), Keeps(), Keeps()], schedule(name, comm.world_size, micro_batches),
                        lambda out, target: out.mean(), comm)
    inputs = torch.ones(4 * micro_batches, 16)
    pipeline.step(inputs, inputs[:, 0])  # from now on nothing is new
    with Ledger(nn.ModuleList(pipeline.stages.values())) as ledger:
        ledger.track(inputs)
        ledger.reset_peak()
        pipeline.step(inputs, inputs[:, 0])
        return ledger.peak, pipeline.comm.rank


def test_activations_in_flight_are_the_formulas_bytes(pool):
    """Peaks grow by what is held per micro-batch, times what the list says is in flight."""
    peaks = {(name, m): [peak for peak, _ in pool(3).run(held, name, m)] for name in ("gpipe", "1f1b") for m in (4, 6)}
    batch = 2 * 4 * 16 * 4  # bytes of the two more micro-batches of inputs, which every rank of this test has
    for rank in range(3):
        each = 4 * 16 * 4 * (1 if rank == 0 else 2)  # what exp saved; and the input, where it was received
        growth = {name: peaks[name, 6][rank] - peaks[name, 4][rank] - batch for name in ("gpipe", "1f1b")}
        assert 0 <= growth["1f1b"] < 200, "losses and small change"
        assert 2 * each <= growth["gpipe"] < 2 * each + 200
        saved = simulate(schedule("gpipe", 3, 6)).in_flight(rank) - simulate(schedule("1f1b", 3, 6)).in_flight(rank)
        assert abs(peaks["gpipe", 6][rank] - peaks["1f1b", 6][rank] - saved * each) <= 4 * 16 * 4 + 200


# -- faults ----------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def spoiled():
    with Ranks(3, timeout=60, quiet=True) as ranks:
        yield ranks


class Fails(nn.Module):
    def __init__(self, number: int):
        super().__init__()
        self.calls, self.number = 0, number
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        self.calls += 1
        if self.calls == self.number:
            raise ValueError("no such thing")
        return x * self.weight


def failing() -> tuple[float, str]:
    comm = Comm(timeout=30)
    layers = [nn.Linear(2, 2), Fails(3), Fails(0)]
    pipeline = Pipeline(layers, schedule("1f1b", 3, 4), F.mse_loss, comm)
    comm.all_gather_object("all are here")
    begun = time.monotonic()
    try:
        pipeline.step(torch.ones(4, 2), torch.ones(4, 2))
        return 0.0, "nothing"
    except (PipelineError, CollectiveError) as error:
        return time.monotonic() - begun, str(error)


def test_a_fault_in_one_rank_ends_all_with_its_coordinates():
    with Ranks(3, timeout=60, quiet=True) as ranks:
        found = ranks.run(failing)
    sentence = "F2 of stage 1 failed on rank 1 of 3, in layers 1: ValueError: no such thing"
    assert found[1][1] == sentence
    for rank in (0, 2):
        assert found[rank][0] < 15 and sentence in found[rank][1], found[rank]


def refused() -> list[str]:
    comm, sentences = Comm(), []
    right = schedule("1f1b", comm.world_size, 4)
    lists = [list(actions) for actions in right.actions]
    lists[0].insert(0, lists[0].pop(lists[0].index(Action("RECV B", 0, 0))))
    layers = layers_of("stack")
    tied = [nn.Linear(2, 2), nn.Linear(2, 2)]
    tied[1].weight = tied[0].weight
    pipeline = Pipeline(layers, right, F.mse_loss, comm)
    for make in (lambda: Pipeline(layers, schedule("1f1b", 7, 4), F.mse_loss, comm),
                 lambda: Pipeline(layers[:1], right, F.mse_loss, comm),
                 lambda: Pipeline(layers, right, F.mse_loss, comm, cuts=[range(2), range(3, 7)]),
                 lambda: Pipeline(layers, right._replace(actions=lists), F.mse_loss, comm),
                 lambda: Pipeline(layers, right._replace(actions=[right.actions[0][1:], right.actions[1]]), F.mse_loss, comm),
                 lambda: Pipeline(layers, plan("pipedream", pipedream, 2, 4), F.mse_loss, comm),
                 lambda: Pipeline(tied, plan("pipedream", pipedream, 2, 4), F.mse_loss, comm,
                                  optimizer=lambda params: torch.optim.SGD(params, lr=0.1)),
                 lambda: pipeline.step(None, None),
                 lambda: pipeline.step(torch.ones(3, 6), torch.ones(3, 2)),
                 lambda: pipeline.step([torch.ones(3, 6)] * 3, [torch.ones(3, 2)] * 3)):
        try:
            make()
            sentences.append("nothing")
        except BadInput as error:
            sentences.append(str(error))
    return sentences


def test_what_cannot_be_run_is_refused_on_every_rank_before_anything_is_sent(pool):
    for rank, found in enumerate(pool(2).run(refused)):
        for sentence, words in zip(found, (
                "a schedule for 7 ranks, and this Comm has 2", "1 layers cannot be cut into 2 stages", "cuts are",
                "would deadlock: a ring of waits", "cannot be run: micro-batch 0 in stage 0", "it needs an optimizer",
                "weight of stage 0 may not be shared", f"step needs {'targets' if rank else 'inputs'} on this rank",
                "has 3 rows, which cannot be cut into 4", "a list of 3 micro-batches: the plan has 4"), strict=True):
            assert words in sentence, sentence


def given(kind: str) -> tuple[str, float, str, float]:
    """A batch that rank 0 or 2 of three cannot run, and then a good one."""
    comm = Comm(timeout=5)
    count = (lambda target: 1 if len(target) < 9 else target.no_such_thing) if kind == "count" else count_targets
    pipeline = Pipeline(layers_of("stack"), schedule("1f1b", 3, 4), F.mse_loss, comm, count=count)
    inputs, targets = data_of("stack", 4)
    bad = {"rows": (inputs[:3], targets), "number": (inputs, [targets] * 5), "number of both": ([inputs], [targets] * 5), "none": (None, None),
           "not one": (7, targets), "count": (inputs, [torch.zeros(9, 2)] * 4)}[kind]
    comm.all_gather_object("all are here")
    begun = time.monotonic()
    try:
        pipeline.step(*bad)
    except Exception as error:
        return type(error).__name__, time.monotonic() - begun, str(error), pipeline.step(inputs, targets)


@pytest.mark.parametrize("kind, whose, sentence", (
    ("rows", {0}, "inputs has 3 rows, which cannot be cut into 4 micro-batches"),
    ("number", {2}, "targets is a list of 5 micro-batches: the plan has 4"), ("number of both", {0, 2}, "inputs is a list of 1 micro-batches"),
    ("none", {0, 2}, "step needs inputs on this rank, which has the first stage"), ("not one", {0}, "object of type 'int' has no len()"),
    ("count", {2}, "no attribute 'no_such_thing'")))
def test_a_batch_that_one_rank_cannot_run_is_refused_on_all_at_once(pool, kind, whose, sentence):
    """No rank waits for one that will not come, and all can run the next batch."""
    loss = alone("stack", 4, 4)[1][0]
    for rank, (error, seconds, said, after) in enumerate(pool(3).run(given, kind)):
        assert seconds < 3 and after == pytest.approx(loss), (rank, seconds, after)
        if rank in whose:
            assert "cannot run" not in said and (rank > min(whose) or sentence in said), (rank, said)
        else:
            assert error == "BadInput" and f"rank {min(whose)} of 3 cannot run its part of the batch: " in said and sentence in said, (rank, said)


def changing() -> str:
    class Changes(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x).repeat(1, self.calls)

    comm = Comm(timeout=10)
    pipeline = Pipeline([Changes(2, 2), nn.Identity()], schedule("gpipe", 2, 2), F.mse_loss, comm)
    try:
        pipeline.step(torch.ones(4, 2), torch.ones(4, 2))
    except (BadInput, CollectiveError) as error:
        return str(error)


def test_a_shape_that_changes_without_its_input_is_said():
    with Ranks(2, timeout=60, quiet=True) as ranks:
        for words in ranks.run(changing):
            assert "stage 0 made (2, 4) float32, and of an input of the same shape before (2, 2) float32" in words


def weighted_targets() -> tuple[float, dict]:
    """The loss, and the gradients, of targets that are each a tuple: values, and what each row weighs."""
    comm, (x, target) = Comm(), (torch.randn(5, width, generator=torch.Generator().manual_seed(width)) for width in (6, 2))
    pairs = [(target[:3], torch.ones(3, 1)), (target[3:], torch.full((2, 1), 3.0))]  # 3 rows, and 2
    pipeline = Pipeline(layers_of("stack"), schedule("1f1b", comm.world_size, 2), weighted, comm)
    loss = pipeline.step([x[:3], x[3:]], pairs)
    return loss, {name: param.grad for name, param in pipeline.named_parameters().items()}


def weighted(output: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return ((output - target).square() * weight).mean()


def test_a_target_may_be_a_tuple(pool):
    x, target = (torch.randn(5, width, generator=torch.Generator().manual_seed(width)) for width in (6, 2))
    model = nn.Sequential(*layers_of("stack"))
    loss = weighted(model(x), target, torch.tensor([1.0] * 3 + [3.0] * 2)[:, None])
    loss.backward()
    found = pool(2).run(weighted_targets)
    gradients = merged([(grads,) for _, grads in found])
    assert [each for each, _ in found] == pytest.approx([loss.item()] * 2)
    assert all(torch.allclose(gradients[name], param.grad, atol=1e-6) for name, param in model.named_parameters())


# -- without a flush: PipeDream --------------------------------------------------------------------------------------

RATE, WIDTHS = 0.1, [4, 5, 3, 2]


def bends() -> list[nn.Module]:
    torch.manual_seed(2)
    return [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(WIDTHS)]


def rows(micro_batches: int):
    generator = torch.Generator().manual_seed(9)
    return (torch.randn(2 * micro_batches, WIDTHS[0], generator=generator),
            torch.randn(2 * micro_batches, WIDTHS[-1], generator=generator))


def without_flush(compute, micro_batches: int, weights: str, calls: int = 1) -> tuple[dict, list[int]]:
    """The micro-batches run in so many calls of `step`."""
    comm = Comm()
    pipeline = Pipeline(bends(), plan("", compute, comm.world_size, micro_batches // calls), F.mse_loss, comm, weights=weights,
                        optimizer=lambda params: torch.optim.SGD(params, lr=RATE))
    for inputs, targets in zip(*(values.tensor_split(calls) for values in rows(micro_batches))):
        pipeline.step(inputs, targets)
    return ({name: param.detach() for name, param in pipeline.named_parameters().items()},
            [versions.most for versions in pipeline.versions.values()])


def delayed(delay_of_stage: list[int], micro_batches: int, every: int = 1) -> dict:
    """One process: update k of a stage applies the gradient at the weights that each stage had `delay` updates before."""
    layers = bends()
    history = [[{name: value.detach().clone() for name, value in layer.named_parameters()}] for layer in layers]
    inputs, targets = rows(micro_batches)
    pairs = list(zip(inputs.tensor_split(micro_batches), targets.tensor_split(micro_batches)))
    for update in range(micro_batches // every):
        versions = [{name: value.clone().requires_grad_() for name, value in past[max(update - delay, 0)].items()}
                    for past, delay in zip(history, delay_of_stage)]
        for x, target in pairs[update * every : (update + 1) * every]:
            for layer, version in zip(layers, versions):
                x = torch.func.functional_call(layer, version, (x,))
            (F.mse_loss(x, target) * (1 / every)).backward()
        for past, version in zip(history, versions):
            past.append({name: torch.add(value.detach(), version[name].grad, alpha=-RATE) for name, value in past[-1].items()})
    return {f"{number}.{name}": value for number, past in enumerate(history) for name, value in past[-1].items()}


def test_pipedream_is_a_training_with_delays(pool):
    """Stage i's updates are p - 1 - i late, and it keeps p - i versions of its weights."""
    found = pool(3).run(without_flush, pipedream, 9, "stash")
    expected = delayed([2, 1, 0], 9)
    assert all(torch.equal(merged(found)[name], value) for name, value in expected.items())
    assert [most for _, most in found] == [[3], [2], [1]]
    assert difference(merged(found), delayed([0, 0, 0], 9)) > 1e-3


@pytest.mark.parametrize("calls", (1, 2, 4))
def test_2bw_is_late_by_one_update_everywhere(pool, calls):
    """Also by the last update of the call before, and where a call has one update only."""
    found = pool(3).run(without_flush, pipedream_2bw, 12, "two versions", calls)
    expected = delayed([1, 1, 1], 12, every=3)
    assert all(torch.equal(merged(found)[name], value) for name, value in expected.items())
    assert [most for _, most in found] == [[2], [2], [2]]


def test_without_stashes_a_backward_reads_weights_that_its_forward_did_not_have(pool):
    """The last stage has no delay, so it needs no stash; the others follow the gradient of no function."""
    found = pool(3).run(without_flush, pipedream, 9, "latest")
    assert [most for _, most in found] == [[1], [1], [1]]
    for delays in ([2, 1, 0], [0, 0, 0]):
        assert difference(merged(found), delayed(delays, 9)) > 1e-3


def all_delays() -> list[int]:
    ranks = Comm().world_size
    return [stage_delay(plan("", one_f_one_b, ranks, 2), updates=50),
            stage_delay(plan("", pipedream, ranks, 50), "stash", updates=50),
            stage_delay(plan("", pipedream, ranks, 50), "latest", updates=50),
            stage_delay(plan("", pipedream_2bw, ranks, 50 * ranks), "two versions", updates=50)]


def test_the_meter_of_staleness_reads_the_delays(pool):
    """And it reads none without stashes, where the backward's weights are new: late is not what is wrong with that."""
    assert pool(3).run(all_delays) == [[0, 2, 0, 1], [0, 1, 0, 1], [0, 0, 0, 1]]


def test_there_are_three_policies():
    with pytest.raises(BadInput, match="weights is 'newest'"):
        WeightVersions(nn.Linear(1, 1), "newest")


# -- on a GPU --------------------------------------------------------------------------------------------------------

def with_a_device_that_cannot_be_read() -> list:
    """The tensors on "meta" stand for those on a GPU. What a rank must read for itself stays on the CPU."""
    comm = Comm()
    pipeline = Pipeline(layers_of("stack"), schedule("gpipe", comm.world_size, 3), F.mse_loss, comm)
    pipeline.forget()
    pipeline.device = torch.device("meta")
    pipeline.inputs = [(torch.empty(rows, 6, device="meta"),) for rows in (2, 1, 2)] if comm.rank == 0 else []
    messages = StageMessages(pipeline.plan, comm, pipeline.device)
    messages._receive = lambda kind, name, peer, forms: [torch.empty(form.shape, device="meta") for form in forms]
    messages._post = lambda kind, peer, messages: [comm.send(tensor, peer, name).wait() for name, tensor in messages if "header" in name]
    if comm.rank == 0:
        messages.send_outputs("F0", 1, 0, 0, [torch.ones(3, 2, device="meta", requires_grad=True)])
    else:
        messages.receive_outputs("F0", 0, 0, 0)
    counts = count_targets(torch.empty(3, dtype=torch.int64, device="meta")), count_targets(torch.empty(3, 2, device="meta"))
    return [pipeline.agree_on_kinds(), messages.forms[0, 0], isinstance(counts[0], torch.Tensor), counts[1]]


def test_shapes_and_shares_are_not_read_from_a_gpu(pool):
    assert pool(2).run(with_a_device_that_cannot_be_read) == [[[0, 1, 0], [Form(torch.float32, True, (3, 2))], True, 3]] * 2


# -- cutting ---------------------------------------------------------------------------------------------------------

def test_stages_are_as_even_as_they_can_be():
    assert cut([1] * 7, 3) == [range(2), range(2, 4), range(4, 7)] or max(map(len, cut([1] * 7, 3))) == 3
    assert cut([5, 1, 1, 1, 5], 3) == [range(1), range(1, 4), range(4, 5)]
    assert cut([1, 1, 9], 2) == [range(2), range(2, 3)]
    for stages in (0, 4):
        with pytest.raises(BadInput, match=f"3 layers cannot be cut into {stages} stages"):
            cut([1, 1, 1], stages)


# -- beside torch.distributed.pipelining -----------------------------------------------------------------------------

def torchs(name: str, micro_batches: int) -> dict:
    """The same cut, by torch."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    layers = layers_of("untied")
    numbers = cut([1] * len(layers), ranks)[rank]
    module = nn.Sequential(*(layers[number] for number in numbers))
    stage = pipelining.PipelineStage(module, rank, ranks, torch.device("cpu"))
    kind = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}[name]
    tokens, targets = data_of("untied", 8)
    targets = targets.clamp(min=0)  # torch weighs micro-batches as equals
    kind(stage, micro_batches, loss_fn=cross_entropy).step(
        *([tokens] if rank == 0 else []), **({"target": targets} if rank == ranks - 1 else {}))
    return {f"{numbers[int(name.split('.')[0])]}.{name.partition('.')[2]}": param.grad
            for name, param in module.named_parameters()}


def ours(name: str, micro_batches: int) -> dict:
    comm = Comm()
    pipeline = Pipeline(layers_of("untied"), schedule(name, comm.world_size, micro_batches), cross_entropy, comm)
    tokens, targets = data_of("untied", 8)
    pipeline.step(tokens, targets.clamp(min=0))
    return {name: param.grad for name, param in pipeline.named_parameters().items()}


@pytest.mark.parametrize("name", ("gpipe", "1f1b"))
def test_torchs_own_schedules_give_the_same_gradients(pool, name):
    for theirs, mine in zip(pool(2).run(torchs, name, 4), pool(2).run(ours, name, 4), strict=True):
        assert theirs.keys() == mine.keys()
        assert difference(mine, theirs) < 1e-7
