"""Claims about the bytes of model states, most of which a formula settles."""

from ....formulas.peak import gpt2_peak_bytes
from ....formulas.states import CONVENTIONS, ZERO, fewest_ranks, largest_params, model_states
from ....models.gpt2 import CONFIGS
from .claim import FALSE, ONLY_IF, TRUE, Claim, Evidence, Judgement, judged
from .simulated_steps import bytes_each

GROUP = "model states"
SEVEN, TRILLION = 7 * 10**9, 10**12
MIXED = [CONVENTIONS[name] for name in ("16", "18", "20")]  # bytes for each parameter, in three ways to count
V100, A100, CARD_24 = 32 * 10**9, 80 * 10**9, 24 * 2**30


# -- 7 billion parameters in 100 GB ------------------------------------------------------------------------------------

def parts_of_seven() -> Evidence:
    claimed = {"weights": 2, "gradients": 4, "Adam": 8}
    held = bytes_each(0, 1)
    return {"claimed_bytes": 100 * 10**9, "claimed_parts": claimed, "parts_bytes": SEVEN * sum(claimed.values()),
            "optimizer_measured": held["optimizer"],
            "left_out_bytes": round((held["optimizer"] - claimed["Adam"]) * SEVEN),
            "whole_bytes": round(SEVEN * (claimed["weights"] + claimed["gradients"] + held["optimizer"])),
            "by_convention": {sum(each.sizes): SEVEN * sum(each.sizes) for each in MIXED}}


def judge_seven(e: Evidence) -> Judgement:
    if e["left_out_bytes"] == 0 and e["parts_bytes"] in e["by_convention"].values():
        return Judgement(TRUE, "{parts_bytes:gb}, and nothing is left out")
    return Judgement(FALSE, "{whole_bytes:gb}, since the parts leave out {left_out_bytes:gb} of master weights")


# -- ZeRO-3 on one GPU -------------------------------------------------------------------------------------------------

def one_gpu() -> Evidence:
    params = CONFIGS["gpt2-large"].params
    return {"params": params, "claimed_bytes": 11 * 10**9,
            **{f"stage_{stage}_bytes": model_states(params, stage, 1).total_bytes for stage in (0, 3)},
            **{f"stage_{stage}_measured": bytes_each(stage, 1)["total"] for stage in (0, 3)}}


def judge_one_gpu(e: Evidence) -> Judgement:
    saves = e["stage_3_bytes"] < e["stage_0_bytes"] and e["stage_3_measured"] < e["stage_0_measured"]
    return Judgement(TRUE if saves else FALSE, "{stage_3_bytes:gb} with ZeRO-3 on one GPU, and {stage_0_bytes:gb} "
                     "without it")


# -- two cards with 24 GB ----------------------------------------------------------------------------------------------

def two_cards() -> Evidence:
    xl = CONFIGS["gpt2-xl"]
    peaks = {stage: gpt2_peak_bytes(xl, stage, 2, micro_batch=1, seq=1024) for stage in range(4)}
    return {"card_bytes": CARD_24, "needed_beside_bytes": 2**30,  # CUDA's context, and what an allocator cannot use
            "peak_bytes_by_stage": peaks,
            "left_bytes_by_stage": {stage: CARD_24 - peak for stage, peak in peaks.items()}}


def judge_two_cards(e: Evidence) -> Judgement:
    fits = [stage for stage, left in e["left_bytes_by_stage"].items() if left >= e["needed_beside_bytes"]]
    if 3 not in fits:
        return Judgement(FALSE, "ZeRO-3 leaves {left_bytes_by_stage[3]:,} bytes of the card")
    if fits == [3]:
        return Judgement(TRUE, "ZeRO-3 alone leaves enough of the card")
    first = min(fits)
    return Judgement(ONLY_IF, f"stage {first} already needs no more than {{peak_bytes_by_stage[{first}]:gib}} at "
                     f"the peak",
                     f"“ZeRO-3” is read as “ZeRO”, because stages {', '.join(map(str, fits))} all fit")


# -- 75 %, and 8 to 16 times -------------------------------------------------------------------------------------------

