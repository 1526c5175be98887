"""Claims about pipelines, judged by the package's own schedules, and about tensor parallelism, judged by formulas."""

import torch
from torch import Tensor

from ....formulas.activations import tensor_parallel_elements
from ....formulas.transformer import gpt2_block_params
from ....formulas.volumes import passes
from ....parallel.pipeline import Timing, gpipe, one_f_one_b, plan, zb_h1
from ....parallel.pipeline import simulate as run_schedule
from .claim import FALSE, ONLY_IF, TRUE, Claim, Evidence, Judgement, judged

GROUP = "parallelism"
RANKS, MICRO_BATCHES = 4, 8
SCHEDULES = {"GPipe": gpipe, "1F1B": one_f_one_b, "ZB-H1": zb_h1}


def timing(name: str, ranks: int = RANKS, micro_batches: int = MICRO_BATCHES) -> Timing:
    """A schedule on the clock. A forward takes 1 unit of time, a backward 2, and each of its two parts 1."""
    return run_schedule(plan(name, SCHEDULES[name], ranks, micro_batches))


# -- zero bubble -------------------------------------------------------------------------------------------------------

def zero_bubble() -> Evidence:
    times = {name: timing(name) for name in ("1F1B", "ZB-H1")}
    return {"ranks": RANKS, "micro_batches": MICRO_BATCHES,
            "idle_of_each_rank": {name: int(each.idle(0)) for name, each in times.items()},
            "share_of_the_time": {name: float(each.bubble) for name, each in times.items()},
            "part_that_is_left": float(times["ZB-H1"].idle(0) / times["1F1B"].idle(0)),
            "idle_inside_the_last_ranks_own_span": int(times["ZB-H1"].idle_inside(RANKS - 1))}


def judge_zero(e: Evidence) -> Judgement:
    settles = "{idle_of_each_rank[ZB-H1]} units of time idle on each rank, after {idle_of_each_rank[1F1B]} in 1F1B"
    return Judgement(FALSE if e["idle_of_each_rank"]["ZB-H1"] else TRUE, settles)


# -- 1F1B against GPipe ------------------------------------------------------------------------------------------------

def one_forward() -> Evidence:
    pairs = [(ranks, micro_batches) for ranks in (2, 4, 8) for micro_batches in (ranks, 4 * ranks)]
    times = {name: [timing(name, *pair) for pair in pairs] for name in ("GPipe", "1F1B")}
    return {"ranks_and_micro_batches": [f"{p} × {m}" for p, m in pairs],
            "time": {name: [int(each.makespan) for each in of_name] for name, of_name in times.items()},
            "in_flight": {name: [each.in_flight(0) for each in of_name] for name, of_name in times.items()},
            "time_4_x_16": {name: int(of_name[3].makespan) for name, of_name in times.items()},
            "in_flight_4_x_16": {name: of_name[3].in_flight(0) for name, of_name in times.items()}}


def judge_one_forward(e: Evidence) -> Judgement:
    faster = [one < other for one, other in zip(e["time"]["1F1B"], e["time"]["GPipe"], strict=True)]
    return judged(faster, "{time_4_x_16[GPipe]} and {time_4_x_16[1F1B]} units of time, with "
                  "{in_flight_4_x_16[GPipe]} and {in_flight_4_x_16[1F1B]} micro-batches in flight",
                  "ranks and micro-batches are right")


# -- the axis with the most traffic ------------------------------------------------------------------------------------

def elements_a_layer(width: int, tokens: int) -> tuple[int, int]:
    """(tensor parallelism, ZeRO-3): elements that a layer's collectives carry in a step with one micro-batch.

    On as many ranks a rank sends the same share of both.
    """
    return tensor_parallel_elements(1, tokens, width, recompute=False), passes(3).total * gpt2_block_params(width)


def most_traffic() -> Evidence:
    widths, tokens = (768, 8192), (1024, 131072)

    def crossing(width: int) -> int:
        per_token, fixed = elements_a_layer(width, 1)
        return fixed // per_token + 1

    return {"tokens_from_which_it_is_more": {width: crossing(width) for width in widths},
            "times_ZeRO_3": {f"width {width}, {count} tokens": one / other for width in widths for count in tokens
                             for one, other in [elements_a_layer(width, count)]}}


