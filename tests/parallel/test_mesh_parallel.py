"""A mesh in real processes: TP × PP × ZeRO equals one process, sends by axis what the formulas say, and names its ranks."""

import json
import time

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from zerocourse import shard
from zerocourse.comm import Comm
from zerocourse.errors import BadInput, CollectiveError
from zerocourse.launch import RankError
from zerocourse.launch.ranks import Ranks
from zerocourse.layout.mesh import BETWEEN, INSIDE, Mesh
from zerocourse.models.gpt2 import GPT, GPTConfig
from zerocourse.models.model_layers import model_layers
from zerocourse.parallel.mesh_checkpoint import load_on_mesh, save_on_mesh
from zerocourse.parallel.mesh_comms import MeshComms
from zerocourse.parallel.norms import audit, norms_by_stage
from zerocourse.parallel.pipeline import Pipeline, interleaved, one_f_one_b, plan, zb_h1
from zerocourse.parallel.three_d import Parallel3D
from zerocourse.parallel.which_axis import which_axis
from zerocourse.zero.whole.consolidate import state_dict

L, C, T, V, ROWS = 4, 16, 8, 23, 2  # ROWS: of a micro-batch
TIED = f"{L + 1}.head.weight"  # is 0.wte.weight


def whole_model(tied=True):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    try:
        model = GPT(GPTConfig(L, 4, C, block_size=T, vocab_size=V, tied=tied))
    finally:
        torch.set_default_dtype(torch.float32)
    model.loss = lambda logits, targets: F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return model


def whole_llama(kv_heads=2):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=V, hidden_size=C, intermediate_size=44, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=kv_heads,
        max_position_embeddings=T, tie_word_embeddings=False)).double()


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


def on_a_mesh(sizes, stage, micro_batches, steps, clip, tied, sequence, chunks=1, recompute=False):
    comms = MeshComms(Mesh.ordered("megatron", sizes, per_node=2), timeout=20)
    trainer = Parallel3D(whole_model(tied), comms, adamw, micro_batches, stage=stage, sequence=sequence, clip=clip, recompute=recompute,
                         schedule=interleaved if chunks > 1 else one_f_one_b, chunks=chunks)
    data, losses, norms = comms.along("dp"), [], []
    rows = ROWS * micro_batches
    for step in range(steps):
        tokens, targets = batch(step, rows * data.world_size)
        own = slice(rows * data.rank, rows * (data.rank + 1))
        losses.append(trainer.step(tokens[own], targets[own]))
        norms.append(trainer.norm)
    weights = {}
    for module in trainer.pipeline.sharded_modules:
        values = state_dict(module)
        for name, param in module.named_parameters(remove_duplicate=False):
            inside, _, layer = name.rpartition("layers.")
            number, _, rest = layer.partition(".")
            numbers = module.get_submodule(inside.rstrip(".")).numbers
            weights[f"{numbers[int(number)]}.{rest}"] = (values[name], getattr(param, "tensor_cut", None), comms.along("tp").rank)
    return losses, norms, weights, comms.sent


@pytest.mark.parametrize("sizes, stage, tied, sequence, chunks", [each if len(each) == 5 else (*each, 1) for each in (
    ({"pp": 2, "tp": 2}, 1, True, False), ({"pp": 2, "dp": 2}, 2, True, False, 2), ({"pp": 2, "dp": 2}, 0, True, False),
    ({"pp": 2, "dp": 2}, 1, True, False),
    ({"pp": 2, "dp": 2}, 2, True, False), ({"pp": 2, "dp": 2}, 3, True, False), ({"dp": 2, "tp": 2}, 3, False, True),
    ({"pp": 2, "dp": 2, "tp": 2}, 1, True, True), ({"pp": 2, "dp": 2, "tp": 2}, 3, False, False),
    *(({"pp": 1, "dp": 2, "tp": 1}, stage, True, False, 2) for stage in range(4)),  # both chunks, which share a weight, on one rank
)])
def test_equals_one_process(pool, sizes, stage, tied, sequence, chunks):
    check_equals_one_process(pool, sizes, stage, tied, sequence, chunks)


