"""Claims about what a step or an initialisation holds beside the model states: each is measured on a small GPT-2."""

from contextlib import nullcontext
from dataclasses import replace
from math import isqrt

from ....activations import place_checkpoints
from ....activations.arena import Allocation, replay, smallest_arena
from ....comm.simulated import SimulatedComm
from ....init.deferred import deferred_init
from ....measure.ledger import Ledger
from ....models.gpt2 import CONFIGS, GPT, GPTConfig
from ....zero.shard import shard
from ..activations import activation_trial as trial
from .claim import FALSE, ONLY_IF, TRUE, Claim, Evidence, Judgement, judged
from .simulated_steps import simulated_step

GROUP = "a step's memory"
FP32 = 4  # bytes
EIGHT = GPTConfig(8, 4, 128, block_size=64, vocab_size=512)


# -- memory falls to 1/N -----------------------------------------------------------------------------------------------

def one_nth() -> Evidence:
    ranks = (1, 2, 4, 8)
    steps = {n: simulated_step(3, n) for n in ranks}
    states, peak = ({n: held[kind] for n, held in steps.items()} for kind in ("total_bytes", "peak_bytes"))
    return {"states_bytes": states, "peak_bytes": peak, "ranks": ranks[-1],
            "states_are_a_part_of": states[1] / states[ranks[-1]], "peak_is_a_part_of": peak[1] / peak[ranks[-1]]}


def judge_one_nth(e: Evidence) -> Judgement:
    def falls(factor: float) -> bool:
        return factor > 0.95 * e["ranks"]

    settles = "on {ranks} ranks the states are 1/{states_are_a_part_of:.0f}, and the peak 1/{peak_is_a_part_of:.1f}"
    if falls(e["peak_is_a_part_of"]):
        return Judgement(TRUE, settles)
    return Judgement(ONLY_IF, settles, "“memory” means model "
                     "states") if falls(e["states_are_a_part_of"]) else Judgement(FALSE, settles)


# -- the meta device saves 90 % ----------------------------------------------------------------------------------------

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


def judge_meta_device(e: Evidence) -> Judgement:
    enough = {name: share >= e["claimed_saving"] for name, share in e["saved_by_layers_and_ranks"].items()}
    names = ", ".join(name for name, holds in enough.items() if holds)
    return judged(enough.values(), "from {least:.0%} to {most:.0%}, by layers and ranks",
                  f"there are layers and ranks enough; here with {names}")


# -- ZeRO-3 relies on gradient checkpointing ---------------------------------------------------------------------------

def relies() -> Evidence:
    def saved(what: str, before: tuple[int, bool], after: tuple[int, bool]) -> int:
        """Of these bytes, between two ways to train: (stage, with checkpoints)."""
        one, other = (simulated_step(stage, 4, recompute=again)[f"{what}_bytes"] for stage, again in (before, after))
        return one - other

    return {"states_saved_without_checkpoints": saved("total", (0, False), (3, False)),
            "states_saved_with_checkpoints": saved("total", (0, True), (3, True)),
            "peak_saved_by_checkpoints_without_ZeRO": saved("peak", (0, False), (0, True)),
            "peak_saved_by_checkpoints_under_ZeRO_3": saved("peak", (3, False), (3, True))}


def judge_relies(e: Evidence) -> Judgement:
    alone, together = e["states_saved_without_checkpoints"], e["states_saved_with_checkpoints"]
    settles = ("{states_saved_without_checkpoints:,} bytes of model states saved without checkpoints, "
               "{states_saved_with_checkpoints:,} with")
    return Judgement(TRUE if alone < together / 2 else FALSE, settles)


# -- constant-size buffers cure fragmentation --------------------------------------------------------------------------

def constant_buffers() -> Evidence:
    events = trial.recorded("full", EIGHT, samples=4).events
    needed, size = replay(events).peak, 2**20
    buffer = Allocation(0, size, long=True)
    with_buffer = [buffer, *events, Allocation(0, 0)]
    waste = {"as it is": smallest_arena(events) / needed - 1,
             "with a buffer of constant size": (smallest_arena(with_buffer) - size) / needed - 1,
             "with two ends": smallest_arena(events, apart=True) / needed - 1}
    return {"bytes_in_use_at_most": needed, "waste": waste, "fused_buffer_of_3B_bytes": FP32 * 3 * 10**9}


