"""Tensor parallelism: the ranks of a group together compute what one process does, and send what the formulas say."""

import copy
from itertools import product

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from zerocourse import shard
from zerocourse.comm import Comm
from zerocourse.errors import BadInput
from zerocourse.layout.mesh import Mesh
from zerocourse.measure.ledger import Ledger
from zerocourse.models.gpt2 import GPT, Attention, GPTConfig
from zerocourse.parallel.mesh_comms import MeshComms
from zerocourse.parallel.norms import audit, clip_grad_norm, grad_norm
from zerocourse.parallel.tensor import Columns, TensorPlan, counts_here, load_whole_state_dict, tensor_parallel, whole_state_dict
from zerocourse.parallel.tensor.cuts import Cut
from zerocourse.parallel.tensor.regions import all_reduce, copy_in, reduce_out, reduce_scatter
from zerocourse.parallel.tensor.row import RowLinear
from zerocourse.parallel.tensor.vocabulary import cross_entropy
from zerocourse.zero.whole.consolidate import state_dict

L, C, T, V = 2, 24, 12, 31  # V: divisible by none of the numbers of ranks


def models(heads=6, dtype=torch.float64, **options):
    """Two equal models, of which one is to be cut."""
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        model = GPT(GPTConfig(L, heads, C, block_size=T, vocab_size=V, **options))
        model.loss = lambda logits, targets: F.cross_entropy(logits.flatten(0, 1), targets.flatten())  # not in fp32
    finally:
        torch.set_default_dtype(torch.float32)
    return copy.deepcopy(model), model


def batches(number, seed=1, B=2):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(number):
        tokens, targets = torch.randint(V, (2, B, T), generator=generator)
        targets[0, :3] = -100
        yield tokens, targets


def train(model, steps, clip, optimizer=None):
    """Losses and norms of some steps."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen = []
    for tokens, targets in batches(steps):
        loss = model(tokens, targets)
        loss.backward()
        seen += [loss.item(), float(clip(model))]
        optimizer.step()
        optimizer.zero_grad()
    return seen


def clip_plain(model):
    return torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)


def apart(one, other):
    return torch.stack([(one[name] - other[name]).abs().max() for name in other]).max().item()  # NaN, where one is


def beside_one_process(sequence, heads, options):
    plain, model = models(heads, **options)
    comm, start = Comm(), {name: value.clone() for name, value in plain.state_dict().items()}
    tensor_parallel(model, comm, sequence=sequence)
    state = whole_state_dict(model, comm)
    tokens = next(batches(1))[0]
    logits = (model(tokens) - plain(tokens)).abs().max().item()
    seen = train(model, 2, lambda model: clip_grad_norm(model.parameters(), [comm], 0.5))
    expected = train(plain, 2, clip_plain)
    final = whole_state_dict(model, comm)
    begun = all(torch.equal(state[name], value) for name, value in start.items())  # still: in memory of its own
    return begun, logits, seen, expected, apart(final, plain.state_dict()), {n: v.numel() for n, v in model.named_parameters()}


@pytest.mark.parametrize("sequence", (False, True))
@pytest.mark.parametrize("ranks, options", ((2, {}), (3, {"tied": False, "bias": False}), (4, {})))
def test_equals_one_process(pool, ranks, sequence, options):
    """Weights before the first step bit for bit, then losses, norms and weights to the last digits of fp64."""
    results = pool(ranks).run(beside_one_process, sequence, 4 if ranks == 4 else 6, options)
    for begun, logits, seen, expected, difference, _ in results:
        assert begun and logits < 1e-13
        assert seen == pytest.approx(expected, rel=1e-7) and seen == results[0][2], "each rank has the same loss and norm"
        assert difference < 1e-8
    sizes = [result[-1] for result in results]
    assert [size["wte.weight"] // C for size in sizes] == [len(part) for part in torch.arange(V).tensor_split(
        [V * rank // ranks for rank in range(1, ranks)])]
    assert all(size["h.0.attn.c_attn.weight"] * ranks == 3 * C * C for size in sizes)
    assert all(size["h.0.mlp.c_proj.weight"] * ranks == 4 * C * C for size in sizes)


def gradients_apart(sequence, own_loss):
    plain, model = models()
    comm = Comm()
    tensor_parallel(model, comm, sequence=sequence)
    for tokens, targets in batches(2):  # two micro-batches
        for each in (model, plain):
            loss = F.cross_entropy(each(tokens).flatten(0, 1), targets.flatten()) if own_loss else each(tokens, targets)
            loss.backward()
    for param in model.parameters():
        param.data = param.grad
    return apart(whole_state_dict(model, comm), {name: param.grad for name, param in plain.named_parameters()})


@pytest.mark.parametrize("sequence, own_loss", [*product((False, True), (False, True))])
def test_gradients_are_those_of_one_process(pool, sequence, own_loss):
    """Of the model's loss, and of one that is computed from the whole logits."""
    assert all(each < 1e-13 for each in pool(3).run(gradients_apart, sequence, own_loss))