def limits() -> Evidence:
    def held(stage: int, ranks: int) -> float:
        return model_states(SEVEN, stage, ranks).total_bytes / model_states(SEVEN, 0, 1).total_bytes

    sizes = (2, 4, 8, 64)
    parameter, _gradient, optimizer = ZERO.sizes
    whole = sum(ZERO.sizes)
    return {"claimed_saving": 0.75, "claimed_factors": (8, 16),
            "stage_1_saves": {n: 1 - held(1, n) for n in sizes}, "stage_2_factor": {n: 1 / held(2, n) for n in sizes},
            "stage_1_limit": optimizer / whole, "stage_2_limit": whole / parameter,
            "ranks_from_which_stage_1_rounds_to_it": next(n for n in range(1, 10**4)
                                                          if round(1 - held(1, n), 2) >= 0.75)}


def judge_limits(e: Evidence) -> Judgement:
    low, high = e["claimed_factors"]
    if e["stage_1_limit"] < e["claimed_saving"] or e["stage_2_limit"] < low:
        return Judgement(FALSE, "the limits are {stage_1_limit:.0%} and {stage_2_limit:g} times")
    always = min(e["stage_1_saves"].values()) >= e["claimed_saving"] and min(e["stage_2_factor"].values()) >= low
    if always and e["stage_2_limit"] >= high:
        return Judgement(TRUE, "{stage_1_saves[2]:.1%} and {stage_2_factor[2]:.2f} times on two ranks already")
    return Judgement(ONLY_IF, "{stage_1_saves[8]:.1%} and {stage_2_factor[8]:.2f} times on eight ranks; the limits are "
                     "{stage_1_limit:.0%} and {stage_2_limit:g} times",
                     "the ranks are very many ({ranks_from_which_stage_1_rounds_to_it} for the first figure), and the "
                     "upper one of the two factors is left out")


# -- 1.5 billion parameters: 3 GB and 24 GB ----------------------------------------------------------------------------

def large_gpt2() -> Evidence:
    params, each = 15 * 10**8, bytes_each(0, 1)
    return {"params": params, "claimed_weights_bytes": 3 * 10**9, "claimed_training_bytes": 24 * 10**9,
            "weights_measured": each["parameters"], "states_measured": each["total"],
            "weights_bytes": round(params * each["parameters"]), "training_bytes": round(params * each["total"])}


def judge_large_gpt2(e: Evidence) -> Judgement:
    right = e["weights_bytes"] == e["claimed_weights_bytes"] and e["training_bytes"] == e["claimed_training_bytes"]
    return Judgement(TRUE if right else FALSE, "{states_measured:g} bytes for each parameter, {weights_measured:g} of "
                     "them weights")


# -- a trillion parameters on 64 cards ---------------------------------------------------------------------------------

def trillion() -> Evidence:
    each = bytes_each(3, 64)["total"]
    return {"claimed_ranks": 64, "card_bytes": V100, "bytes_for_each_parameter": each,
            "needed_bytes": round(TRILLION * each),
            "fewest_ranks": fewest_ranks(TRILLION, 3, V100), "fewest_ranks_of_32_GiB": fewest_ranks(TRILLION, 3,
                                                                                                    32 * 2**30)}


def judge_trillion(e: Evidence) -> Judgement:
    return Judgement(TRUE if e["needed_bytes"] <= e["card_bytes"] else FALSE,
                     "{needed_bytes:gb} per card, and it takes {fewest_ranks} cards")


# -- 7 billion parameters on 8 cards -----------------------------------------------------------------------------------

def eighteen() -> Evidence:
    return {"claimed_bytes": 18 * 10**9,
            "bytes_by_convention": {sum(each.sizes): model_states(SEVEN, 3, 8, each).total_bytes for each in MIXED}}


def judge_eighteen(e: Evidence) -> Judgement:
    near = {each: abs(held - e["claimed_bytes"]) <= 5 * 10**8 for each, held in e["bytes_by_convention"].items()}
    counts = " or ".join(str(each) for each, holds in near.items() if holds)
    return judged(near.values(), " or ".join(f"{{bytes_by_convention[{each}]:gb}}" for each in near),
                  f"one counts {counts} bytes for each parameter")


# -- what 8 A100 can train ---------------------------------------------------------------------------------------------

