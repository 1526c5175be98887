"""Claims that are settled by counting: about number formats, mixtures of experts, and models that write."""

from math import isinf, log2

import torch
from torch import nn

from ....formulas.models.llama_shape import LlamaShape
from ....formulas.models.mixture_shape import MixtureShape
from ....inference import SmallLinear, weights_bytes
from ....parallel.experts import Routing, balance_loss
from .claim import Evidence, judges

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
SCALE = 2.0**16  # at which DeepSpeed's dynamic loss scale begins
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
    return {"furthest_from_the_model": furthest, "accepted": accepted}


@judges("guessing changes nothing", guesses)
def same_chances(e):
    return [apart < 1e-12 for apart in e["furthest_from_the_model"].values()]


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