def sent_by_layers(sequence, layers):
    torch.manual_seed(0)
    comm = Comm()
    model = tensor_parallel(GPT(GPTConfig(layers, 6 if comm.world_size == 3 else 4, C, block_size=T, vocab_size=V)), comm,
                            sequence=sequence)
    tokens, targets = next(batches(1))
    model(tokens, targets)  # the first call compares the samples
    before = comm.elements.copy()
    model(tokens, targets).backward()
    return comm.elements["all_gather"] - before["all_gather"], comm.elements["reduce_scatter"] - before["reduce_scatter"]


@pytest.mark.parametrize("ranks", (2, 3, 4))
def test_a_layer_sends_eight_times_its_activations_with_and_without_sequence(pool, ranks):
    """4 all-reduces of B·T·C; with sequence 4 all-gathers and 4 reduce-scatters, which is the same, and the gradients of
    what is replicated: two norms and two biases."""
    B = 2
    one, two = (pool(ranks).run(sent_by_layers, False, layers) for layers in (1, 2))
    a_layer = [(two[rank][0] - one[rank][0], two[rank][1] - one[rank][1]) for rank in range(ranks)]
    assert a_layer == [(4 * B * T * C * (ranks - 1) // ranks,) * 2] * ranks
    one, two = (pool(ranks).run(sent_by_layers, True, layers) for layers in (1, 2))
    a_layer = [(two[rank][0] - one[rank][0], two[rank][1] - one[rank][1]) for rank in range(ranks)]
    small = 6 * C * (ranks - 1) // ranks
    assert a_layer == [(4 * B * T * C * (ranks - 1) // ranks + small,) * 2] * ranks


def kept_by_layers(sequence, layers):
    """Bytes beside the model after a forward."""
    torch.manual_seed(0)
    comm, (tokens, targets) = Comm(), next(batches(1))
    model = tensor_parallel(GPT(GPTConfig(layers, 12, C, block_size=T, vocab_size=V)), comm, sequence=sequence)
    model(tokens, targets)
    with Ledger(model) as ledger:
        loss = model(tokens, targets)
        return ledger.now().rest, loss.requires_grad


@pytest.mark.parametrize("ranks", (2, 3, 4))
def test_a_layer_keeps_a_part_of_its_activations(pool, ranks):
    """In units of B·T·C: inside of the regions 12/t, and the inputs of norms and regions, 4. With sequence the norms'
    inputs are T/t tokens as well; those of regions are gathered for the forward, and stay for the weights' gradient."""
    B, heads = 2, 12
    unit, log_sums, statistics = 4 * B * T * C, 4 * B * heads * T // ranks, 2 * 4 * 2 * B * T
    for sequence in (False, True):
        one, two = (pool(ranks).run(kept_by_layers, sequence, layers) for layers in (1, 2))
        units = 2 * unit + 14 * unit // ranks if sequence else 4 * unit + 12 * unit // ranks
        expected = units + log_sums + (statistics // ranks if sequence else statistics)
        assert [after[0] - before[0] for before, after in zip(one, two, strict=True)] == [expected] * ranks


def test_outside_of_the_layers_there_are_the_embedding_the_head_and_three_numbers_a_token(pool):
    (gathered, scattered), _ = pool(2).run(sent_by_layers, False, 1)
    B, N = 2, 2 * T
    outside = scattered - 4 * B * T * C // 2
    assert outside == (2 * B * T * C + 2 * N) // 2 and gathered - 4 * B * T * C // 2 == outside  # the third is the maximum


def borders():
    comm = Comm()
    x = torch.full((2, 3), float(comm.rank + 1), requires_grad=True)
    outputs = []
    for border in (copy_in, reduce_out):
        given = x.detach().clone().requires_grad_()
        y = border(given * 1, comm, "test")
        y.backward(torch.full((2, 3), float(10 ** comm.rank)))
        outputs.append((y.detach().unique().tolist(), given.grad.unique().tolist(), given.detach().unique().tolist()))
    total = all_reduce(x, comm, "test")
    tokens = x.detach()[None]  # one sample of two tokens, whose memory is in the order in which it is sent
    scattered = reduce_scatter(longer := tokens.repeat(1, comm.world_size, 1), comm, "test").unique().tolist()
    return outputs, total.unique().tolist(), x.detach().unique().tolist(), scattered, longer.unique().tolist()


def test_f_and_g_are_each_others_opposite_and_change_nothing_in_place(pool):
    for rank, ((f, g), total, x, scattered, longer) in enumerate(pool(3).run(borders)):
        assert f == ([rank + 1], [111], [rank + 1])
        assert g == ([6], [10 ** rank], [rank + 1])
        assert total == [6] and x == [rank + 1] and scattered == [6] and longer == [rank + 1]


def bias_alone(scatter):
    comm = Comm()
    layer = RowLinear(torch.nn.Parameter(torch.zeros(4, 2)), torch.nn.Parameter(torch.ones(4)), comm, "row", scatter)
    return layer(torch.ones(1, 4, 2)).unique().tolist()


@pytest.mark.parametrize("scatter", (False, True))
def test_the_bias_of_a_row_layer_is_added_once(pool, scatter):
    assert pool(2).run(bias_alone, scatter) == [[1.0]] * 2


def vocabulary_losses(smoothing, dtype, size):
    comm, generator = Comm(), torch.Generator().manual_seed(3)
    logits = (size * torch.randn(2, 5, V, generator=generator, dtype=torch.float64)).to(dtype)
    targets = torch.randint(V, (2, 5), generator=generator)
    targets[0, 1] = -100
    whole = logits.float().requires_grad_() if dtype == torch.bfloat16 else logits.clone().requires_grad_()
    expected = F.cross_entropy(whole.flatten(0, 1), targets.flatten(), label_smoothing=smoothing)
    expected.backward()
    cut = Cut.even(0, V, comm.world_size)
    own = logits[..., cut.by_rank[comm.rank][0].start:cut.by_rank[comm.rank][0].stop].clone().requires_grad_()
    loss = cross_entropy(own, targets, cut.by_rank[comm.rank][0].start, V, comm, smoothing)
    loss.backward()
    grad = whole.grad[..., cut.by_rank[comm.rank][0].start:cut.by_rank[comm.rank][0].stop]
    return loss.item(), expected.item(), (own.grad - grad).abs().max().item()


@pytest.mark.parametrize("smoothing, dtype, near, size", (
    (0.0, torch.float64, 1e-12, 30), (0.1, torch.float64, 1e-12, 30), (0.1, torch.float32, 1e-6, 30),
    (0.0, torch.bfloat16, 1e-2, 30), (0.0, torch.float32, 1e-6, 1000)))
def test_the_loss_is_torchs_on_every_rank(pool, smoothing, dtype, near, size):
    """Label smoothing spreads over all V words: over each rank's own, the ranks would disagree about the loss. Where
    logits are large, a target's probability is 0 in fp32, and the loss is not the logarithm of that."""
    results = pool(3).run(vocabulary_losses, smoothing, dtype, size)
    for loss, expected, gradient in results:
        assert loss == results[0][0] and loss == pytest.approx(expected, rel=1e-6) and gradient < near


def masks(sequence):
    """By rank: which of equal values a dropout lets pass in a region, and outside of it."""
    _, model = models(dropout=0.3)
    comm = Comm()
    tensor_parallel(model, comm, sequence=sequence)
    torch.manual_seed(7)
    inside, outside = [], []
    attention = Attention.attend
    block = model.h[0]

    def seen(q, k, v, dropout_p=0.0, **options):
        inside.append(tuple((F.dropout(torch.ones(500), dropout_p) != 0).tolist()))
        return attention(q, k, v, dropout_p=0.0, **options)

    block.drop.register_forward_hook(lambda module, args, output: outside.append(
        tuple((output != 0).flatten().tolist())))
    Attention.attend = staticmethod(seen)
    try:
        tokens, targets = next(batches(1))
        model(tokens, targets)
        torch.manual_seed(7)
        model(tokens, targets)  # as a recomputation would be, from the same state
    finally:
        Attention.attend = staticmethod(attention)
    half = len(inside) // 2
    return inside[:half], inside[:half] == inside[half:], outside[0]


def test_masks_differ_where_activations_do_and_nowhere_else(pool):
    results = pool(2).run(masks, False)
    assert all(one != other for one, other in zip(results[0][0], results[1][0], strict=True))
    assert all(again for _, again, _ in results), "a second forward from the same state has the same masks"
    assert len(set(results[0][0])) == len(results[0][0]), "a layer's mask is not the next one's"
    assert results[0][2] == results[1][2]
    passed = [value for inside, *_ in results for mask in inside for value in mask]
    assert sum(passed) / len(passed) == pytest.approx(0.7, abs=0.04), "as many as in one process"
    results = pool(2).run(masks, True)
    assert results[0][2] != results[1][2], "with sequence the ranks have other tokens, so another mask"
    passed = [value for *_, outside in results for value in outside]
    assert len(passed) == 2 * T * C and sum(passed) / len(passed) == pytest.approx(0.7, abs=0.06)


def seeded_apart(dropout):
    """The loss of ranks whose random states differ, or what they say."""
    model = tensor_parallel(models(dropout=dropout)[1], Comm())
    torch.manual_seed(Comm().rank)
    try:
        return model(*next(batches(1))).item()
    except BadInput as error:
        return str(error)


def test_ranks_that_would_drop_other_activations_of_the_same_are_refused(pool):
    """Seeded by rank, as data-parallel ranks are, they would add up terms of different activations."""
    one, other = (said.replace(" of the tensor-parallel group", "") for said in pool(2).run(seeded_apart, 0.3))
    assert one.startswith("rank 0 and rank 1 have the same activations and would drop different ones")
    assert other.startswith("rank 1 and rank 0") and "give torch.manual_seed one number" in other
    one, other = pool(2).run(seeded_apart, 0.0)
    assert one == other > 0, "without dropout nothing is drawn"


def two_steps_apart():
    _plain, model = models()
    comm = Comm()
    tensor_parallel(model, comm, sequence=True)
    train(model, 2, lambda model: clip_grad_norm(model.parameters(), [comm], 0.5))
    return {name: param.detach() for name, param in model.named_parameters() if not hasattr(param, "tensor_cut")}


def test_what_is_replicated_stays_equal_bit_for_bit(pool):
    one, other = pool(2).run(two_steps_apart)
    assert len(one) == 4 * L + 2 + 2 * L + 1 and all(torch.equal(one[name], other[name]) for name in one)


def counted():
    plain, model = models()
    comm = Comm()
    tensor_parallel(model, comm)
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    norm = clip_grad_norm(model.parameters(), [comm], 1e9)
    whole = sum(param.numel() for param in plain.parameters())
    replicated = sum(param.numel() for param in model.parameters() if not hasattr(param, "tensor_cut"))
    for param in model.parameters():
        param.counts_in_norm = True
    return norm ** 2, whole, grad_norm(model.parameters(), [comm]).item() ** 2, replicated


def test_a_norm_counts_every_element_once(pool):
    """Counted on each rank, what is replicated would be there t times: √(S + t·R) in place of √(S + R)."""
    for squared, elements, everywhere, replicated in pool(3).run(counted):
        assert squared == pytest.approx(elements, rel=1e-12)
        assert replicated and everywhere == pytest.approx(elements + 2 * replicated, rel=1e-12)


def test_the_audit_reads_its_digits_from_a_norm_in_fp32():
    """25 parameters count three times each, the largest digit that one rank has, in a norm that is rounded to fp32."""
    params = {str(number): torch.nn.Parameter(torch.zeros(2)) for number in range(25)}

    def norm():
        return (3 * sum(param.grad.double().square().sum() for param in params.values())).float().sqrt()

    assert audit(params, norm, Comm()) == dict.fromkeys(params, 3)


def counted_everywhere():
    """A norm that forgets the marks, and the names that it should count once."""
    _, model = models(heads=4)
    comm, params = Comm(), dict(tensor_parallel(model, Comm()).named_parameters())

    def everything():
        return comm.all_reduce(sum(param.grad.double().square().sum() for param in params.values())).sqrt()

    return audit(params, everything, comm), [name for name, param in params.items() if hasattr(param, "tensor_cut")]


@pytest.mark.parametrize("ranks", (2, 4))
def test_the_audit_names_what_every_rank_counts(pool, ranks):
    """Four times, too, which is no digit in base 4."""
    for counted, cut in pool(ranks).run(counted_everywhere):
        assert cut and counted == {name: 1 if name in cut else ranks for name in counted}


def saved_here():
    _plain, model = models(heads=12)
    comm = Comm()
    tensor_parallel(model, comm)
    train(model, 1, clip_plain)
    return whole_state_dict(model, comm)


def loaded_here(state):
    _, model = models(heads=12)
    comm = Comm()
    tensor_parallel(model, comm)
    load_whole_state_dict(model, state, comm)
    again = whole_state_dict(model, comm)
    short = dict(state)
    short.pop("wpe.weight")
    short["ln_f.bias"] = torch.zeros(3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        load_whole_state_dict(model, short, comm)
    except BadInput as error:
        said = str(error)
    unchanged = all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return all(torch.equal(again[name], value) for name, value in state.items()), model.lm_head.weight is model.wte.weight, said, unchanged


def test_what_two_ranks_saved_loads_on_one_three_and_four(pool):
    state = pool(2).run(saved_here)[0]
    for ranks in (1, 3, 4):
        for equal, tied, said, unchanged in pool(ranks).run(loaded_here, state):
            assert equal and tied and unchanged
            assert "wpe.weight is missing" in said and "ln_f.bias has the shape [3], not [24]" in said


def under_zero(stage, sequence):
    """On ranks (dp, tp) = (2, 2): each of the two data-parallel ranks reads one of two rows."""
    plain, model = models()
    rank = dist.get_rank()
    groups = {ranks: dist.new_group(list(ranks)) for ranks in ((0, 1), (2, 3), (0, 2), (1, 3))}
    tensor = Comm(next(group for ranks, group in groups.items() if rank in ranks and ranks in ((0, 1), (2, 3))))
    data = Comm(next(group for ranks, group in groups.items() if rank in ranks and ranks in ((0, 2), (1, 3))))
    tensor_parallel(model, tensor, sequence=sequence)
    model, optimizer = shard(model, torch.optim.AdamW(model.parameters(), lr=1e-2), stage=stage, comm=data)
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    for tokens, targets in batches(3):
        targets[targets == -100] = 0  # so that each row has as many
        row = slice(rank // 2, rank // 2 + 1)
        model(tokens[row], targets[row]).backward()
        optimizer.step()
        optimizer.zero_grad()
        plain(tokens, targets).backward()
        reference.step()
        reference.zero_grad()
    return apart(whole_state_dict(model, tensor, state_dict(model)), plain.state_dict())


@pytest.mark.parametrize("stage, sequence", [*product(range(4), (False, True))])
def test_zero_over_another_axis(pool, stage, sequence):
    assert max(pool(4).run(under_zero, stage, sequence)) < 1e-8


def llama_beside_one_process(kv_heads, tied, sequence):
    import transformers

    torch.manual_seed(0)
    padding = next(batches(1))[0].max().item()  # a token that occurs, and that the last rank has
    config = transformers.LlamaConfig(vocab_size=V, hidden_size=C, intermediate_size=44, num_hidden_layers=L,
                                      num_attention_heads=4, num_key_value_heads=kv_heads, max_position_embeddings=T,
                                      tie_word_embeddings=tied, attn_implementation="sdpa", pad_token_id=padding)
    model = transformers.LlamaForCausalLM(config).double()
    plain, comm = copy.deepcopy(model), Comm()
    tensor_parallel(model, comm, sequence=sequence)
    begun = whole_state_dict(model, comm)
    equal = all(torch.equal(begun[name], value) for name, value in plain.state_dict().items())
    tokens, labels = next(batches(1))
    logits = (model(tokens).logits - plain(tokens).logits).abs().max().item()
    per_item = [each(tokens, labels=labels, num_items_in_batch=7, label_smoothing=0.1).loss.item()  # a Trainer's number, and what
                for each in (model, plain)]  # their loss does not know
    optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-2) for each in (model, plain)]
    norms = []
    for tokens, labels in batches(2):
        model(tokens, labels=labels).loss.backward()
        whole = plain(tokens).logits
        F.cross_entropy(whole[:, :-1].flatten(0, 1), labels[:, 1:].flatten()).backward()  # theirs is in fp32
        norms.append((clip_grad_norm(model.parameters(), [comm], 0.5), clip_plain(plain).item()))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return equal, logits, per_item, norms, apart(whole_state_dict(model, comm), plain.state_dict())


@pytest.mark.parametrize("ranks, kv_heads, tied, sequence", ((2, 4, False, False), (2, 2, True, True), (4, 2, False, False),
                                                             (4, 1, False, True)))
def test_a_llama_of_hugging_face(pool, ranks, kv_heads, tied, sequence):
    """With 2 key-value heads on 4 ranks, two ranks have the same one: they add up its gradients, and one counts it."""
    pytest.importorskip("transformers")
    results = pool(ranks).run(llama_beside_one_process, kv_heads, tied, sequence)
    for equal, logits, (per_item, expected), norms, difference in results:
        assert equal and logits < 1e-6 and difference < 1e-6 and per_item == pytest.approx(expected, rel=1e-5)
        for ours, theirs in norms:
            assert ours == pytest.approx(theirs, rel=1e-7)


def llama_under_zero(stage, sequence):
    """Both tensor-parallel ranks have the one key-value head, and ZeRO divides it over the other axis."""
    import transformers

    torch.manual_seed(0)
    comms = MeshComms(Mesh({"dp": 2, "tp": 2}), timeout=20)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=V, hidden_size=C, intermediate_size=44, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=1, max_position_embeddings=T, attn_implementation="sdpa")).double()
    plain, tensor, data = copy.deepcopy(model), comms.along("tp"), comms.along("dp")
    tensor_parallel(model, tensor, sequence=sequence)
    model, optimizer = shard(model, torch.optim.SGD(model.parameters(), lr=0.5), stage=stage,
                             comm=comms.groups("dp", norm=("tp",)))
    reference, norms = torch.optim.SGD(plain.parameters(), lr=0.5), []
    for tokens, _ in batches(2):
        own = tokens[data.rank:data.rank + 1]
        model(own, labels=own).loss.backward()
        F.cross_entropy(plain(tokens).logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        norms.append((model.zero.grad_norm().item(), clip_plain(plain).item()))
        model.zero.clip_grad_norm_(0.5)
        for each in (optimizer, reference):
            each.step()
            each.zero_grad()
    return norms, apart(whole_state_dict(model, tensor, state_dict(model)), plain.state_dict())


@pytest.mark.parametrize("stage, sequence", ((1, True), (3, False), (3, True)))
def test_key_value_copies_under_zero(pool, stage, sequence):
    pytest.importorskip("transformers")
    for norms, difference in pool(4).run(llama_under_zero, stage, sequence):
        assert difference < 1e-8 and all(ours == pytest.approx(theirs, rel=1e-9) for ours, theirs in norms)


def refused(make, **options):
    model = make()
    before = [(param, param.shape) for param in model.parameters()]
    try:
        tensor_parallel(model, Comm(), **options)
    except BadInput as error:
        assert all(now is then and now.shape == shape for now, (then, shape) in zip(model.parameters(), before, strict=True))
        return str(error)
    return "nothing"


def one_head_of_hugging_face():
    import transformers

    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=V, hidden_size=C, intermediate_size=44, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1))


def ours(heads=6):
    return GPT(GPTConfig(1, heads, C, block_size=T, vocab_size=V))


WRONG = {
    "5 ranks' heads": (lambda: ours(3), {}, "h.0.attn.c_attn: 3 heads cannot be divided among 2 ranks"),
    "fewer heads than ranks": (lambda: ours(1), {}, ("h.0.attn.c_proj: 1 query heads cannot be divided among 2 ranks, because a head "
                                "that several ranks have would be added up several times: use a number of ranks that divides 1")),
    "fewer heads than ranks, Llama": (one_head_of_hugging_face, {}, "o_proj: 1 query heads cannot be divided among 2 ranks"),
    "no loss": (lambda: torch.nn.ModuleDict({"head": torch.nn.Linear(2, 2)}), {"plan": TensorPlan((), {}, {}, head="head")},
                "ModuleDict has no `loss(logits, targets)` to replace"),
    "fewer words than ranks": (lambda: GPT(GPTConfig(1, 2, 4, block_size=T, vocab_size=1)), {},
                       "wte: 1 rows cannot be cut among 2 ranks: each rank needs at least one"),
    "no plan": (lambda: torch.nn.Sequential(torch.nn.Linear(2, 2)), {}, "there is no plan by which to cut a Sequential"),
    "no such name": (ours, {"plan": TensorPlan(("h.*.attention",), {}, {})}, "'h.*.attention', which matches no module"),
    "meta": (lambda: ours().to("meta"), {}, "wte.weight is on the meta device"),
    "sequence without a head": (ours, {"plan": TensorPlan(("h.*.mlp",), {"h.*.mlp.c_fc": Columns()}, {}), "sequence": True},
                                "the plan must name both"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_cut_is_refused_with_a_sentence(pool, wrong):
    make, options, sentence = WRONG[wrong]
    assert all(sentence in said for said in pool(2).run(refused, make, **options))


def given_other_samples():
    model = tensor_parallel(ours(), Comm())
    try:
        model(torch.arange(T).roll(Comm().rank)[None])  # the same tokens, in another order
    except BadInput as error:
        return str(error)


def cut_twice():
    return refused(lambda: tensor_parallel(ours(), Comm()))


def odd_tokens():
    model = tensor_parallel(ours(), Comm(), sequence=True)
    try:
        model(torch.zeros(1, 5, dtype=torch.int64))
    except BadInput as error:
        return str(error)


def test_ranks_of_one_group_read_the_same_samples(pool):
    one, other = (f"rank {rank} of the tensor-parallel group" for rank in (0, 1))
    for said in pool(2).run(given_other_samples):
        assert any(f"{first} and {second} have parts of one model and were given different samples" in said
                   for first, second in ((one, other), (other, one))), said
    assert all("was cut before" in said for said in pool(2).run(cut_twice))
    assert all("the 5 tokens of a sample among 2 ranks" in said for said in pool(2).run(odd_tokens))


def test_a_cut_covers_every_row_and_counts_each_once():
    for size, ranks, parts, groups in ((24, 3, 1, None), (31, 4, 1, None), (72, 3, 3, 6), (8, 4, 1, 2), (4, 4, 1, 1)):
        cut, whole = Cut.even(0, size, ranks, parts, groups), torch.arange(size * 2.0).view(size, 2)
        rows = [row for rank in range(ranks) if cut.is_first(rank) for part in cut.by_rank[rank] for row in part]
        assert sorted(rows) == list(range(size))
        again = torch.full_like(whole, float("nan"))
        for rank in range(ranks):
            part = cut.take(whole, rank)
            assert list(part.shape) == cut.shape(part, rank) and cut.shape(part) == list(whole.shape)
            cut.put(part, again, rank)
        assert torch.equal(again, whole)
    assert not hasattr(torch.nn.Parameter(torch.zeros(1)), "tensor_cut") and counts_here(torch.zeros(1), Comm())


def seeded_by_rank():
    torch.manual_seed(Comm().rank)
    model = tensor_parallel(ours(), Comm())
    return whole_state_dict(model, Comm())


def test_ranks_that_were_seeded_differently_begin_alike(pool):
    one, other = pool(2).run(seeded_by_rank)
    torch.manual_seed(0)
    assert all(torch.equal(one[name], other[name]) and torch.equal(one[name], value)
               for name, value in ours().state_dict().items())


def audited_llama(planted):
    import transformers

    config = transformers.LlamaConfig(vocab_size=V, hidden_size=C, intermediate_size=44, num_hidden_layers=1,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=T)
    model = tensor_parallel(transformers.LlamaForCausalLM(config), Comm())
    params = dict(model.named_parameters())
    for param in params.values():
        param.counts_in_norm |= planted and hasattr(param, "tensor_cut")
    return audit(params, lambda: grad_norm(params.values(), [Comm()]), Comm())


def test_key_value_copies_count_once(pool):
    pytest.importorskip("transformers")
    for counted in pool(4).run(audited_llama, False):
        assert set(counted.values()) == {1}, counted
    for counted in pool(4).run(audited_llama, True):
        assert {name.split(".")[-2] for name, times in counted.items() if times == 2} == {"k_proj", "v_proj"}


def recomputed():
    """Gradients with recomputation of every block, and what it adds to the bytes of a layer."""
    plain, model = models()
    comm = Comm()
    tensor_parallel(model, comm)
    tokens, targets = next(batches(1))
    model(tokens, targets)
    before = comm.elements.copy()
    for module in model.h:
        forward = module.forward
        module.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False)
    model(tokens, targets).backward()
    sent = comm.elements["all_gather"] - before["all_gather"]
    plain(tokens, targets).backward()
    for param in model.parameters():
        param.data = param.grad
    return apart(whole_state_dict(model, comm), {name: param.grad for name, param in plain.named_parameters()}), sent


def test_recomputation_sends_one_all_reduce_more(pool):
    """Of the two in a layer's forward: torch stops computing again when the backward has what it needs, before the second."""
    B = 2
    outside = 2 * B * T * C + 2 * B * T  # embedding, head and loss, as all-gathers and halves of them
    for difference, sent in pool(2).run(recomputed):
        assert difference < 1e-13
        assert sent - outside // 2 == L * 5 * B * T * C // 2


def in_half():
    torch.manual_seed(0)
    model = ours().bfloat16()
    comm = Comm()
    plain = copy.deepcopy(model)
    tensor_parallel(model, comm, sequence=True)
    tokens, targets = next(batches(1))
    loss = model(tokens, targets)
    loss.backward()
    return loss.item(), plain(tokens, targets).item(), loss.dtype, model.h[0].ln_1.weight.grad.dtype


def test_half_precision(pool):
    for ours_, theirs, dtype, of_gradient in pool(2).run(in_half):
        assert ours_ == pytest.approx(theirs, rel=2e-3) and dtype == torch.float32 and of_gradient == torch.bfloat16


def test_torchs_own_trains_alike():
    """The bench's two sides compute the same thing."""
    from zerocourse.bench.parts.tensor_speed import measure

    found = measure(GPTConfig(1, 4, C, block_size=T, vocab_size=V, tied=False), 2, 2, 2)
    assert len({round(each["loss"], 4) for each in found.values()}) == 1 and len(found) == 3
    assert all(each["seconds"] > 0 and each["ratio"] > 0 for each in found.values()) and found["ours"]["ratio"] == 1
