"""How long a step of AdamW takes on a CPU: torch's three ways, and DeepSpeed's CPUAdam where that compiles.

    python -m zerocourse.bench.parts.cpu_adam [millions of parameters] [threads]

It is what an offload does on the host, with whatever optimizer it was given. The ways take turns, and each has the
median of its steps. The bound is memory: a step reads parameter, gradient and both averages, and writes all but the
gradient, which are 28 bytes a parameter in fp32. Loop and foreach go through memory for each operation, the others once.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

STEP_BYTES = 7 * 4  # a parameter's
SETTINGS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
Maker = Callable[[list[nn.Parameter]], Optimizer]
WAYS: dict[str, Maker] = {
    "torch, fused=True": lambda params: AdamW(params, fused=True, **SETTINGS),
    "torch, foreach=True": lambda params: AdamW(params, foreach=True, **SETTINGS),
    "torch, a loop": lambda params: AdamW(params, foreach=False, fused=False, **SETTINGS),
}


def deepspeed_adam(params: list[nn.Parameter]) -> Optimizer:
    """Raises ImportError where it is not installed, and RuntimeError, or an error of its own, where it does not compile."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    return DeepSpeedCPUAdam(params, adamw_mode=True, **SETTINGS)


def step_seconds(ways: dict[str, Maker], numel: int, steps: int = 9) -> dict[str, list[float]]:
    """Seconds of each step, by way; each has its own `numel` elements, in four parameters.

    The first step, which makes the states, is not among them.
    """
    optimizers = {}
    for way, make in ways.items():
        params = [nn.Parameter(torch.ones(numel // 4)) for _ in range(4)]
        for param in params:
            param.grad = torch.full_like(param, 1e-2)
        optimizers[way] = make(params)
        optimizers[way].step()
    seconds = {way: [] for way in ways}
    for _ in range(steps):
        for way, optimizer in optimizers.items():
            begun = time.perf_counter()
            optimizer.step()
            seconds[way].append(time.perf_counter() - begun)
    return seconds


def main(millions: str = "16", threads: str = "1") -> None:
    numel, ways = int(float(millions) * 1e6), dict(WAYS)
    torch.set_num_threads(int(threads))
    try:
        deepspeed_adam([nn.Parameter(torch.ones(4))])  # compiles it, which takes a minute the first time
        ways["DeepSpeed's CPUAdam"] = deepspeed_adam
    except Exception as error:  # its builder has errors of its own
        print(f"DeepSpeed's CPUAdam is left out: {str(error).splitlines()[0]}")
    medians = {way: statistics.median(each) for way, each in step_seconds(ways, numel).items()}
    print(f"{numel:,} parameters in fp32, {threads} thread(s)")
    for way, seconds in medians.items():
        print(f"{way:22}{seconds / medians['torch, fused=True']:6.2f} × fused{seconds * 1e3:9.1f} ms"
              f"{STEP_BYTES * numel / seconds / 1e9:8.1f} GB/s of the {STEP_BYTES} bytes a parameter")


if __name__ == "__main__":
    main(*sys.argv[1:])