def judge_most(e: Evidence) -> Judgement:
    settles = "more than ZeRO-3 from " + ", ".join(f"{tokens:,} tokens on at width {width:,}"
                                                   for width, tokens in e["tokens_from_which_it_is_more"].items())
    return judged([times > 1 for times in e["times_ZeRO_3"].values()], settles,
                  "a micro-batch has more tokens than that")


# -- the loss under tensor parallelism ---------------------------------------------------------------------------------

def vocab_parallel_losses(logits_TV: Tensor, target_T: Tensor, ranks: int, smoothing: float = 0.0) -> list[float]:
    """The mean loss on each rank, where each has a slice of the vocabulary, by Megatron-LM's formula.

    The sum of exponentials and the target's logit are added up over the ranks. Label smoothing is not: it takes size
    and mean of the rank's own slice. Read in megatron/core/tensor_parallel/cross_entropy.py (commit 00611e6).
    """
    slices = logits_TV.chunk(ranks, dim=1)
    log_sum_T = torch.stack([part.exp().sum(1) for part in slices]).sum(0).log()
    whole_T = log_sum_T - logits_TV.gather(1, target_T[:, None])[:, 0]
    losses = []
    for part in slices:
        share = smoothing * part.shape[1] / (part.shape[1] - 1)
        losses.append(((1 - share) * whole_T - share * (part - log_sum_T[:, None]).mean(1)).mean().item())
    return losses


def loss_under_tensor_parallelism() -> Evidence:
    draw = torch.Generator().manual_seed(0)
    logits_TV = torch.randn(16, 32, generator=draw, dtype=torch.float64)
    target_T = torch.randint(32, (16,), generator=draw)

    def furthest(smoothing: float) -> dict[int, float]:
        right = vocab_parallel_losses(logits_TV, target_T, 1, smoothing)[0]
        return {ranks: max(abs(loss - right) for loss in vocab_parallel_losses(logits_TV, target_T, ranks, smoothing))
                for ranks in (2, 4)}

    return {"furthest_from_one_rank": furthest(0.0), "furthest_with_label_smoothing": furthest(0.1),
            "losses_on_4_ranks_with_smoothing_of_a_tenth": vocab_parallel_losses(logits_TV, target_T, 4, 0.1)}


def judge_loss(e: Evidence) -> Judgement:
    plain, smoothed = max(e["furthest_from_one_rank"].values()), max(e["furthest_with_label_smoothing"].values())
    settles = ("off by {furthest_with_label_smoothing[4]:.3f} on one of four ranks with label smoothing, and by no "
               "more than rounding without")
    if not plain <= 1e-6:
        return Judgement(FALSE, "off by {furthest_from_one_rank[4]:.3g} on four ranks")
    return Judgement(TRUE, settles) if smoothed <= 1e-6 else Judgement(ONLY_IF, settles, "there is no label smoothing")


CLAIMS = (
    Claim("zero bubble", GROUP, "time", "Zero-bubble pipelines have no bubble.", zero_bubble, judge_zero,
          "By splitting the backward, {part_that_is_left:.0%} of the idle time is left. And there are such schedules "
          "without any idle time between a rank's own first and last action, which is what the name counts.",
          "A count of the time between a rank's own begin and end, in place of the whole batch's; or an optimizer that "
          "need not wait for the last micro-batch.", "Qi et al. 2023, arXiv 2401.10241"),
    Claim("1F1B is faster", GROUP, "time", "1F1B is faster than GPipe.", one_forward, judge_one_forward,
          "It is better: it holds the activations of fewer micro-batches, and so it has room for more of them, which "
          "makes the bubble smaller.",
          "A memory limit. Where GPipe has to compute activations again and 1F1B has not, 1F1B is faster."),
    Claim("TP moves the most", GROUP, "traffic", "Tensor parallelism is the axis with the most traffic.", most_traffic,
          judge_most,
          "Its collectives stand in the way of computing, and grow with the tokens, so it needs the fastest link. "
          "ZeRO-3's can be hidden.",
          "Tokens in a micro-batch, and the width. The parameters of a layer grow with the square of the width, "
          "activations only with it."),
    Claim("TP leaves the loss", GROUP, "arithmetic", "Tensor parallelism does not change the loss.",
          loss_under_tensor_parallelism, judge_loss,
          "The sums over the vocabulary are added up over the ranks, so the loss is that of one rank, but for "
          "rounding.",
          "A formula that adds up the smoothing's sum as well, in place of taking it over a rank's own slice.",
          "Megatron-LM, core/tensor_parallel/cross_entropy.py, commit 00611e6"),
)