@pytest.mark.parametrize("sizes, stage, sequence", (({"pp": 2, "tp": 2}, 1, True), ({"pp": 2, "dp": 2}, 3, False), ({"dp": 2, "tp": 2}, 2, True)))
def test_layers_that_are_computed_again(pool, sizes, stage, sequence):
    """What tensor parallelism and ZeRO hook to a block is run, once: its tokens are cut, its parameters are gathered."""
    check_equals_one_process(pool, sizes, stage, True, sequence, recompute=True)


def check_equals_one_process(pool, sizes, stage, tied, sequence, chunks=1, recompute=False):
    steps, clip, micro_batches = 2, 0.5, 2
    ranks = torch.Size(sizes.values()).numel()
    results = pool(ranks).run(on_a_mesh, sizes, stage, micro_batches, steps, clip, tied, sequence, chunks, recompute)
    losses, norms, weights = one_process(steps, ROWS * micro_batches * sizes.get("dp", 1), clip, tied)
    seen = set()
    for rank, (ours, our_norms, values, _) in enumerate(results):
        assert ours == pytest.approx(losses, rel=1e-9) and our_norms == pytest.approx(norms, rel=1e-6), f"rank {rank}"
        for name, (value, cut, at) in values.items():
            expected = weights[name] if cut is None else cut.take(weights[name], at)
            assert (value - expected).abs().max() < 1e-8, (rank, name)
            seen.add(name)
    assert seen == set(weights)


def llama_on_a_mesh(sizes, sequence):
    comms = MeshComms(Mesh.ordered("megatron", sizes, per_node=2), timeout=20)
    trainer = Parallel3D(whole_llama(), comms, adamw, 2, sequence=sequence)
    return [trainer.step(*batch(step, 2 * ROWS)) for step in range(3)]


@pytest.mark.parametrize("sizes, sequence", (({"pp": 2, "tp": 2}, False), ({"pp": 2, "tp": 2}, True), ({"pp": 2}, False)))
def test_a_llama_of_hugging_face(pool, sizes, sequence):
    """Its loss is its own, which casts to fp32 where the head is whole."""
    model = whole_llama()
    optimizer, losses = adamw(model.parameters()), []
    for step in range(3):
        tokens, targets = batch(step, 2 * ROWS)
        loss = F.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    for ours in pool(torch.Size(sizes.values()).numel()).run(llama_on_a_mesh, sizes, sequence):
        assert ours == pytest.approx(losses, rel=1e-9 if "tp" in sizes else 1e-6)


def traffic(stage, micro_batches):
    comms = MeshComms(Mesh({"pp": 2, "dp": 2, "tp": 1}, per_node=2), timeout=20)
    trainer = Parallel3D(whole_model(), comms, adamw, micro_batches, stage=stage)
    trainer.step(*batch(0, ROWS * micro_batches))  # the first step tells the shapes, too
    before = comms.elements["dp"], comms.elements["pp"]
    trainer.step(*batch(1, ROWS * micro_batches))
    own = sum(param.numel() for param in trainer.pipeline.parameters())
    return own, comms.elements["dp"] - before[0], comms.elements["pp"] - before[1], comms.sent_over, comms.sent


