"""Claims that are settled by counting: about number formats, mixtures of experts, and models that write.

What was published of streamed weights is in DeepSpeed's post of 2022-09-10, “ZeRO-Inference: Democratizing massive model inference”.
"""

from math import ceil, isinf, log2

import torch
from torch import nn

from ....formulas.models.kv_cache import kv_bytes, weights_read
from ....formulas.models.llama_shape import LlamaShape
from ....formulas.models.mixture_shape import MixtureShape
from ....formulas.states import ZERO
from ....formulas.transformer import gpt2_block_params, gpt2_params, gpt2_step_flops
from ....inference import SmallLinear, weights_bytes
from ....parallel.experts import Routing, balance_loss
from ....planning.question import Rates
from ....simulation.clusters import find_cluster
from ....simulation.shapes import GPTS
from ..inference.published_rates import OPT
from .claim import Evidence, judges

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
SCALE = 2.0**16  # at which DeepSpeed's dynamic loss scale begins
HALF = 2  # bytes of a weight
MIXTURE_LAYERS = 12  # every other one of 24
MIXTRAL = MixtureShape(LlamaShape(32, 4096, 14_336, 32, 8, 32_000, 32_768), experts=8, k=2)


def fraction_bits(dtype: torch.dtype) -> int:
    """From the gap above 1, which is 2 to the power of minus so many."""
    return round(-log2(torch.finfo(dtype).eps))


def largest_numbers() -> Evidence:
    def fits(dtype: torch.dtype) -> bool:
        return not isinf(torch.tensor(SCALE).to(dtype).item())

    return {"claimed_largest": 65504, "claimed_fraction_bits": 7, "largest_fp16": torch.finfo(torch.float16).max,
            "fraction_bits": {name: fraction_bits(dtype) for name, dtype in DTYPES.items()},
            "one_and_0.003_in_bf16": (torch.tensor(1.0, dtype=torch.bfloat16) + 0.003).item(),
            "loss_scale": SCALE, "loss_scale_is_finite_in": [name for name, dtype in DTYPES.items() if fits(dtype)]}


@judges("65504 and 7 bits", largest_numbers)
def both_are_so(e):
    return e["largest_fp16"] == e["claimed_largest"] and e["fraction_bits"]["bf16"] == e["claimed_fraction_bits"]


def eight_times_seven() -> Evidence:
    return {"claimed_billions": 56, "billions": MIXTRAL.params / 1e9, "billions_that_a_token_uses": MIXTRAL.used / 1e9,
            "billions_of_experts": MIXTRAL.expert_params / 1e9, "billions_that_are_there_once": (MIXTRAL.params - MIXTRAL.expert_params) / 1e9}


@judges("8x7B is 56B", eight_times_seven)
def is_fifty_six(e):
    return abs(e["billions"] - e["claimed_billions"]) < 0.5


def four_bits() -> Evidence:
    """Measured on a layer in half precision, and by formula for other numbers of weights that share a scale of 32 bits."""
    linear = nn.Linear(1024, 1024, bias=False, dtype=torch.float16)
    return {"claimed_times": 4, "times_measured": weights_bytes(linear) / weights_bytes(SmallLinear(linear, 4)),
            "weights_of_a_scale": 256, "times_by_weights_of_a_scale": {group: 16 / (4 + 32 / group) for group in (32, 64, 128, 256)}}


@judges("4 bits: a quarter", four_bits)
def is_a_quarter(e):
    return {group: times >= e["claimed_times"] for group, times in e["times_by_weights_of_a_scale"].items()}


def guesses() -> Evidence:
    """The chances of a token that comes out of a checked guess, for drafts that are nearly right, and quite wrong."""
    draw = torch.Generator().manual_seed(0)
    p_V = torch.randn(50, generator=draw, dtype=torch.float64).softmax(-1)
    furthest, accepted = {}, {}
    for name, apart in (("a good draft", 0.3), ("a bad one", 3.0)):
        q_V = (p_V.log() + apart * torch.randn(50, generator=draw, dtype=torch.float64)).softmax(-1)
        taken_V = torch.minimum(p_V, q_V)  # q times the chance min(1, p/q) that it is accepted
        rest_V = (p_V - q_V).clamp(min=0)
        out_V = taken_V + (1 - taken_V.sum()) * rest_V / rest_V.sum()
        furthest[name], accepted[name] = (out_V - p_V).abs().max().item(), taken_V.sum().item()
    return {"furthest_from_the_model": furthest, "accepted": accepted, "rounding": torch.finfo(torch.float64).eps}