def eight_a100() -> Evidence:
    return {"claimed_params": {1: 30 * 10**9, 2: 60 * 10**9, 3: 100 * 10**9}, "card_bytes": A100,
            "largest_params": {stage: largest_params(A100, stage, 8) for stage in (1, 2, 3)},
            "cards_for_the_largest": fewest_ranks(100 * 10**9, 3, A100)}


def judge_eight_a100(e: Evidence) -> Judgement:
    fits = {stage: params <= e["largest_params"][stage] for stage, params in e["claimed_params"].items()}
    settles = "at most " + ", ".join(f"{params / 1e9:.1f}" for params in e["largest_params"].values()) + " billion"
    return judged(fits.values(), settles, f"the stage is {' or '.join(str(each) for each, fit in fits.items() if fit)}")


CLAIMS = (
    Claim("7B in 100 GB", GROUP, "arithmetic",
          "A model with 7B parameters takes about 100 GB to train: 14 for the fp16 weights, 28 for fp32 gradients, 56 "
          "for Adam.",
          parts_of_seven, judge_seven,
          "Each of the three parts is right, and together they are {parts_bytes:gb}.",
          "An optimizer without fp32 master weights: then nothing of the {left_out_bytes:gb} would be missing."),
    Claim("ZeRO-3 on one GPU", GROUP, "bytes", "With ZeRO-3, GPT-2 large needs only 11 GB, even on one GPU.",
          one_gpu, judge_one_gpu,
          "The figure: the model states are {stage_0_bytes:gib}, and whoever writes GB for GiB, and leaves out what "
          "comes after the point, has what is claimed. But that is the whole state, of which one rank shares nothing.",
          "A second GPU."),
    Claim("two 24 GB cards", GROUP, "bytes", "Two cards with 24 GB train GPT-2 XL (1.5B) thanks to ZeRO-3.",
          two_cards, judge_two_cards,
          "They do train it, and without ZeRO a card has only {left_bytes_by_stage[0]:gib} left.",
          "A model so large that stages below the third one do not fit, or a longer text: what is left has to hold "
          "more activations. {needed_beside_bytes:gib} of the card were left out here, for what CUDA and its allocator "
          "need."),
    Claim("75 % and 8 to 16 times", GROUP, "arithmetic",
          "ZeRO-1 saves 75 % of the model states, and ZeRO-2 makes them 8 to 16 times smaller.", limits, judge_limits,
          "{stage_1_limit:.0%} and {stage_2_limit:g} times are the limits for endlessly many ranks.",
          "Another convention: the more bytes the optimizer has of all, the higher both limits are."),
    Claim("1.5B: 3 GB and 24 GB", GROUP, "bytes", "GPT-2 with 1.5B parameters is 3 GB in fp16, and needs 24 GB to be "
          "trained.",
          large_gpt2, judge_large_gpt2,
          "All of it, for model states in mixed precision with Adam, which is how the ZeRO paper says it.",
          "Activations. They come on top, and with them the whole claim is too low.",
          "Rajbhandari et al. 2020, arXiv 1910.02054, section 1"),
    Claim("1T on 64 V100", GROUP, "arithmetic",
          "With ZeRO-3, 64 V100 with 32 GB train a trillion parameters, since each holds only 0.25 bytes per "
          "parameter.",
          trillion, judge_trillion,
          "{bytes_for_each_parameter:g} bytes per parameter and card is right to the digit. It just has to be "
          "multiplied.",
          "{fewest_ranks} cards, where not one byte is left for activations, or the optimizer on the host."),
    Claim("7B on 8 cards: 18 GB", GROUP, "arithmetic", "A model with 7B parameters takes about 18 GB per card on 8 "
          "cards under ZeRO-3.",
          eighteen, judge_eighteen,
          "An eighth of the model states is what a card holds, and all three counts are in use.",
          "The count of bytes for each parameter. Say which one you mean, and the claim is exact."),
    Claim("8 A100: 30B, 60B, 100B", GROUP, "arithmetic",
          "Eight A100 with 80 GB train 30B parameters with ZeRO-1, 60B with ZeRO-2 and more than 100B with ZeRO-3.",
          eight_a100, judge_eight_a100,
          "The order is right, and so is the idea that each stage fits more.",
          "Cards: at {cards_for_the_largest} of them the last of the three models fits, without activations. Or "
          "offload, which needs the host's memory in place of the cards'."),
)

