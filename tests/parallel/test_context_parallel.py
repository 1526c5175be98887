"""Context parallelism in real processes: the attention, gradients and updates of one process that has whole sequences."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
import transformers
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from worlds import gpt

from zerocourse import shard, state_dict
from zerocourse.comm import Comm
from zerocourse.comm.simulated import SimulatedComm
from zerocourse.errors import BadInput
from zerocourse.formulas.volumes import bus_factor
from zerocourse.parallel.context import RingAttention, Ulysses, context_parallel, cut_tokens, parts_of, positions_of, rejoin, shifted, token_loss
from zerocourse.parallel.context.context_parallel import KINDS
from zerocourse.parallel.context.in_hugging_face import attend_in_hugging_face

T = 24  # tokens: a multiple of 2 x 2, 2 x 3 and 2 x 4
ORDER = {kind: "zigzag" if kind == "ring" else "contiguous" for kind in KINDS}
COMMON = {"vocab_size": 29, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "initializer_range": 0.2}


# -- the cut ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("order", ("contiguous", "zigzag"))
@pytest.mark.parametrize("ranks", (1, 2, 3, 4))
def test_a_cut_is_rejoined_and_every_token_keeps_its_label_and_position(order, ranks):
    tokens, labels = torch.randperm(2 * T).view(2, T), torch.randperm(2 * T).view(2, T)
    cuts = [cut_tokens(tokens, rank, ranks, order, labels) for rank in range(ranks)]
    assert torch.equal(rejoin([cut.tokens_BT for cut in cuts], order), tokens)
    assert torch.equal(rejoin([cut.positions_T[None] for cut in cuts], order), torch.arange(T)[None])
    targets = rejoin([cut.targets_BT for cut in cuts], order)
    assert torch.equal(targets[:, :-1], labels[:, 1:]) and (targets[:, -1] == -100).all()
    for cut in cuts:  # also alone: token i of a rank stands at its position, and its target is the label behind it
        assert torch.equal(cut.tokens_BT, tokens[:, cut.positions_T])
        inside = cut.positions_T < T - 1
        assert torch.equal(cut.targets_BT[:, inside], labels[:, cut.positions_T[inside] + 1])
        assert (cut.positions_T.diff() > 0).all(), "the causal mask of a rank's own tokens needs them in order"


def test_where_the_parts_lie():
    assert [parts_of(rank, 3, "contiguous") for rank in range(3)] == [[0], [1], [2]]
    assert [parts_of(rank, 3, "zigzag") for rank in range(3)] == [[0, 5], [1, 4], [2, 3]]
    assert positions_of(1, 2, 8, "zigzag").tolist() == [2, 3, 4, 5]


def test_targets_that_are_shifted_already_stay():
    tokens = torch.arange(8).view(1, 8)
    assert cut_tokens(tokens, 1, 2, "contiguous", targets_BT=tokens + 1).targets_BT.tolist() == [[5, 6, 7, 8]]
    assert cut_tokens(tokens, 0, 2, "contiguous").targets_BT.tolist() == [[1, 2, 3, 4]]
    assert shifted(tokens).tolist() == [[1, 2, 3, 4, 5, 6, 7, -100]]


@pytest.mark.parametrize("call, sentence", [
    (lambda: positions_of(0, 4, 12, "zigzag"), "12 tokens cannot be cut into 8 equal parts.*to 16 tokens"),
    (lambda: positions_of(0, 5, 12, "contiguous"), "12 tokens cannot be cut into 5 equal parts.*to 15 tokens"),
    (lambda: parts_of(0, 2, "spiral"), "order is 'spiral': it must be 'contiguous' or 'zigzag'"),
    (lambda: cut_tokens(torch.zeros(1, 8).long(), 0, 2, labels_BT=torch.zeros(1, 7).long()), r"\(1, 8\) and labels \(1, 7\)"),
    (lambda: context_parallel(gpt(), Comm(), "spiral"), "kind is 'spiral': it must be 'ulysses' or 'ring'"),
    (lambda: context_parallel(nn.Linear(2, 2), Comm()), "Linear has no causal attention"),
    (lambda: RingAttention(Comm(), "h.0.attn")(*torch.ones(3, 1, 1, 2, 2), dropout_p=0.1), "h.0.attn has no dropout"),
    (lambda: Ulysses(SimulatedComm(0, 3), "h.0.attn")(*torch.ones(3, 1, 4, 2, 2)), "4 heads, which 3 ranks cannot share"),
])
def test_what_cannot_be_done_is_one_sentence(call, sentence):
    with pytest.raises(BadInput, match=sentence):
        call()


# -- attention ---------------------------------------------------------------------------------------------------------

def heads_of(heads: int, kv_heads: int, dtype: torch.dtype, width: int = 4) -> list[torch.Tensor]:
    """Queries, keys, values and the output's gradient of two whole sequences.   width: of a head of values."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(2, number, T, D, generator=generator, dtype=torch.float64).to(dtype)
            for number, D in ((heads, 4), (kv_heads, 4), (kv_heads, width), (heads, width))]


