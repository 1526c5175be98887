"""The optimizer's step on the host: torch's AdamW in its three forms, beside DeepSpeed's CPU Adam where that loads.

    python -m zerocourse.bench.cpu_adam [millions of parameters]

What an offload steps is whatever optimizer it is given, so this is the choice to make: `torch.optim.AdamW(..., fused=True)`.
All have the same parameters and gradients, fp32, and as many threads. A round times each of them once; what is printed is
the median of the ratios to the fused one, because a shared machine is slower in one second than in the next.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch

LAYERS = 12  # as many tensors
ROUNDS = 7


def deepspeed_adam(params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Raises ImportError or RuntimeError, which say why it does not load: it is compiled at its first use."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    return DeepSpeedCPUAdam(params, lr=1e-3, adamw_mode=True)


MAKERS: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "torch, fused=True": lambda params: torch.optim.AdamW(params, lr=1e-3, fused=True),
    "torch, foreach=True": lambda params: torch.optim.AdamW(params, lr=1e-3, foreach=True),
    "torch, one by one": lambda params: torch.optim.AdamW(params, lr=1e-3, foreach=False),
    "DeepSpeedCPUAdam": deepspeed_adam}


def step_ratios(numel: int, rounds: int = ROUNDS) -> tuple[dict[str, float], dict[str, str]]:
    """(how many times as long as the fused step each takes, why the others do not load), by name, for `numel` parameters."""
    runs, missing = {}, {}
    for name, make in MAKERS.items():
        params = [torch.nn.Parameter(torch.zeros(numel // LAYERS)) for _ in range(LAYERS)]
        for param in params:
            param.grad = torch.full_like(param, 1e-3)
        try:
            optimizer = make(params)
        except (ImportError, RuntimeError, OSError) as error:
            missing[name] = str(error).partition("\n")[0]
            continue
        optimizer.step()  # makes the states
        runs[name] = optimizer.step
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, step in runs.items():
            begun = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - begun)
    fused = seconds["torch, fused=True"]
    return {name: statistics.median(taken / base for taken, base in zip(of_name, fused, strict=True))
            for name, of_name in seconds.items()}, missing


def main(millions: str = "50") -> None:
    ratios, missing = step_ratios(int(float(millions) * 1e6))
    for name, ratio in ratios.items():
        print(f"{name:22}{ratio:6.2f} × the fused step's time")
    for name, why in missing.items():
        print(f"{name:22}is not here: {why}")


if __name__ == "__main__":
    main(*sys.argv[1:])
