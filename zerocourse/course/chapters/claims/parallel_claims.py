"""Claims about pipelines, judged by the package's own schedules, and about tensor parallelism, judged by formulas."""

import torch
from torch import Tensor

from ....formulas.activations import tensor_parallel_elements
from ....formulas.transformer import gpt2_block_params
from ....formulas.volumes import passes
from ....parallel.pipeline import Timing, gpipe, one_f_one_b, plan, zb_h1
from ....parallel.pipeline import simulate as run_schedule
from .claim import Evidence, judges

RANKS, MICRO_BATCHES = 4, 8
SCHEDULES = {"GPipe": gpipe, "1F1B": one_f_one_b, "ZB-H1": zb_h1}


def timing(name: str, ranks: int = RANKS, micro_batches: int = MICRO_BATCHES) -> Timing:
    """A schedule on the clock. A forward takes 1 unit of time, a backward 2, and each of its two parts 1."""
    return run_schedule(plan(name, SCHEDULES[name], ranks, micro_batches))


def zero_bubble() -> Evidence:
    times = {name: timing(name) for name in ("1F1B", "ZB-H1")}
    return {"ranks": RANKS, "micro_batches": MICRO_BATCHES,
            "idle_of_each_rank": {name: int(each.idle(0)) for name, each in times.items()},
            "share_of_the_time": {name: float(each.bubble) for name, each in times.items()},
            "part_that_is_left": float(times["ZB-H1"].idle(0) / times["1F1B"].idle(0)),
            "idle_inside_the_last_ranks_own_span": int(times["ZB-H1"].idle_inside(RANKS - 1))}


@judges("zero bubble", zero_bubble)
def never_idle(e):
    return not e["idle_of_each_rank"]["ZB-H1"]


def one_forward() -> Evidence:
    pairs = [(ranks, micro_batches) for ranks in (2, 4, 8) for micro_batches in (ranks, 4 * ranks)]
    times = {name: [timing(name, *pair) for pair in pairs] for name in ("GPipe", "1F1B")}
    return {"ranks_and_micro_batches": [f"{p} × {m}" for p, m in pairs],
            "time": {name: [int(each.makespan) for each in of_name] for name, of_name in times.items()},
            "in_flight": {name: [each.in_flight(0) for each in of_name] for name, of_name in times.items()},
            "time_4_x_16": {name: int(of_name[3].makespan) for name, of_name in times.items()},
            "in_flight_4_x_16": {name: of_name[3].in_flight(0) for name, of_name in times.items()}}


@judges("1F1B is faster", one_forward)
def faster(e):
    return [one < other for one, other in zip(e["time"]["1F1B"], e["time"]["GPipe"], strict=True)]


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


@judges("TP moves the most", most_traffic)
def more_than_zero_3(e):
    said = (f"{tokens:,} tokens on at width {width:,}" for width, tokens in e["tokens_from_which_it_is_more"].items())
    return [times > 1 for times in e["times_ZeRO_3"].values()], {"tokens": ", ".join(said)}


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


@judges("TP leaves the loss", loss_under_tensor_parallelism)
def unchanged(e):
    """Without label smoothing, and with it."""
    plain, smoothed = (max(e[f"furthest_{way}"].values()) <= 1e-6 for way in ("from_one_rank", "with_label_smoothing"))
    return [plain, plain and smoothed]