def attention_of_a_rank(kind: str, heads: int, kv_heads: int, dtype: torch.dtype, order: str | None = None,
                        width: int = 4) -> tuple:
    """This rank's output and gradients of (queries, keys, values), elements and bytes sent forward and back, blocks."""
    comm = Comm()
    attend = KINDS[kind](comm, "attention", **({"order": order} if order else {}))
    mine = positions_of(comm.rank, comm.world_size, T, attend.order)
    q, k, v, gradient = (tensor[:, :, mine] for tensor in heads_of(heads, kv_heads, dtype, width))
    inputs = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    out = attend(*inputs)
    forward = comm.elements.total(), comm.sent.total()
    out.backward(gradient)
    back = comm.elements.total() - forward[0], comm.sent.total() - forward[1]
    blocks = dict(attend.blocks) if kind == "ring" else {}
    return [out.detach(), *(each.grad for each in inputs)], *zip(forward, back), blocks, comm.metadata + comm.padding


def attention_alone(heads: int, kv_heads: int, dtype: torch.dtype, width: int = 4) -> list[torch.Tensor]:
    q, k, v, gradient = heads_of(heads, kv_heads, dtype, width)
    inputs = [tensor.double().requires_grad_() for tensor in (q, k, v)]
    out = F.scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=True)
    out.backward(gradient.double())
    return [out.detach(), *(each.grad for each in inputs)]


def gap(got: torch.Tensor, expected: torch.Tensor) -> float:
    difference = (got.double() - expected.double()).abs().max().item() / expected.abs().max().item()
    return difference if difference == difference else float("inf")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks, heads, kv_heads", ((2, 4, 4), (3, 6, 3), (3, 6, 2), (4, 4, 2), (4, 4, 1), (4, 12, 6)))