def judge_constant_buffers(e: Evidence) -> Judgement:
    before, after = e["waste"]["as it is"], e["waste"]["with a buffer of constant size"]
    return Judgement(TRUE if after < before / 2 else FALSE,
                     "{waste[as it is]:.1%} wasted as it is, {waste[with a buffer of constant size]:.1%} with the "
                     "buffer, {waste[with two ends]:.1%} where long-lived blocks lie apart")


# -- √L checkpoints are optimal ----------------------------------------------------------------------------------------

def root_of_layers() -> Evidence:
    config = trial.SHAPE
    x_bytes = trial.SAMPLES * config.block_size * config.n_embd * FP32
    # the next block's input is counted among its checkpoints
    kept = trial.through_blocks(trial.model_of()).each[1] - x_bytes
    depths = (9, 16, 25, 36)

    def best(each: int) -> dict[int, int]:
        return {depth: len(place_checkpoints([x_bytes] * depth, [each] * depth).starts) for depth in depths}

    return {"kept_by_a_block_in_inputs": kept / x_bytes, "blocks": 16,
            "root": {depth: isqrt(depth) for depth in depths},
            "best_for_GPT_2": best(kept), "best_if_a_block_keeps_its_input": best(x_bytes)}


def judge_root(e: Evidence) -> Judgement:
    settles = "for {blocks} blocks of GPT-2 {best_for_GPT_2[16]} checkpoints are best, and not {root[16]}"
    if e["best_for_GPT_2"] == e["root"]:
        return Judgement(TRUE, "{best_for_GPT_2[16]} checkpoints for {blocks} blocks")
    if e["best_if_a_block_keeps_its_input"] != e["root"]:
        return Judgement(FALSE, settles)
    return Judgement(ONLY_IF, settles, "a block keeps no more than its input; a block of GPT-2 keeps "
                     "{kept_by_a_block_in_inputs:.1f} times as much")


CLAIMS = (
    Claim("memory falls to 1/N", GROUP, "bytes", "Under ZeRO-3 the memory per card falls to 1/N.", one_nth,
          judge_one_nth,
          "Model states do: on {ranks} ranks they are 1/{states_are_a_part_of:.0f}.",
          "Activations that shrink as well: checkpoints, or a batch that stays the same for all ranks together."),
    Claim("meta device: 90 %", GROUP, "bytes", "Building a model on the meta device saves 90 % of the memory at "
          "initialisation.",
          meta_device, judge_meta_device,
          "Very much can be saved, up to {most:.0%} here. What remains is a rank's slice, and the largest unit while "
          "it is filled.",
          "The number of ranks, and how much of the model is in its largest unit."),
    Claim("ZeRO-3 needs checkpoints", GROUP, "bytes", "ZeRO-3 relies on gradient checkpointing.", relies, judge_relies,
          "They are used together, because when the states are small, activations are what is left: checkpoints save "
          "{peak_saved_by_checkpoints_under_ZeRO_3:,} bytes of the peak under ZeRO-3.",
          "A stage that could not train without checkpoints. Then the saving without them would be zero."),
    Claim("constant buffers", GROUP, "bytes", "ZeRO's constant-size buffers cure memory fragmentation.",
          constant_buffers, judge_constant_buffers,
          "Both are in the same section of the ZeRO paper. Constant buffers cure something else: a fused fp32 buffer "
          "grows with the model, to {fused_buffer_of_3B_bytes:gb} in the paper's example. Fragmentation is cured by "
          "M_D, which puts long-lived blocks apart.",
          "A buffer that the long-lived tensors are copied into. But then it is M_D.",
          "Rajbhandari et al. 2020, arXiv 1910.02054, section 6"),
    Claim("√L checkpoints", GROUP, "bytes", "For a model of L layers, √L checkpoints are optimal.", root_of_layers,
          judge_root,
          "It is the optimum of Chen et al. 2016, whose layers keep as much as they take in.",
          "What a block keeps. The more it is, the more checkpoints are worth their memory."),
)
