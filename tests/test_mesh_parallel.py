"""A mesh in real processes: TP × PP × ZeRO equals one process, sends by axis what the formulas say, and names its ranks."""

import copy

import pytest
import torch
import torch.nn.functional as F

from zerocourse.errors import BadInput
from zerocourse.layout.mesh import BETWEEN, INSIDE, Mesh
from zerocourse.launch import RankError
from zerocourse.models.gpt2 import GPT, GPTConfig
from zerocourse.models.model_layers import model_layers
from zerocourse.parallel.mesh_comms import MeshComms
from zerocourse.parallel.norms import audit
from zerocourse.parallel.pipeline import Pipeline, one_f_one_b, plan, zb_h1
from zerocourse.parallel.pipeline.sharded import shard_stages
from zerocourse.parallel.three_d import Parallel3D
from zerocourse.zero.consolidate import state_dict

L, C, T, V, ROWS = 4, 16, 8, 23, 2  # ROWS: of a micro-batch


def whole_model(tied=True):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    try:
        model = GPT(GPTConfig(L, 4, C, block_size=T, vocab_size=V, tied=tied))
    finally:
        torch.set_default_dtype(torch.float32)
    model.loss = lambda logits, targets: F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return model


def batch(step, rows):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(V, (2, rows, T), generator=generator)


def adamw(params):
    return torch.optim.AdamW(params, lr=1e-2)


def one_process(steps, rows, clip, tied):
    """Losses, norms and weights."""
    model = whole_model(tied)
    optimizer, losses, norms = adamw(model.parameters()), [], []
    for step in range(steps):
        tokens, targets = batch(step, rows)
        loss = model(tokens, targets)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms, {name: value.detach() for name, value in zip(names_of(whole_model(tied)), layer_values(model))}


def names_of(model):
    return [f"{number}.{name}" for number, layer in enumerate(model_layers(model)) for name, _ in layer.named_parameters()]


def layer_values(model):
    return [param for layer in model_layers(model) for _, param in layer.named_parameters()]


def on_a_mesh(sizes, stage, micro_batches, steps, clip, tied, sequence):
    comms = MeshComms(Mesh.ordered("megatron", sizes, per_node=2), timeout=20)
    trainer = Parallel3D(whole_model(tied), comms, adamw, micro_batches, stage=stage, sequence=sequence, clip=clip)
    data, losses, norms = comms.along("dp"), [], []
    rows = ROWS * micro_batches
    for step in range(steps):
        tokens, targets = batch(step, rows * data.world_size)
        own = slice(rows * data.rank, rows * (data.rank + 1))
        losses.append(trainer.step(tokens[own], targets[own]))
        norms.append(trainer.norm)
    weights = {}
    for module in trainer.pipeline.stages.values():
        values = state_dict(module)
        for name, param in module.named_parameters(remove_duplicate=False):
            layer, _, rest = name.removeprefix("layers.").partition(".")
            weights[f"{module.numbers[int(layer)]}.{rest}"] = (values[name], getattr(param, "tensor_cut", None), comms.along("tp").rank)
    return losses, norms, weights, comms.sent


@pytest.mark.parametrize("sizes, stage, tied, sequence", (
    ({"pp": 2, "tp": 2}, 1, True, False), ({"pp": 2, "dp": 2}, 0, True, False), ({"pp": 2, "dp": 2}, 1, True, False),
    ({"pp": 2, "dp": 2}, 2, True, False), ({"pp": 2, "dp": 2}, 3, True, False), ({"dp": 2, "tp": 2}, 3, False, True),
    ({"pp": 2, "dp": 2, "tp": 2}, 1, True, True), ({"pp": 2, "dp": 2, "tp": 2}, 3, False, False),
))
def test_equals_one_process(pool, sizes, stage, tied, sequence):
    steps, clip, micro_batches = 2, 0.5, 2
    ranks = torch.Size(sizes.values()).numel()
    results = pool(ranks).run(on_a_mesh, sizes, stage, micro_batches, steps, clip, tied, sequence)
    losses, norms, weights = one_process(steps, ROWS * micro_batches * sizes.get("dp", 1), clip, tied)
    seen = set()
    for rank, (ours, our_norms, values, _) in enumerate(results):
        assert ours == pytest.approx(losses, rel=1e-9) and our_norms == pytest.approx(norms, rel=1e-6), f"rank {rank}"
        for name, (value, cut, at) in values.items():
            expected = weights[name] if cut is None else cut.take(weights[name], at)
            assert (value - expected).abs().max() < 1e-8, (rank, name)
            seen.add(name)
    assert seen == set(weights)
