"""The verdict on a tour: what each number should be by formula, and whether it is. Not concerned with measuring."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...formulas.peak import gpt2_peak_bytes
from ...formulas.states import FP32, ModelStates, model_states
from ...formulas.volumes import passes, sent_elements
from .tour import STAGE, TourSettings

KINDS = ("parameters_bytes", "gradients_bytes", "optimizer_bytes")
LOOSE_BYTES = 64 * 1024  # tokens, losses and the like that a step may leave behind
PEAK_TOLERANCE = 0.1  # the formula for the peak leaves out what an operation holds for a moment
# Relative, because ranks and one process add up in another order; and a GPU in another one each time.
LOSS_TOLERANCE = {"cpu": 1e-5, "cuda": 1e-4}


@dataclass(frozen=True)
class Check:
    """One comparison: what was compared, and whether it holds."""

    mode: str
    what: str
    ok: bool
    detail: str


def expected(settings: TourSettings, mode: str) -> dict[str, int]:
    """By formula and per rank: bytes held by kind and in all, the peak, elements and bytes sent in a step."""
    stage, ranks = (STAGE[mode], settings.ranks) if mode in STAGE else (0, 1)
    params = settings.model.params
    states = model_states(params, stage, ranks, FP32)
    sent = sent_elements(params, stage, ranks)
    # The one process adds up the ranks' micro-batches, so that it has all gradients while it computes the last one.
    peak = gpt2_peak_bytes(settings.model, stage, ranks, settings.micro_batch, settings.model.block_size, FP32,
                           accumulated=mode not in STAGE and settings.ranks > 1)
    return {kind: getattr(states, kind) for kind in (*KINDS, "total_bytes")} | {
        "peak_bytes": peak, "sent_elements": sent, "sent_bytes": 4 * sent}


def checks(settings: TourSettings, modes: dict[str, list[dict]]) -> Iterator[Check]:
    """Compare every rank of every mode with the formulas, and the losses of all modes with each other."""
    for mode, ranks in modes.items():
        for rank, got in enumerate(ranks):
            yield from rank_checks(settings, mode, rank, got)
        times = passes(STAGE[mode]).total if mode in STAGE else 0
        sent, total = sum(got["sent_elements"] for got in ranks), times * (settings.ranks - 1) * settings.model.params
        yield Check(mode, "sent", sent == total, f"the ranks sent {sent:,} elements in all, the formula says {total:,}")
    for mode in modes.keys() - {"single"}:
        device = modes[mode][0]["device"]
        furthest = furthest_apart(mean_losses(modes[mode]), mean_losses(modes["single"]))
        yield Check(mode, "losses", furthest <= LOSS_TOLERANCE[device],
                    f"losses are up to {furthest:.1e} (relative) from one process's")
        if device != "cpu":
            continue
        # Number by number: two lists are equal wherever they hold one and the same NaN.
        same = all(here == there for got, other in zip(modes[mode], modes["ddp"], strict=True)
                   for here, there in zip(got["losses"], other["losses"], strict=True))
        yield Check(mode, "losses, bit by bit", same, "losses are not to the last bit those of data parallel")


def rank_checks(settings: TourSettings, mode: str, rank: int, got: dict) -> Iterator[Check]:
    """The checks of what one rank holds."""
    padded = sum(length for length, _ in got["flat_buffers"]) or settings.model.params
    own = sum(own for _, own in got["flat_buffers"]) or settings.model.params
    stage, ranks = (STAGE[mode], settings.ranks) if mode in STAGE else (0, 1)
    yield from held(mode, rank, got, model_states(padded, stage, ranks, FP32, shard=own))
    padding = padded - settings.model.params
    yield Check(mode, "padding", padding < max(1, ranks * len(got["flat_buffers"])),
                f"{padding:,} elements of padding in {len(got['flat_buffers'])} flat buffers: it must be less than "
                "one element per rank and buffer")
    yield Check(mode, "buffers", got["buffers_bytes"] == 0,
                f"rank {rank} holds {got['buffers_bytes']:,} bytes of buffers, and the model has none")
    yield Check(mode, "the rest", got["rest_bytes"] <= LOOSE_BYTES,
                f"after the step rank {rank} still holds {got['rest_bytes']:,} bytes of something else")
    want = expected(settings, mode)["peak_bytes"]
    yield Check(mode, "peak", abs(got["peak_bytes"] / want - 1) <= PEAK_TOLERANCE,
                f"rank {rank} peaked at {got['peak_bytes']:,} bytes, the formula says about {want:,}")


def held(mode: str, rank: int, got: dict, states: ModelStates) -> Iterator[Check]:
    """A rank must hold exactly as many bytes of each kind as the formula says."""
    for kind in KINDS:
        want = getattr(states, kind)
        yield Check(mode, kind, got[kind] == want, f"rank {rank} holds {got[kind]:,} bytes, the formula says {want:,}")


def furthest_apart(losses: Sequence[float], others: Sequence[float]) -> float:
    """The largest relative difference of two series of losses; infinite where a number is not finite.

    A maximum alone would not do: in Python max(0.1, nan) is 0.1.
    """
    gaps = [0.0 if here == there and math.isfinite(here) else abs(here / there - 1) if there else math.inf
            for here, there in zip(losses, others, strict=True)]
    return max(math.inf if math.isnan(gap) else gap for gap in gaps)


def mean_losses(ranks: list[dict]) -> list[float]:
    """The loss of each step over the ranks' batches."""
    return [sum(losses) / len(ranks) for losses in zip(*(got["losses"] for got in ranks), strict=True)]