@judges("guessing changes nothing", guesses)
def same_chances(e):
    return [apart < e["rounding"] for apart in e["furthest_from_the_model"].values()]


def all_to_one() -> Evidence:
    """Eight layers, each of which gives all tokens to one expert, and each to another one."""
    layers, tokens = 8, 64
    routings = [Routing(torch.full((tokens, 1), layer), torch.ones(tokens, 1), torch.eye(layers)[layer].expand(tokens, layers))
                for layer in range(layers)]
    pooled = Routing(*(torch.cat(each) for each in zip(*routings, strict=True)))
    return {"best": 1.0, "a_loss_of_each_layer": balance_loss(routings[0]).item(), "one_loss_of_all_layers": balance_loss(pooled).item()}


@judges("a loss keeps experts busy", all_to_one)
def is_seen(e):
    """Does the loss tell that only one expert of each layer works?"""
    return {name: e[name] > 1.01 * e["best"] for name in ("a_loss_of_each_layer", "one_loss_of_all_layers")}


def with_experts(width: int, experts: int, beside: int) -> int:
    """Parameters of DeepSpeed-MoE's models, a GPT of 24 layers with experts in every other one. Source: arXiv 2201.05596, section 4.

    experts: in all layers together.   beside: in how many layers the feed-forward part stays, beside the experts.
    """
    expert = 8 * width**2 + 5 * width  # two matrices and their biases
    return gpt2_params(24, width, block_size=2048) + (experts - MIXTURE_LAYERS + beside) * expert + experts * width  # and the routers


def pyramid() -> Evidence:
    """Ten layers with fewer experts and two with twice as many, each beside a feed-forward part that all tokens take.

    The paper says this of the smaller model. The larger one is taken to be alike, and the count then gives the size that was published.
    """
    bases = {"350M": (1024, 32), "1.3B": (2048, 64)}  # width; experts in each of the ten layers
    usual = {base: with_experts(width, MIXTURE_LAYERS * 128, 0) for base, (width, _) in bases.items()}
    small = {base: with_experts(width, 10 * few + 2 * 2 * few, MIXTURE_LAYERS) for base, (width, few) in bases.items()}
    return {"claimed_times": 3, "billions_published": {"350M": (13, 4), "1.3B": (52, 31)},
            "billions": {base: (usual[base] / 1e9, small[base] / 1e9) for base in bases},
            "times": {base: usual[base] / small[base] for base in bases}}


@judges("PR-MoE: 3 times smaller", pyramid)
def is_three_times_smaller(e):
    return {base: times >= e["claimed_times"] for base, times in e["times"].items()}


def five_times_cheaper() -> Evidence:
    """1.3B with 128 experts a layer, one of which a token takes, against 6.7B: what each needs, dense over mixture."""
    tokens, cards, published = 2048, 128, {"dense": 70, "mixture": 372}

    def shape(layers: int, width: int) -> tuple[int, int]:
        params = gpt2_params(layers, width, block_size=tokens)
        return params, gpt2_step_flops(params, layers, width, 1, tokens)

    (dense, dense_flops), (_, flops) = shape(32, 4096), shape(24, 2048)
    mixture = with_experts(2048, MIXTURE_LAYERS * 128, 0)
    return {"claimed_times": 5, "samples_a_second_published": published,
            "times": {"arithmetic": dense_flops / flops, f"time on {cards} cards": published["mixture"] / published["dense"]},
            "model_states_bytes": {"dense": sum(ZERO.sizes) * dense, "mixture": sum(ZERO.sizes) * mixture}, "times_the_states": mixture / dense}


@judges("MoE: 5 times cheaper", five_times_cheaper)
def is_cheaper(e):
    held = e["model_states_bytes"]
    cheap = {what: round(times) >= e["claimed_times"] for what, times in (e["times"] | {"memory": held["dense"] / held["mixture"]}).items()}
    return cheap, {"ways": " or ".join(what for what, is_so in cheap.items() if is_so)}


