"""Expert parallelism equals one process, on our mixture and on Hugging Face's Mixtral and Qwen MoE, and sends what was routed."""

import re
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, MixtralConfig, Qwen3MoeConfig

from zerocourse.comm import Comm
from zerocourse.errors import BadInput
from zerocourse.launch import RankError
from zerocourse.layout.mesh import Mesh
from zerocourse.parallel.experts import ExpertPlan, MixtureOfExperts, balance_loss, expert_parallel, route
from zerocourse.parallel.experts.capacity import capacity_of, with_capacity
from zerocourse.parallel.experts.routing import Routing, by_expert
from zerocourse.parallel.mesh_comms import MeshComms

C, EXPERTS, K, V, ROWS, T = 16, 8, 2, 32, 4, 12
SHAPE = {"vocab_size": V, "hidden_size": C, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
         "initializer_range": 0.2}


class Small(nn.Module):
    """Two mixtures around a residual, and the loss with that of their balance."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(V, C), nn.Linear(C, V)
        self.mixtures = nn.ModuleList(MixtureOfExperts(C, 2 * C, EXPERTS, K) for _ in range(2))

    def forward(self, tokens_BT, everyone=None):
        x_BTC = self.embed(tokens_BT)
        for mixture in self.mixtures:
            x_BTC = x_BTC + mixture(x_BTC)
        loss = F.cross_entropy(self.head(x_BTC)[:, :-1].flatten(0, 1), tokens_BT[:, 1:].flatten())
        return loss + 0.01 * sum(balance_loss(mixture.routing, everyone) for mixture in self.mixtures)


def built(kind):
    torch.manual_seed(0)
    if kind == "ours":
        return Small().double()
    loop = {"experts_implementation": "eager"} if kind == "mixtral, a loop" else {}  # over the experts that were chosen
    config = MixtralConfig(num_local_experts=EXPERTS, intermediate_size=24, **SHAPE, **loop) if kind.startswith("mixtral") else Qwen3MoeConfig(
        num_experts=EXPERTS, num_experts_per_tok=K, moe_intermediate_size=24, head_dim=8, norm_topk_prob=True, **SHAPE)
    return AutoModelForCausalLM.from_config(config)


def samples(ranks):
    return torch.randint(V, (ROWS * ranks, T), generator=torch.Generator().manual_seed(1))


def loss_of(model, tokens, everyone=None):
    return model(tokens, everyone) if isinstance(model, Small) else model(input_ids=tokens, labels=tokens).loss


def one_process(kind, ranks):
    """Loss, and gradients by name."""
    model = built(kind)
    loss = loss_of(model, samples(ranks))
    loss.backward()
    return loss.item(), {name: param.grad for name, param in model.named_parameters()}


def on_ranks(kind, ep):
    """The mean loss, gradients as data parallelism averages them, elements sent, and what should have been."""
    comms = MeshComms(Mesh({"edp": torch.distributed.get_world_size() // ep, "ep": ep}), timeout=20)
    everyone, group, same = comms.make("edp", "ep"), comms.along("ep"), comms.along("edp")
    model = expert_parallel(built(kind), group)
    tokens = samples(everyone.world_size).chunk(everyone.world_size)[everyone.rank]
    before = group.elements["send"]
    loss = loss_of(model, tokens, everyone)
    loss.backward()
    sent, gradients = group.elements["send"] - before, {}
    for name, param in model.named_parameters():
        over = same if hasattr(param, "expert_comm") else everyone
        gradient = over.all_reduce(param.grad.clone()) / over.world_size
        gradients[name] = (gradient, group.rank if hasattr(param, "expert_comm") else None)
    elsewhere = None
    if kind == "ours":
        here = range(group.rank * EXPERTS // ep, (group.rank + 1) * EXPERTS // ep)
        elsewhere = sum(expert not in here for mixture in model.mixtures for expert in mixture.routing.experts_Nk.flatten().tolist())
    return everyone.all_reduce(loss.detach().double()).item() / everyone.world_size, gradients, sent, elsewhere


@pytest.mark.parametrize("kind, ranks, ep", (("ours", 2, 2), ("ours", 4, 2), ("ours", 4, 4), ("ours", 2, 1), ("mixtral", 2, 2),
                                             ("mixtral, a loop", 2, 2), ("qwen3", 2, 2)))
def test_equals_one_process(pool, kind, ranks, ep):
    loss, gradients = one_process(kind, ranks)
    close = 2e-6 if kind == "ours" else 2e-5
    results = pool(ranks).run(on_ranks, kind, ep)
    for ours, values, _, _ in results:
        assert ours == pytest.approx(loss, rel=1e-7 if kind == "ours" else 1e-6)
        for name, (value, part) in values.items():
            want = gradients[name] if part is None else gradients[name].chunk(ep)[part]
            assert (value - want).abs().max() <= close * want.abs().max().clamp(min=1e-9), name


def test_what_is_sent_is_what_was_routed(pool):
    """Four times the pairs whose expert is elsewhere; here those that leave, and the same number that come back, over all ranks."""
    results = pool(4).run(on_ranks, "ours", 4)
    leaving = sum(elsewhere for *_, elsewhere in results)
    assert sum(sent for *_, sent, _ in results) == 4 * C * leaving
    assert 0.6 < leaving / (4 * 2 * ROWS * T * K) < 0.9  # 3/4, where all experts are equally busy


def test_experts_without_a_token_have_gradients_of_zeros():
    torch.manual_seed(0)
    mixture = MixtureOfExperts(C, 2 * C, EXPERTS, 1)
    mixture(torch.randn(3, C)).sum().backward()
    used = set(mixture.routing.experts_Nk.flatten().tolist())
    assert len(used) < EXPERTS
    assert all(bool(mixture.experts.up.grad[expert].any()) == (expert in used) for expert in range(EXPERTS))


def test_no_token_sees_another():
    """Nothing is dropped, so the last token changes nothing before it. A capacity that all share would."""
    torch.manual_seed(0)
    mixture, x = MixtureOfExperts(C, 2 * C, EXPERTS, K), torch.randn(50, C)
    before = mixture(x)
    x[-1] = torch.randn(C) * 10
    assert torch.equal(mixture(x)[:-1], before[:-1])


def test_a_token_and_the_order_of_experts():
    """Renormalised weights are 1 together, and pairs of one expert keep the order of their tokens."""
    routing = route(torch.randn(20, EXPERTS, generator=torch.Generator().manual_seed(0)), K)
    assert torch.allclose(routing.weights_Nk.sum(-1), torch.ones(20))
    assert not torch.allclose(route(routing.probabilities_NE.log(), K, renormalise=False).weights_Nk.sum(-1), torch.ones(20))
    pairs = by_expert(routing.experts_Nk, EXPERTS)
    for expert, of_expert in enumerate(pairs.order_P.split(pairs.counts_E.tolist())):
        assert of_expert.tolist() == sorted(of_expert.tolist())
        assert set(routing.experts_Nk.flatten()[of_expert].tolist()) <= {expert}


def test_the_balance_loss_is_one_where_all_are_busy_and_e_where_one_is():
    even = route(torch.eye(EXPERTS).repeat(4, 1) * 1e-6, 1)
    assert balance_loss(even).item() == pytest.approx(1, abs=1e-5)
    assert balance_loss(route(torch.eye(EXPERTS)[:1].repeat(9, 1) * 50, 1)).item() == pytest.approx(EXPERTS, rel=1e-5)


def refused(how):
    comm = Comm()
    if how == "no experts":
        expert_parallel(nn.Linear(2, 2), comm)
    if how == "twice":
        expert_parallel(expert_parallel(built("ours"), comm), comm)
    if how == "not divided":
        expert_parallel(MixtureOfExperts(C, C, 5), comm)
    if how == "a wrong name":
        expert_parallel(built("ours"), comm, ExpertPlan("blocks.*.experts"))


@pytest.mark.parametrize("how, words", (("no experts", "Linear has no module with `num_experts` and 3-D parameters"),
                                        ("twice", "was cut before"), ("not divided", "has 5 experts, which 2 ranks do not divide"),
                                        ("a wrong name", "the plan names 'blocks.*.experts', which matches no module of this Small")))
def test_what_cannot_be_cut_is_refused(pool, how, words):
    with pytest.raises(RankError, match=re.escape(words)):
        pool(2).run(refused, how)


def test_more_experts_a_token_than_there_are():
    with pytest.raises(BadInput, match="k is 3: of 2 experts a token can take 1 to 2"):
        MixtureOfExperts(C, C, 2, 3)


def collapsed(kind):
    """A step in which all tokens take the first rank's experts; what the other rank's have then."""
    comm, model = Comm(), built(kind)
    for module in model.modules():
        if type(module).__name__ in ("MixtralTopKRouter", "Qwen3MoeTopKRouter"):
            module.register_forward_hook(lambda module, inputs, out: (out[0], out[1], torch.arange(K).expand_as(out[2])))
        elif isinstance(module, MixtureOfExperts):
            module.router.register_forward_hook(lambda module, inputs, out: out * 0 + torch.arange(EXPERTS, 0.0, -1))
    expert_parallel(model, comm)
    loss_of(model, samples(2).chunk(2)[comm.rank], comm).backward()
    return [not param.grad.any() for param in model.parameters() if hasattr(param, "expert_comm")]


@pytest.mark.parametrize("kind", ("ours", "mixtral", "mixtral, a loop", "qwen3"))
def test_a_rank_may_get_no_token_at_all(pool, kind):
    first, second = pool(2).run(collapsed, kind)
    assert not any(first) and all(second) and len(second) == 4


def outputs(mixture, x, capacity, by_probability):
    routing = with_capacity(route(mixture.router(x), K), capacity, by_probability)
    return mixture.experts(x, routing.experts_Nk, routing.weights_Nk), routing


def test_a_capacity_drops_what_comes_last_and_by_probability_the_last_token_changes_others():
    torch.manual_seed(0)
    mixture, changed = MixtureOfExperts(C, 2 * C, EXPERTS, K), Counter()
    for _ in range(20):
        x = torch.randn(50, C)
        other = torch.cat([x[:-1], torch.randn(1, C) * 3])
        for by_probability in (False, True):
            before, routing = outputs(mixture, x, 9, by_probability)
            kept = torch.bincount(routing.experts_Nk[routing.weights_Nk > 0], minlength=EXPERTS)
            assert torch.equal(kept, torch.bincount(routing.experts_Nk.flatten(), minlength=EXPERTS).clamp(max=9))
            changed[by_probability] += not torch.equal(before[:-1], outputs(mixture, other, 9, by_probability)[0][:-1])
    assert changed[True] > 10 and not changed[False]


def test_who_comes_first_has_a_place():
    routing = Routing(torch.tensor([[0, 1], [1, 0], [1, 0]]), torch.full((3, 2), 0.5), torch.full((3, 2), 0.5))
    assert with_capacity(routing, 2).weights_Nk.gt(0).tolist() == [[True, True], [True, True], [False, False]]
    assert capacity_of(50, 2, 8, 1.0) == 13


def test_what_a_backward_computes_again_leaves_no_graph_behind():
    """`routing` is that of the forward: that of the recomputation is gone with it, and so is all that its graph keeps."""
    mixture = MixtureOfExperts(C, 2 * C, EXPERTS, K)
    y_NC = checkpoint(mixture, torch.randn(6, C, requires_grad=True), use_reentrant=False)
    routing = mixture.routing
    y_NC.sum().backward()
    assert mixture.routing is routing
