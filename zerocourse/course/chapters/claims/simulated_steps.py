"""Steps of a small GPT-2 in half precision on simulated ranks, each run once: what several claims measure."""

from functools import cache

from ....simulation import SimulatedJob, simulate

MODEL = "gpt2-mini"  # small, since bytes for each parameter do not depend on the model
SAMPLES = 4  # of each rank, in a micro-batch
HALF = 2  # bytes


@cache
def simulated_step(stage: int, ranks: int, accumulation: int = 1, recompute: bool = False) -> dict:
    """What rank 0 holds and sends, as `simulate` returns it."""
    return simulate(SimulatedJob(MODEL, stage, ranks, micro_batch=SAMPLES, accumulation=accumulation, half=True,
                                 recompute=recompute))


def bytes_each(stage: int, ranks: int) -> dict[str, float]:
    """Bytes of model states that the rank holds for each parameter of the model, by kind and in total."""
    held = simulated_step(stage, ranks)
    return {kind: held[f"{kind}_bytes"] / held["params"] for kind in ("parameters", "gradients", "optimizer", "total")}


def sent_passes(stage: int, ranks: int, accumulation: int) -> float:
    """How often the rank sends its (N - 1)/N of all elements in a step."""
    seen = simulated_step(stage, ranks, accumulation=accumulation)
    return seen["sent_bytes"] / HALF / (seen["params"] * (ranks - 1) / ranks)