def cards_for_530() -> Evidence:
    """Cards of 40 GB that hold the weights, cut evenly, and as nodes of eight hold whole layers."""
    shape, card, node = GPTS["megatron-530b"], 40 * 10**9, 8
    layer, layers = HALF * gpt2_block_params(shape.n_embd), shape.n_layer
    tables = HALF * shape.params - layers * layer  # of words and positions, counted to the node with most layers
    largest = {nodes * node: -(-layers // nodes) * layer + tables for nodes in (3, 4, 5)}
    return {"claimed_cards": 40, "weights_bytes": HALF * shape.params, "cards_by_bytes": -(-HALF * shape.params // card),
            "left_on_a_card_by_cards": {cards: card - -(-held // node) for cards, held in largest.items()}}


@judges("530B: 40 cards", cards_for_530)
def needs_so_many(e):
    """Do fewer not hold them?"""
    fewest = min((cards for cards, left in e["left_on_a_card_by_cards"].items() if left > 0), default=e["claimed_cards"])
    return e["cards_by_bytes"] >= e["claimed_cards"] and fewest >= e["claimed_cards"], {"fewest_in_nodes": fewest}


def one_layer() -> Evidence:
    shape = GPTS["megatron-530b"]
    return {"claimed_bytes": {"weights": 10**12, "layer": 10**10},
            "weights_bytes": HALF * shape.params, "layer_bytes": HALF * gpt2_block_params(shape.n_embd)}


@judges("1 TB becomes 10 GB", one_layer)
def both_round_to_it(e):
    """To a tenth."""
    return all(abs(e[f"{what}_bytes"] / claimed - 1) < 0.1 for what, claimed in e["claimed_bytes"].items())


def on_disks() -> Evidence:
    """15·10¹² parameters."""
    weights, link, card = HALF * 15 * 10**12, Rates().link, find_cluster("dgx2").machine.memory
    return {"disk_bytes": 30 * 10**12, "weights_bytes": weights, "fewest_layers_of_which_one_fits": -(-weights // int(card)),
            "minutes_of_a_pass_by_link": {"PCIe 3.0": weights / (link / 2) / 60, "PCIe 4.0": weights / link / 60}}


@judges("15T on one GPU", on_disks)
def has_room(e):
    return e["weights_bytes"] <= e["disk_bytes"]


def streamed() -> Evidence:
    """Two operations a weight and token, and two bytes a weight: from peak/link tokens on a pass computes as long as it fetches."""
    card, link, shape, tokens = find_cluster("8xA100").machine, Rates().link, OPT["OPT-30B"], 512
    layer = HALF * gpt2_block_params(shape.n_embd)
    fit = int(card.memory - 2 * layer) // kv_bytes(shape, tokens)  # one layer computes, and the next one comes
    return {"model": "OPT-30B", "card_operations_a_second": card.flops, "link_bytes_a_second": link,
            "tokens_from_which_it_is_hidden": round(card.flops / link), "tokens_of_a_request": tokens,
            "requests_that_fit": fit, "tokens_of_a_pass": {"prompts": fit * tokens, "generation": fit}}


@judges("prefetch hides the fetch", streamed)
def is_hidden(e):
    return {what: tokens >= e["tokens_from_which_it_is_hidden"] for what, tokens in e["tokens_of_a_pass"].items()}


def forty_three() -> Evidence:
    """OPT-30B in half precision on a V100, whose link is PCIe 3.0: half as fast as PCIe 4.0. As published, of 4 tokens and 10 new ones."""
    shape, link, rate, tokens = OPT["OPT-30B"], Rates().link / 2, 43, 4 + 10
    seconds = weights_read(shape) / link
    fit = int(find_cluster("dgx2").machine.memory - HALF * gpt2_block_params(shape.n_embd)) // kv_bytes(shape, tokens)
    return {"claimed_tokens_a_second": rate, "seconds_of_a_pass": seconds, "fewest_requests": ceil(rate * seconds),
            "tokens_of_a_request": tokens, "requests_that_fit": fit,
            "tokens_a_second_at_most": {"one request": 1 / seconds, "all that fit": fit / seconds}}


@judges("43 tokens a second", forty_three)
def is_reached(e):
    return {requests: most >= e["claimed_tokens_a_second"] for requests, most in e["tokens_a_second_at_most"].items()}
