"""Claims about what a step or an initialisation holds beside the model states: each is measured on a small GPT-2."""

from contextlib import nullcontext
from dataclasses import replace
from math import isqrt

from ....activations.spacing import peak_with
from ....comm.simulated import SimulatedComm
from ....init.deferred import deferred_init
from ....measure.ledger import Ledger
from ....models.gpt2 import CONFIGS, GPT, GPTConfig
from ....zero.extras import shard
from ..activations import activation_trial as trial
from .claim import Evidence, judges
from .simulated_steps import simulated_step

FP32 = 4  # bytes
EIGHT = GPTConfig(8, 4, 128, block_size=64, vocab_size=512)


def one_nth() -> Evidence:
    ranks = (1, 2, 4, 8)
    steps = {n: simulated_step(3, n) for n in ranks}
    states, peak = ({n: held[kind] for n, held in steps.items()} for kind in ("total_bytes", "peak_bytes"))
    return {"states_bytes": states, "peak_bytes": peak, "ranks": ranks[-1],
            "states_are_a_part_of": states[1] / states[ranks[-1]], "peak_is_a_part_of": peak[1] / peak[ranks[-1]]}


@judges("memory falls to 1/N", one_nth)
def falls(e):
    return [e[f"{what}_a_part_of"] > 0.95 * e["ranks"] for what in ("states_are", "peak_is")]


def init_peak(config: GPTConfig, ranks: int, deferred: bool) -> int:
    """The most bytes that rank 0 holds while it builds and shards the model at stage 3."""
    with Ledger() as ledger:
        with deferred_init() if deferred else nullcontext():
            model = GPT(config)
        shard(model, None, 3, comm=SimulatedComm(0, ranks))
        return ledger.peak


def meta_device() -> Evidence:
    saved = {}
    for layers in (4, 12, 48):
        config = replace(CONFIGS["gpt2-mini"], n_layer=layers, n_embd=64)
        plain = init_peak(config, 2, deferred=False)
        saved |= {(layers, n): 1 - init_peak(config, n, deferred=True) / plain for n in (2, 8, 64)}
    return {"claimed_saving": 0.9, "saved_by_layers_and_ranks": {f"{layers} on {n}": share for (layers, n),
                                                                 share in saved.items()},
            "least": min(saved.values()), "most": max(saved.values())}


@judges("meta device: 90 %", meta_device)
def enough(e):
    return {name: share >= e["claimed_saving"] for name, share in e["saved_by_layers_and_ranks"].items()}


def root_of_layers() -> Evidence:
    """Segments of equal length, which the claim is about."""
    x_bytes = trial.SAMPLES * trial.SHAPE.block_size * trial.SHAPE.n_embd * FP32
    # the next block's input is counted among its checkpoints
    kept = trial.through_blocks(trial.model_of()).each[1] - x_bytes

    def best(depth: int, each: int) -> int:
        return len(min((range(0, depth, depth // number) for number in range(1, depth + 1) if depth % number == 0),
                       key=lambda starts: peak_with(starts, [x_bytes] * depth, [each] * depth)))

    depths = (9, 16, 25, 36)
    return {"kept_by_a_block_in_inputs": kept / x_bytes, "blocks": 16,
            "root": {depth: isqrt(depth) for depth in depths},
            "best_for_GPT_2": {depth: best(depth, kept) for depth in depths},
            "best_if_a_block_keeps_its_input": {depth: best(depth, 0) for depth in depths}}


@judges("√L checkpoints", root_of_layers)
def root_is_best(e):
    """For blocks that keep their input, and for GPT-2's."""
    return [e[best] == e["root"] for best in ("best_if_a_block_keeps_its_input", "best_for_GPT_2")]