@pytest.mark.parametrize("stage, micro_batches, passes", ((0, 2, 2), (1, 2, 2), (1, 3, 2), (2, 2, 3), (2, 3, 4), (3, 2, 6), (3, 3, 9)))
def test_what_zero_sends_in_a_pipeline(pool, stage, micro_batches, passes):
    """2Ψ at stage 1, (m + 1)Ψ at stage 2, 3mΨ at stage 3, over the data-parallel axis; and the pipeline sends activations,
    their gradients, and the slices of what is tied."""
    results = pool(4).run(traffic, stage, micro_batches)
    for replica in (0, 1), (2, 3):
        own = results[replica[0]][0]
        assert sum(results[rank][1] for rank in replica) == passes * own  # times N - 1, which is 1
    tied = V * C
    for pair in (0, 2), (1, 3):
        sent = sum(results[rank][2] for rank in pair)
        assert sent == 2 * micro_batches * ROWS * T * C + 2 * (tied if stage == 0 else tied // 2)
    for _, _, _, over, sent in results:
        assert over == {INSIDE: sent["dp"] + sent["tp"], BETWEEN: sent["pp"]}


def audited(sizes, stage, planted):
    comms = MeshComms(Mesh.ordered("megatron", sizes), timeout=20)
    trainer = Parallel3D(whole_model(), comms, adamw, 2, stage=stage)
    pipeline = trainer.pipeline
    if planted:
        for module in pipeline.stages.values():
            for flat in module.zero.flats:
                flat.counts_in_norm = True
    whole = comms.make("pp", "dp", "tp")
    return audit(pipeline.named_parameters(), pipeline.grad_norm, whole, [module.zero for module in pipeline.stages.values()])


@pytest.mark.parametrize("stage", (0, 1, 3))
def test_a_norm_over_the_mesh_counts_each_parameter_once(pool, stage):
    for counted in pool(8).run(audited, {"pp": 2, "dp": 2, "tp": 2}, stage, False):
        assert counted.keys() == set(names_of(whole_model())) - {TIED} and set(counted.values()) == {1}


def stage_norms(stage):
    comms = MeshComms(Mesh({"pp": 2, "dp": 2, "tp": 2}), timeout=20)
    trainer = Parallel3D(whole_model(), comms, adamw, 2, stage)
    own = slice(4 * comms.along("dp").rank, 4 * (comms.along("dp").rank + 1))
    trainer.pipeline.step(*(each[own] for each in batch(0, 8)))
    stages = [module.zero for module in trainer.pipeline.stages.values()]
    return norms_by_stage(stages, [comms.along("dp"), comms.along("tp")], comms.along("pp")), trainer.pipeline.grad_norm().item()


@pytest.mark.parametrize("stage", (1, 3))
def test_norms_by_stage_are_those_of_which_the_whole_is_made(pool, stage):
    model = whole_model()
    model.loss(model(batch(0, 8)[0]), batch(0, 8)[1]).backward()
    last = [param.grad for name, param in model.named_parameters() if name.startswith(("h.2", "h.3", "ln_f"))]
    for norms, whole in pool(8).run(stage_norms, stage):
        assert sum(norm**2 for norm in norms) ** 0.5 == pytest.approx(whole, rel=1e-9)
        assert norms[1] == pytest.approx(torch.cat([each.flatten() for each in last]).norm().item(), rel=1e-9)


def with_replicas(stage, planted):
    """Two nodes hold replicas of what the two ranks of each cut."""
    comms = MeshComms(Mesh({"nodes": 2, "node": 2}), timeout=20)
    model = whole_model()
    model, _ = shard(model, adamw(model.parameters()), stage=stage, comm=comms.groups("node", replicate="nodes"))
    over = [comms.along("nodes")] if planted else []  # of what both nodes have

    def norm():
        squared = model.zero.grad_norm().square()
        for comm in over:
            comm.all_reduce(squared)
        return squared.sqrt()

    return audit(dict(model.named_parameters()), norm, comms.make("nodes", "node"), [model.zero])


def test_a_norm_over_shards_within_replicas_counts_each_parameter_once(pool):
    for stage in range(4):
        for counted in pool(4).run(with_replicas, stage, False):
            assert counted.keys() == dict(whole_model().named_parameters()).keys() and set(counted.values()) == {1}
    assert set(pool(4).run(with_replicas, 3, True)[0].values()) == {2}, "added up over the replicas, too"


def test_the_audit_names_what_is_counted_twice(pool):
    """Without the marks, what tensor parallelism replicates counts twice, and the tied embedding once on each stage."""
    counted = pool(4).run(audited, {"pp": 2, "tp": 2}, 1, True)[0]
    twice = {name for name, times in counted.items() if times == 2}
    assert set(counted.values()) == {1, 2}
    assert twice == {name for name in counted if "ln" in name or "wpe" in name or "norm" in name or "c_proj.bias" in name
                     or name == "0.wte.weight"}


def plain_norms():
    """Without ZeRO the pipeline and tensor parallelism mark what counts as well."""
    from zerocourse.parallel.tensor import tensor_parallel

    comms = MeshComms(Mesh({"pp": 2, "tp": 2}), timeout=20)
    model = tensor_parallel(whole_model(), comms.along("tp"))
    pipeline = Pipeline(model_layers(model), plan("1f1b", one_f_one_b, 2, 2), model.loss, comms.along("pp"),
                        norm=[comms.along("tp")])
    return audit(pipeline.named_parameters(), pipeline.grad_norm, comms.make("pp", "tp"))


def test_a_norm_without_zero_counts_each_parameter_once(pool):
    for counted in pool(4).run(plain_norms):
        assert len(counted) == len(names_of(whole_model())) - 1 and set(counted.values()) == {1}


def failing(kind):
    comms = MeshComms(Mesh({"pp": 2, "dp": 2, "tp": 1}), timeout=2)
    trainer = Parallel3D(whole_model(), comms, adamw, 2, stage=1)
    tokens, targets = batch(0, 2 * ROWS)
    if kind == "other samples" and comms.rank == 3:
        targets = targets.flip(0)  # the same rows, in another order
    if kind == "hangs" and comms.rank == 3:
        import time

        time.sleep(4)
        return
    if kind == "leaves" and comms.rank == 3:
        from zerocourse.comm import fail_all

        fail_all("ValueError: no more data")
        raise ValueError("no more data")
    trainer.step(tokens, targets)


@pytest.mark.ranks_may_differ
@pytest.mark.parametrize("kind, sentences", (
    ("other samples", ("rank 3 (pp 1, dp 1, tp 0)", "rank 1 (pp 0, dp 1, tp 0)", "given different samples")),
    ("hangs", ("rank 3 (pp 1, dp 1, tp 0)", "did not complete within 2 s")),
    ("leaves", ("rank 3 (pp 1, dp 1, tp 0): ValueError: no more data", "because another rank left")),
))
def test_a_fault_names_its_rank_with_its_coordinates(kind, sentences):
    with Ranks(4, timeout=30) as ranks, pytest.raises(RankError) as raised:
        ranks.run(failing, kind)
    said = str(raised.value) + " ".join(failure.message for failure in raised.value.failures)
    assert all(sentence in said for sentence in sentences), said


def time_limits() -> tuple:
    comms = MeshComms(Mesh({"dp": 1, "tp": 2}))
    return Comm().timeout, comms.along("tp").timeout, comms.make("dp", "tp").timeout


def test_an_axis_waits_as_long_as_the_default_group(pool):
    for default, *of_axes in pool(2).run(time_limits):
        assert of_axes == [default] * 2 and default.total_seconds() < 1800, "the half an hour that torch gives"


def dropped(mask):
    """Ranks of one replica, seeded by their numbers, step a model with dropout."""
    model, comms = whole_model(), MeshComms(Mesh({"pp": 1, "dp": 1, "tp": 2}), timeout=20)
    model.h[0].drop.p = mask
    trainer = Parallel3D(model, comms, adamw, 2)
    torch.manual_seed(comms.rank)
    try:
        return trainer.step(*batch(0, 2 * ROWS))
    except BadInput as error:
        return str(error)


def test_tensor_parallel_ranks_that_would_drop_other_activations_are_refused(pool):
    one, other = pool(2).run(dropped, 0.1)
    assert one.startswith("rank 0 (pp 0, dp 0, tp 0) and rank 1 (pp 0, dp 0, tp 1) have the same activations")
    assert "give torch.manual_seed one number for all ranks of the group" in other
    assert all(isinstance(loss, float) for loss in pool(2).run(dropped, 0.0))


def wrong(kind):
    mesh = {"too small": Mesh({"dp": 1}), "no tp": Mesh({"pp": 1, "dp": 2}), "more": Mesh({"pp": 1, "dp": 1, "tp": 1, "cp": 2}),
            "zb": Mesh({"pp": 2, "dp": 1, "tp": 1}), "no loss": Mesh({"pp": 2, "dp": 1, "tp": 1}),
            "not joined": Mesh({"pp": 2, "dp": 1, "tp": 1})}[kind]
    try:
        comms = MeshComms(mesh)
        if kind == "not joined":
            comms.along("pp", "dp")
        model = torch.nn.Sequential(torch.nn.Linear(2, 2)) if kind == "no loss" else whole_model()
        Parallel3D(model, comms, adamw, 2, schedule=zb_h1 if kind == "zb" else one_f_one_b)
    except BadInput as error:
        return str(error)


@pytest.mark.parametrize("kind, sentence", (
    ("too small", "has 1 ranks, and there are 2"), ("no tp", "it must have pp, dp and tp"), ("more", "no other of more than one rank: cp"),
    ("zb", "zb_h1 has the action W"), ("no loss", "Sequential has no `loss(logits, targets)`"),
    ("not joined", "there is no Comm along pp and dp yet"),
))
def test_what_cannot_be_put_together_is_refused(pool, kind, sentence):
    assert all(sentence in said for said in pool(2).run(wrong, kind))


def first_loss_after(sizes, planted):
    """The loss after one step, which the gradients decide."""
    comms = MeshComms(Mesh(sizes), timeout=20)
    trainer = Parallel3D(whole_model(), comms, lambda params: torch.optim.SGD(params, lr=1.0), 2, stage=1)
    for module in trainer.pipeline.stages.values():
        for flat in module.zero.flats:
            if planted == "dp":  # the sum in place of the mean
                flat.divisor = 1
            if planted == "pp" and len(trainer.pipeline.stages) == 1 and comms.along("pp").rank:  # a scale per boundary
                flat.divisor *= 2
    tokens, targets = batch(0, 2 * ROWS * 2)
    data = comms.along("dp")
    rows = len(tokens) // data.world_size
    own = slice(rows * data.rank, rows * (data.rank + 1))
    trainer.step(tokens[own], targets[own])
    return trainer.step(tokens[own], targets[own])


@pytest.mark.parametrize("planted", ("none", "dp", "pp"))
def test_the_axis_that_broke_is_named(pool, planted):
    model = whole_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(2):
        loss = model(*batch(0, 2 * ROWS * 2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def is_right(mesh):
        losses = pool(mesh.world_size).run(first_loss_after, mesh.sizes, planted)
        return all(abs(each - loss.item()) < 1e-9 for each in losses)

    verdict = which_axis(Mesh({"pp": 2, "dp": 2, "tp": 2}), is_right)
    if planted == "none":
        assert str(verdict) == "the run on the mesh equals one process"
    else:
        assert verdict.broken == [planted] and str(verdict).startswith(f"the fault is along {planted}:")


def test_a_fault_of_no_axis_or_of_several_is_told_so():
    mesh = Mesh({"pp": 2, "tp": 2, "cp": 1})
    assert "in no axis" in str(which_axis(mesh, lambda mesh: False))
    assert "pp and tp together" in str(which_axis(mesh, lambda mesh: mesh.world_size < 4))
    each = which_axis(mesh, lambda mesh: mesh.world_size == 1)
    assert str(each) == "the run is wrong whichever axis is turned off: pp and tp are each wrong alone"


def steps_on_a_mesh(sizes, stage, path, loads, first, last, kv_heads=None):
    """kv_heads: of a Llama of Hugging Face."""
    comms = MeshComms(Mesh(sizes), timeout=20)
    trainer = Parallel3D(whole_llama(kv_heads) if kv_heads else whole_model(), comms, adamw, 2, stage=stage)
    if loads:
        load_on_mesh(trainer, path)
        assert trainer.steps == first
    data, losses = comms.along("dp"), []
    for step in range(first, last):
        tokens, targets = batch(step, 2 * ROWS * 2)
        rows = len(tokens) // data.world_size
        own = slice(rows * data.rank, rows * (data.rank + 1))
        losses.append(trainer.step(tokens[own], targets[own]))
    save_on_mesh(trainer, path)
    return losses


def test_a_checkpoint_of_one_mesh_loads_on_another(pool, tmp_path):
    """Two steps on each of five meshes in a row, with other stages of ZeRO, are ten steps of one process."""
    model, losses = whole_model(), []
    optimizer = adamw(model.parameters())
    for step in range(10):
        loss = model(*batch(step, 2 * ROWS * 2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    seen = []
    for number, (pp, dp, tp, stage) in enumerate(((2, 2, 1, 1), (1, 4, 1, 3), (2, 1, 2, 2), (1, 1, 1, 0), (4, 1, 1, 1))):
        sizes = {"pp": pp, "dp": dp, "tp": tp}
        results = pool(pp * dp * tp).run(steps_on_a_mesh, sizes, stage, tmp_path / "ck", number > 0, 2 * number, 2 * number + 2)
        seen += results[0]
    assert seen == pytest.approx(losses, rel=1e-9)
    files = [file for file in (tmp_path / "ck").iterdir() if file.suffix == ".safetensors"]
    written = [name for file in files for name in load_file(file)]
    assert sorted(written) == sorted(json.loads((tmp_path / "ck" / "index.json").read_text())["files"]), "each of them once"
    assert [path.name for path in tmp_path.iterdir()] == ["ck"]


@pytest.mark.parametrize("kv_heads, meshes", ((2, ((2, 1, 1, 1), (2, 1, 1, 1))),
                                              (1, ((1, 1, 2, 1), (2, 1, 1, 0), (2, 1, 2, 0), (1, 2, 2, 2), (1, 2, 2, 3), (1, 2, 1, 3)))))
def test_checkpoints_of_a_llama_are_those_of_one_process(pool, tmp_path, kv_heads, meshes):
    """It has buffers that no state dict has; and one key-value head is whole on both ranks of tp, of which one counts it, so that
    they have other buffers of ZeRO's. A step on each of these meshes (pp, dp, tp, stage), each from the checkpoint of the one before."""
    model = whole_llama(kv_heads)
    named = dict(zip(names_of(model), layer_values(model), strict=True))
    optimizer = adamw(model.parameters())
    for step, (pp, dp, tp, stage) in enumerate(meshes):
        tokens, targets = batch(step, 2 * ROWS * 2)
        F.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        pool(pp * dp * tp).run(steps_on_a_mesh, {"pp": pp, "dp": dp, "tp": tp}, stage, tmp_path / "ck", step > 0, step, step + 1, kv_heads)
        written = {key: value for file in (tmp_path / "ck").glob("*.safetensors") for key, value in load_file(file).items()}
        expected = {f"{kind}/{name}": value for name, param in named.items()
                    for kind, value in ({"model": param.detach()} | optimizer.state[param]).items()}
        assert written.keys() == expected.keys()
        for key, value in expected.items():  # the loss is in fp32 where the head is whole
            assert (written[key] - value).abs().max() < 1e-5, (step, key)


def normed_model():
    """Its blocks end in a BatchNorm over the samples, whose statistics are buffers."""
    model = whole_model()
    for block in model.h:
        block.rows = torch.nn.BatchNorm1d(T, dtype=torch.float64)
        block.register_forward_hook(lambda block, args, out: block.rows(out))
    return model


def steps_with_statistics(sizes, path, loads, step):
    trainer = Parallel3D(normed_model(), MeshComms(Mesh(sizes), timeout=20), adamw, 2)
    if loads:
        load_on_mesh(trainer, path)
    trainer.step(*batch(step, 4))
    save_on_mesh(trainer, path)


def test_statistics_of_batch_norm_are_in_a_checkpoint(pool, tmp_path):
    model = normed_model()
    optimizer = adamw(model.parameters())
    for step, pp in enumerate((2, 1, 2)):
        for tokens, targets in zip(*(rows.chunk(2) for rows in batch(step, 4)), strict=True):
            (model(tokens, targets) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        pool(pp).run(steps_with_statistics, {"pp": pp, "dp": 1, "tp": 1}, tmp_path / "ck", step > 0, step)
    written = {key: value for file in (tmp_path / "ck").glob("*.safetensors") for key, value in load_file(file).items()}
    for number, block in enumerate(model.h):
        for name, kept in block.rows.named_buffers():
            torch.testing.assert_close(written[f"model/{number + 1}.rows.{name}"], kept)


def refused_checkpoint(path, kind):
    comms = MeshComms(Mesh({"pp": 2, "dp": 1, "tp": 1}), timeout=20)
    trainer = Parallel3D(whole_model(tied=kind != "untied"), comms, adamw, 2)
    try:
        if kind == "cannot write":
            save_on_mesh(trainer, path / "a file" / "ck")
        load_on_mesh(trainer, path / ("none" if kind == "none" else "ck"))
    except BadInput as error:
        return str(error)


def test_a_checkpoint_that_does_not_fit_is_refused(pool, tmp_path):
    pool(1).run(steps_on_a_mesh, {"pp": 1, "dp": 1, "tp": 1}, 1, tmp_path / "ck", False, 0, 1)
    (tmp_path / "a file").write_text("")
    for kind, sentence in (("none", "it is no checkpoint that save_on_mesh completed"), ("cannot write", "cannot write to"),
                           ("untied", f"another model: it lacks {TIED}")):
        assert all(sentence in said for said in pool(2).run(refused_checkpoint, tmp_path, kind)), kind


@pytest.mark.parametrize("kind, where, sentence", [
    ("data", -3, "is damaged, or mixed with another checkpoint"), ("index", 40, "is damaged, or was not"),
                                                   ("no file", None, "No such file")])
def test_a_damaged_checkpoint_is_refused_on_all_ranks(pool, tmp_path, kind, where, sentence):
    """Only a file of the last stage, which one of the two ranks reads, is damaged."""
    pool(2).run(steps_on_a_mesh, {"pp": 2, "dp": 1, "tp": 1}, 1, tmp_path / "ck", False, 0, 1)
    file = tmp_path / "ck" / "index.json" if kind == "index" else tmp_path / "ck" / "pp1-0.safetensors"
    if where is None:
        file.unlink()
    else:
        data = bytearray(file.read_bytes())
        data[where] ^= 1
        file.write_bytes(data)
    assert all(sentence in said for said in pool(2).run(refused_checkpoint, tmp_path, kind)), kind


def fails_to_save(path):
    """Rank 1 alone cannot write."""
    from zerocourse.parallel import mesh_checkpoint

    comms = MeshComms(Mesh({"pp": 2, "dp": 1, "tp": 1}), timeout=20)
    trainer = Parallel3D(whole_model(), comms, adamw, 2)
    write = mesh_checkpoint.save_file

    def full(tensors, file):
        raise OSError("no space left on device")

    mesh_checkpoint.save_file = full if comms.rank else write
    try:
        save_on_mesh(trainer, path)
    except BadInput as error:
        return str(error)
    finally:
        mesh_checkpoint.save_file = write


def test_a_save_that_fails_leaves_nothing(pool, tmp_path):
    pool(2).run(steps_on_a_mesh, {"pp": 2, "dp": 1, "tp": 1}, 1, tmp_path / "ck", False, 0, 1)
    before = {file.name: file.read_bytes() for file in (tmp_path / "ck").iterdir()}
    said = pool(2).run(fails_to_save, tmp_path / "ck")
    assert all(each.startswith("rank 1 (pp 1, dp 0, tp 0) cannot write to") and "no space left" in each for each in said)
    assert [path.name for path in tmp_path.iterdir()] == ["ck"]
    assert {file.name: file.read_bytes() for file in (tmp_path / "ck").iterdir()} == before


def overflowing(stage):
    """An overflow on one rank of the mesh: which ranks see a norm that is not finite?"""
    comms = MeshComms(Mesh({"pp": 2, "dp": 1, "tp": 2}), timeout=20)
    trainer = Parallel3D(whole_model(), comms, adamw, 2, stage=stage)
    trainer.pipeline.step(*batch(0, 2 * ROWS))
    if comms.rank == 3:
        next(flat for module in trainer.pipeline.stages.values() for flat in module.zero.flats
             if flat.counts_in_norm).grad_shard[0] = float("inf")
    return float(trainer.pipeline.grad_norm())


def test_an_overflow_on_one_rank_is_seen_by_all(pool):
    """By it a loss scaler skips the step, which all ranks must do or none."""
    for stage in (0, 1, 3):
        assert pool(4).run(overflowing, stage) == [float("inf")] * 4


def cannot_run(kind):
    """What each rank says, and after how long, where a batch is bad on some ranks: those of one replica, or of one stage."""
    sizes = {"pp": 2, "dp": 2, "tp": 1} if kind == "rows" else {"pp": 2, "dp": 1, "tp": 2}
    comms = MeshComms(Mesh(sizes), timeout=10)
    trainer = Parallel3D(whole_model(tied=False), comms, adamw, 2, schedule=interleaved, chunks=2, sequence=kind == "tokens")
    tokens, targets = batch(0, 1 if kind == "rows" and comms.along("dp").rank else 2)
    tokens, targets = (each[:, :T - (kind == "tokens")] for each in (tokens, targets))
    trainer.replica.all_gather_object("all are here")
    begun = time.monotonic()
    try:
        trainer.step(tokens, targets)
    except (BadInput, CollectiveError) as error:
        return time.monotonic() - begun, str(error)


@pytest.mark.ranks_may_differ
@pytest.mark.parametrize("kind, sentence", (("rows", "has 1 rows, which cannot be cut into 2 micro-batches"),
                                            ("tokens", "sequence parallelism cuts the 7 tokens of a sample among 2 ranks")))
def test_a_batch_that_some_ranks_cannot_run_ends_all_at_once(kind, sentence):
    with Ranks(4, timeout=60, quiet=True) as ranks:
        for seconds, said in ranks.run(cannot_run, kind):
            assert seconds < 8 and sentence in said, (seconds, said)


def one_axis_disagrees():
    """Rank 3 gathers along its tp axis more than its peer does."""
    comms = MeshComms(Mesh({"pp": 2, "dp": 1, "tp": 2}), timeout=2)
    from zerocourse.layout.rankmap import Layout

    comm = comms.along("tp")
    for elements in (8, 16 if comms.rank == 3 else 8):
        comm.all_gather(torch.zeros(elements), Layout.split(elements, 2), "weights").wait()


@pytest.mark.ranks_may_differ
def test_ranks_that_disagree_along_one_axis_are_named_with_their_coordinates():
    with Ranks(4, timeout=30) as ranks, pytest.raises(RankError) as raised:
        ranks.run(one_axis_disagrees)
    said = str(raised.value) + " ".join(failure.message for failure in raised.value.failures)
    assert "rank 2 (pp 1, dp 0, tp 0) was in all_gather of weights (8 float32)" in said, said
    assert "rank 3 (pp 1, dp 0, tp 1) was in all_gather of weights (16 float32)" in said


def readme_says():
    import contextlib
    import io
    import re
    from pathlib import Path

    code = next(block for block in re.findall("```python\n(.*?)```", (Path(__file__).parents[2] / "docs/parallelism.md").read_text(), re.S)
                if "train_3d.py" in block)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):  # these ranks have a process group already
        exec(re.sub(r"torch.distributed.(init|destroy)_process_group\(\)", "", code), {})
    return said.getvalue().splitlines()


def test_the_readmes_eight_ranks_train(pool):
    results = pool(8).run(readme_says)
    losses = [[line.split("loss ")[1].split(",")[0] for line in lines] for lines in results]
    assert len(losses[0]) == 3 and all(each == losses[0] for each in losses)
    assert all("'pp': " in line and "rank " in line for lines in results for line in lines)