def test_attention_and_its_gradients_are_those_of_one_process(pool, kind, ranks, heads, kv_heads):
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-6), (torch.bfloat16, 3e-2)):
        found = pool(ranks).run(attention_of_a_rank, kind, heads, kv_heads, dtype)
        for index, expected in enumerate(attention_alone(heads, kv_heads, dtype)):
            whole = rejoin([tensors[index] for tensors, *_ in found], ORDER[kind], dim=2)
            assert whole.dtype == dtype and gap(whole, expected) < tolerance, (index, dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_values_may_be_narrower_than_keys(pool, kind):
    """As in the attention of DeepSeek V3, whose keys have a part for positions that its values do not."""
    found = pool(2).run(attention_of_a_rank, kind, 4, 2, torch.float64, None, 3)
    for index, expected in enumerate(attention_alone(4, 2, torch.float64, 3)):
        assert gap(rejoin([tensors[index] for tensors, *_ in found], ORDER[kind], dim=2), expected) < 1e-12, index


@pytest.mark.parametrize("ranks, heads, kv_heads, sent_kv_heads", ((2, 4, 4, 4), (3, 6, 3, 3), (3, 6, 2, 6), (4, 4, 1, 4)))
def test_ulysses_sends_what_the_formula_says(pool, ranks, heads, kv_heads, sent_kv_heads):
    """Queries and output, keys and values, to the last element; where ranks do not divide kv heads these are repeated."""
    for _, elements, nbytes, _, beside in pool(ranks).run(attention_of_a_rank, "ulysses", heads, kv_heads, torch.float32):
        tokens = 2 * T // ranks  # of a rank, in two sequences
        each_way = (2 * heads + 2 * sent_kv_heads) * 4 * tokens * bus_factor("all_to_all", ranks)
        assert elements == (each_way, each_way) and nbytes == (4 * each_way, 4 * each_way) and beside == 0
        if sent_kv_heads == heads:
            assert each_way == 4 * (2 * T * heads * 4 // ranks) * (ranks - 1) // ranks  # 4 (sBh/P)(P-1)/P


@pytest.mark.parametrize("ranks, kv_heads", ((2, 4), (3, 4), (4, 4), (4, 2)))
def test_a_ring_sends_what_the_formula_says(pool, ranks, kv_heads):
    """Keys and values forward; these and their gradients back. Repeated heads of keys and values do not travel."""
    for _, elements, nbytes, _, beside in pool(ranks).run(attention_of_a_rank, "ring", 4, kv_heads, torch.float32):
        forward = 2 * (ranks - 1) * (T // ranks) * 2 * (kv_heads * 4)  # 2 (P-1) (s/P) b h
        assert elements == (forward, 2 * forward) and nbytes == (4 * forward, 8 * forward) and beside == 0
    for _, elements, nbytes, *_ in pool(ranks).run(attention_of_a_rank, "ring", 4, kv_heads, torch.bfloat16):
        assert elements == (forward, 2 * forward)
        assert nbytes == (2 * forward, 2 * forward + 4 * forward), "gradients travel in fp32"


@pytest.mark.parametrize("ranks", (2, 3, 4))
def test_zigzag_gives_every_rank_as_many_blocks_and_contiguous_does_not(pool, ranks):
    def counted(order):
        return [blocks for *_, blocks, _ in pool(ranks).run(attention_of_a_rank, "ring", 4, 4, torch.float32, order)]

    assert counted("zigzag") == [{"diagonal": 2, "whole": 2 * ranks - 1}] * ranks
    rows = counted("contiguous")
    assert rows == [{"diagonal": 1, **({"whole": rank} if rank else {})} for rank in range(ranks)]
    halves = [2 * row.get("whole", 0) + row["diagonal"] for row in rows]  # the mask hides a half of a diagonal block
    assert halves == list(range(1, 2 * ranks, 2)), "1 : 3 : 5 : 7"


def order_of_events() -> list[tuple[str, str]]:
    comm = Comm()
    attend, tensors = RingAttention(comm, "a"), heads_of(2, 2, torch.float32)
    mine = positions_of(comm.rank, comm.world_size, T, "zigzag")
    q, k, v, gradient = (tensor[:, :, mine].clone().requires_grad_() for tensor in tensors)
    attend(q, k, v).backward(gradient.detach())
    return [(event.verb, event.unit, event.start, event.end) for event in comm.recorder.events]


def test_the_next_block_travels_while_this_one_is_computed(pool):
    for events in pool(3).run(order_of_events):
        for verb in ("forward", "backward"):
            computed = [event for event in events if event[0] == verb]
            assert len(computed) == 3
            begin, end = computed[0][2], computed[-1][3]
            for way in ("send", "recv"):
                hops = [event for event in events if event[:2] == (way, "a keys and values") and begin - 1 < event[2] < end]
                hops = hops[:2] if verb == "forward" else hops[-2:]
                for hop, block in zip(hops, computed):
                    assert hop[2] <= block[2] and block[3] <= hop[3], "under way before it begins, taken after it ended"


@pytest.mark.parametrize("ranks", (2, 3))
def test_ranks_of_a_ring_send_and_receive_at_once(strict_pool, ranks):
    """On NCCL, where a send waits for its receive, ranks that all sent first would wait for each other. A layer makes N-1 hops
    forward, and twice as many back."""
    for events in strict_pool(ranks).run(order_of_events):
        verbs = [verb for verb, *_ in events]
        assert verbs.count("send") == verbs.count("recv") == 3 * (ranks - 1)


# -- models under ZeRO -------------------------------------------------------------------------------------------------

def model_of(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(1)
    if name == "gpt":
        return gpt(n_head=12, n_embd=24, block_size=T).to(dtype)
    if name == "llama":
        return LlamaForCausalLM(LlamaConfig(**COMMON, hidden_size=16, intermediate_size=12, num_hidden_layers=2,
                                            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=T)).to(dtype)
    return GPT2LMHeadModel(GPT2Config(**COMMON, n_layer=2, n_head=2, n_embd=8, n_positions=T, resid_pdrop=0, embd_pdrop=0,
                                      attn_pdrop=0)).to(dtype)


def batch_of(step: int, rows: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and labels of which -100 takes all of the first quarter and many of the first half."""
    generator = torch.Generator().manual_seed(10 + step)
    tokens = torch.randint(29, (rows, T), generator=generator)
    labels = torch.where(torch.rand(rows, T, generator=generator) < 0.8, tokens, -100)
    labels[:, : T // 4 + 1], labels[0, : T // 2] = -100, -100
    return tokens, labels


def logits_of(model: nn.Module, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    if hasattr(model, "set_attn_implementation"):
        return model(tokens, position_ids=positions[None]).logits
    return model(tokens, positions_T=positions)


def alone(name: str, dtype: torch.dtype, rows: int = 2) -> tuple[dict, list[float]]:
    model, losses = model_of(name, dtype), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for step in range(2):
        tokens, labels = batch_of(step, rows)
        logits = logits_of(model, tokens, torch.arange(T))
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {key: value.detach().clone() for key, value in model.state_dict().items()}, losses


def trained(name: str, kind: str, stage: int, dtype: torch.dtype, cp: int | None = None, after: bool = False) -> tuple:
    """The same on this rank, of `cp` ranks that share sequences; other groups of ranks have other sequences."""
    everyone = Comm()
    groups = [dist.new_group(list(range(first, first + cp))) for first in range(0, everyone.world_size, cp)] if cp else [None]
    cp = cp or everyone.world_size
    replica = everyone.rank // cp
    comm = Comm(groups[replica])
    model = model_of(name, dtype)
    if not after:
        context_parallel(model, comm, kind)
    model, optimizer = shard(model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9), stage=stage)
    if after:
        context_parallel(model, comm, kind)
    losses = []
    for step in range(2):
        tokens, labels = batch_of(step, 2 * everyone.world_size // cp)
        rows = slice(2 * replica, 2 * replica + 2)
        cut = cut_tokens(tokens[rows], comm.rank, cp, ORDER[kind], labels[rows])
        loss = token_loss(logits_of(model, cut.tokens_BT, cut.positions_T), cut.targets_BT, everyone)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return state_dict(model), losses


def check(found: list, expected: tuple[dict, list[float]], tolerance: float) -> None:
    state, losses = expected
    mean = [sum(of_step) / len(found) for of_step in zip(*(losses for _, losses in found), strict=True)]
    assert mean == pytest.approx(losses, rel=tolerance, abs=0)
    for got, _ in found:
        assert got.keys() == state.keys()
        worst = max(gap(got[key], value) for key, value in state.items())
        assert worst < tolerance


@pytest.mark.parametrize("ranks, stages", ((2, (0, 1, 3)), (3, (0, 1, 3)), (4, (0, 1, 3))))
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_under_zero_equals_one_process(pool, kind, ranks, stages):
    expected = alone("gpt", torch.float64)
    for stage in stages:
        check(pool(ranks).run(trained, "gpt", kind, stage, torch.float64), expected, 1e-12)
    check(pool(ranks).run(trained, "gpt", kind, stages[-1], torch.float32), alone("gpt", torch.float32), 2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_are_cut_beside_data_parallelism(pool, kind):
    """Two groups of two ranks with other sequences, whose numbers of targets differ; the model is cut among all four."""
    expected = alone("gpt", torch.float64, rows=4)
    check(pool(4).run(trained, "gpt", kind, 3, torch.float64, cp=2, after=True), expected, 1e-12)


@pytest.mark.parametrize("name", ("llama", "gpt2"))
@pytest.mark.parametrize("kind", KINDS)
def test_hugging_face_models(pool, kind, name):
    check(pool(2).run(trained, name, kind, 3, torch.float64), alone(name, torch.float64), 1e-11)


def losses_of_tokens(targets: list[list[int]]) -> float:
    comm = Comm()
    logits = torch.arange(15.0).view(1, 3, 5).sin() * (1 + comm.rank)
    return token_loss(logits, torch.tensor([targets[comm.rank]]), comm).item()


def test_a_rank_weighs_what_its_tokens_weigh(pool):
    logits = torch.cat([torch.arange(15.0).view(3, 5).sin() * (1 + rank) for rank in range(2)])
    for targets in ([[1, 2, 3], [4, -100, -100]], [[-100] * 3, [0, 1, -100]]):
        losses = pool(2).run(losses_of_tokens, targets)
        assert sum(losses) / 2 == pytest.approx(F.cross_entropy(logits, torch.tensor(targets).flatten()).item(), rel=1e-6)
    assert pool(2).run(losses_of_tokens, [[-100] * 3] * 2) == [0.0, 0.0]


def test_calls_that_would_be_silently_wrong_are_refused():
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    model, llama = context_parallel(gpt(block_size=8), Comm()), context_parallel(model_of("llama"), Comm())
    position_ids = torch.arange(8)[None]
    for call, sentence in [
        (lambda: model(tokens), "needs its positions"),
        (lambda: llama(tokens), "needs its positions"),
        (lambda: model(tokens, tokens, position_ids[0]), "was given targets_BT, and would average"),
        (lambda: llama(tokens, position_ids=position_ids, labels=tokens), "was given labels, and would average"),
        (lambda: llama(tokens, position_ids=position_ids, attention_mask=tokens), "would leave the attention_mask out"),
    ]:
        with pytest.raises(BadInput, match=sentence):
            call()
    long = context_parallel(gpt(block_size=8), SimulatedComm(0, 2))
    with pytest.raises(BadInput, match="2 ranks have 16 tokens of a sequence together, and GPT has 8 positions"):
        long(tokens, positions_T=position_ids[0])
    with pytest.raises(BadInput, match="are on the meta device.*after `shard`"):
        context_parallel(model_of("llama").to("meta"), Comm())
    windowed = model_of("llama")
    windowed.config.sliding_window = 4
    with pytest.raises(BadInput, match="sliding_window=4"):
        context_parallel(windowed, Comm())


@pytest.mark.parametrize("kind, other", (("ring", "contiguous"), ("ulysses", "zigzag")))
@pytest.mark.parametrize("rank", (0, 1, 2))
def test_tokens_in_the_other_kind_s_order_are_refused_on_every_rank(kind, other, rank):
    model, comm = gpt(block_size=24), SimulatedComm(rank, 3)
    cut = cut_tokens(torch.zeros(1, 24, dtype=torch.int64), rank, 3, other)
    with pytest.raises(BadInput, match=f"the tokens are cut in {other} order.*call cut_tokens with order="):
        context_parallel(model, comm, kind)(cut.tokens_BT, positions_T=cut.positions_T)


SMALL = COMMON | {"hidden_size": 24, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
                  "max_position_embeddings": 64}
GROUPED = SMALL | {"num_key_value_heads": 2}


@pytest.mark.parametrize("name, config, sentence", [
    ("GPTJ", {"vocab_size": 29, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4}, "mixes tokens in .*attn"),
    ("GPTNeo", {"vocab_size": 29, "hidden_size": 24, "num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 2]],
                "max_position_embeddings": 64}, "mixes tokens in .*attn"),
    ("Falcon", SMALL | {"alibi": False}, "mixes tokens in .*self_attention"),
    ("Falcon", SMALL | {"alibi": True}, "mixes tokens in .*self_attention"),
    ("Lfm2", GROUPED | {"full_attn_idxs": [0]}, "mixes tokens in model.layers.1.conv"),
    ("Llama4", GROUPED | {"head_dim": 6, "intermediate_size_mlp": 16, "num_local_experts": 2, "moe_layers": [],
                          "no_rope_layers": [1, 1], "attention_chunk_size": 32}, "the mask of model.layers.0.self_attn is not the plain"),
    ("GptOss", GROUPED | {"head_dim": 6, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 128,
                          "layer_types": ["full_attention"] * 2}, "sliding_window=128"),
    ("Bart", {"vocab_size": 29, "d_model": 24, "decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 16,
              "max_position_embeddings": 64}, "other queries or keys in model.decoder.layers.0.self_attn for a part"),
    ("Roberta", SMALL | {"is_decoder": True, "type_vocab_size": 1}, "or does not place the first one at 0"),
])
def test_tokens_that_meet_outside_of_our_attention_are_refused(name, config, sentence):
    """Each rank would mix its own tokens alone, or leave a part of the mask out, and no loss would tell. The model stays
    as it was."""
    config = getattr(transformers, f"{name}TextConfig" if name == "Llama4" else f"{name}Config")(**config)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    attention = config._attn_implementation
    with pytest.raises(BadInput, match=sentence):
        context_parallel(model, Comm())
    assert config._attn_implementation == attention and model.training
    assert not any(hasattr(module, "attend") for module in model.modules())


def test_what_attention_is_given_beside_tokens_is_not_left_out():
    """Such as the sinks of GPT-OSS, a bias by distance, and another's frequencies for long sequences."""
    module, tensors = model_of("llama").model.layers[0].self_attn, heads_of(4, 2, torch.float32)[:3]
    module.attend = Ulysses(Comm(), "layer 0")
    for given, sentence in [({"s_aux": torch.zeros(4)}, "layer 0 is called with s_aux"),
                            ({"attention_mask": torch.zeros(1, 1, T, T)}, "the mask of layer 0 is not the plain causal one"),
                            ({"is_causal": False}, "attends to tokens that come later")]:
        with pytest.raises(BadInput, match=sentence):
            attend_in_hugging_face(module, *tensors, **given)
    plain, _ = attend_in_hugging_face(module, *tensors, position_ids=torch.arange(T))
    assert gap(plain.transpose(1, 2), attention_alone(4, 2, torch.float32)[0]) < 1e-6


def test_frequencies_that_depend_on_the_longest_position_of_a_rank_are_refused():
    """Phi-3's of 128k: a rank whose tokens all come early would take those of short sequences, and others those of long."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 3, "long_factor": [4.0] * 3,
            "original_max_position_embeddings": 16}
    config = transformers.Phi3Config(**GROUPED | {"max_position_embeddings": 64, "rope_parameters": rope,
                                                  "original_max_position_embeddings": 16})
    model = context_parallel(transformers.Phi3ForCausalLM(config), SimulatedComm(0, 2))
    with pytest.raises(BadInput, match="have 18 tokens of a sequence together, and Phi3ForCausalLM has 16 positions"):
        model(torch.zeros(1, 9).long(), position_ids=torch.arange(9)[None])


def test_one_rank_alone_needs_no_messages():
    for kind in KINDS:
        comm, model = Comm(), gpt(block_size=T)
        tokens = torch.randint(29, (2, T))
        expected = model(tokens)
        got = context_parallel(model, comm, kind)(tokens, positions_T=torch.arange(T))
        assert gap(got, expected) < 1e-6 and comm.sent.total() == 0
