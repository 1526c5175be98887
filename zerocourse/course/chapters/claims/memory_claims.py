"""Claims about the bytes of model states, most of which a formula settles."""

from ....formulas.peak import gpt2_peak_bytes
from ....formulas.states import CONVENTIONS, ZERO, fewest_ranks, largest_params, model_states
from ....models.gpt2 import CONFIGS
from .claim import Evidence, judges
from .simulated_steps import bytes_each

SEVEN, TRILLION = 7 * 10**9, 10**12
MIXED = [CONVENTIONS[name] for name in ("16", "18", "20")]  # bytes for each parameter, in three ways to count
V100, A100, CARD_24 = 32 * 10**9, 80 * 10**9, 24 * 2**30


def parts_of_seven() -> Evidence:
    claimed = {"weights": 2, "gradients": 4, "Adam": 8}
    held = bytes_each(0, 1)
    return {"claimed_bytes": 100 * 10**9, "claimed_parts": claimed, "parts_bytes": SEVEN * sum(claimed.values()),
            "optimizer_measured": held["optimizer"],
            "left_out_bytes": round((held["optimizer"] - claimed["Adam"]) * SEVEN),
            "whole_bytes": round(SEVEN * (claimed["weights"] + claimed["gradients"] + held["optimizer"])),
            "by_convention": {sum(each.sizes): SEVEN * sum(each.sizes) for each in MIXED}}


@judges("7B in 100 GB", parts_of_seven)
def nothing_is_left_out(e):
    return e["left_out_bytes"] == 0 and e["parts_bytes"] in e["by_convention"].values()


def one_gpu() -> Evidence:
    params = CONFIGS["gpt2-large"].params
    return {"params": params, "claimed_bytes": 11 * 10**9,
            **{f"stage_{stage}_bytes": model_states(params, stage, 1).total_bytes for stage in (0, 3)},
            **{f"stage_{stage}_measured": bytes_each(stage, 1)["total"] for stage in (0, 3)}}


@judges("ZeRO-3 on one GPU", one_gpu)
def stage_3_saves(e):
    return all(e[f"stage_3_{count}"] < e[f"stage_0_{count}"] for count in ("bytes", "measured"))


def two_cards() -> Evidence:
    xl = CONFIGS["gpt2-xl"]
    peaks = {stage: gpt2_peak_bytes(xl, stage, 2, micro_batch=1, seq=1024) for stage in range(4)}
    return {"samples_and_tokens": (1, 1024), "checkpoints": "none", "card_bytes": CARD_24,
            "needed_beside_bytes": 2**30,  # CUDA's context, and what an allocator cannot use
            "peak_bytes_by_stage": peaks,
            "left_bytes_by_stage": {stage: CARD_24 - peak for stage, peak in peaks.items()}}


@judges("two 24 GB cards", two_cards)
def stage_3_alone_fits(e):
    fits = [stage for stage, left in e["left_bytes_by_stage"].items() if left >= e["needed_beside_bytes"]]
    first = min(fits, default=3)
    return [3 in fits, fits == [3]], {"stages": fits, "first": first, "needs": e["peak_bytes_by_stage"][first]}


def limits() -> Evidence:
    """75 %, and 8 to 16 times."""
    def held(stage: int, ranks: int) -> float:
        return model_states(SEVEN, stage, ranks).total_bytes / model_states(SEVEN, 0, 1).total_bytes

    sizes, whole = (2, 4, 8, 64), sum(ZERO.sizes)
    parameter, _gradient, optimizer = ZERO.sizes
    return {"claimed_saving": 0.75, "claimed_factors": (8, 16),
            "stage_1_saves": {n: 1 - held(1, n) for n in sizes}, "stage_2_factor": {n: 1 / held(2, n) for n in sizes},
            "stage_1_limit": optimizer / whole, "stage_2_limit": whole / parameter,
            "ranks_from_which_stage_1_rounds_to_it": next(n for n in range(1, 10**4) if round(1 - held(1, n), 2) >= 0.75)}


@judges("75 % and 8 to 16 times", limits)
def reached(e):
    """Ever, and always."""
    saving, (low, high) = e["claimed_saving"], e["claimed_factors"]
    return [e["stage_1_limit"] >= saving and e["stage_2_limit"] >= low,
            min(e["stage_1_saves"].values()) >= saving and min(e["stage_2_factor"].values()) >= low
            and e["stage_2_limit"] >= high]


def large_gpt2() -> Evidence:
    params, each = 15 * 10**8, bytes_each(0, 1)
    return {"params": params, "claimed_weights_bytes": 3 * 10**9, "claimed_training_bytes": 24 * 10**9,
            "weights_measured": each["parameters"], "states_measured": each["total"],
            "weights_bytes": round(params * each["parameters"]), "training_bytes": round(params * each["total"])}


@judges("1.5B: 3 GB and 24 GB", large_gpt2)
def both_are_right(e):
    return all(e[f"{what}_bytes"] == e[f"claimed_{what}_bytes"] for what in ("weights", "training"))


def trillion() -> Evidence:
    each = bytes_each(3, 64)["total"]
    return {"claimed_ranks": 64, "card_bytes": V100, "bytes_for_each_parameter": each, "needed_bytes": round(TRILLION * each),
            "fewest_ranks": fewest_ranks(TRILLION, 3, V100), "fewest_ranks_of_32_GiB": fewest_ranks(TRILLION, 3, 32 * 2**30)}


@judges("1T on 64 V100", trillion)
def it_fits(e):
    return e["needed_bytes"] <= e["card_bytes"]


def eighteen() -> Evidence:
    """7 billion parameters on 8 cards."""
    return {"claimed_bytes": 18 * 10**9,
            "bytes_by_convention": {sum(each.sizes): model_states(SEVEN, 3, 8, each).total_bytes for each in MIXED}}


@judges("7B on 8 cards: 18 GB", eighteen)
def near(e):
    return {each: abs(held - e["claimed_bytes"]) <= 5 * 10**8 for each, held in e["bytes_by_convention"].items()}


def eight_a100() -> Evidence:
    return {"claimed_params": {1: 30 * 10**9, 2: 60 * 10**9, 3: 100 * 10**9}, "card_bytes": A100,
            "largest_params": {stage: largest_params(A100, stage, 8) for stage in (1, 2, 3)},
            "cards_for_the_largest": fewest_ranks(100 * 10**9, 3, A100)}


@judges("8 A100: 30B, 60B, 100B", eight_a100)
def stages_fit(e):
    largest = e["largest_params"]
    return ({stage: params <= largest[stage] for stage, params in e["claimed_params"].items()},
            {"billions": ", ".join(f"{params / 1e9:.1f}" for params in largest.values())})
