"""Our tensor parallelism beside torch's `parallelize_module`: the same model, the same ranks, steps in turn.

    python -m zerocourse.bench.parts.tensor_speed [--ranks 2] [--width 256] [--layers 4] [--rounds 7]

Both cut a `SplitGPT`, with separate layers for queries, keys and values, because a fused one is not for `ColwiseParallel`.
Prints seconds of a step (median over the rounds, the slowest rank's), the ratio ours / torch's, and the losses, which must be
equal to some digits. A machine that does other things disturbs both, so look at the ratio.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import loss_parallel, parallelize_module

from ...comm import Comm
from ...course.chapters.tensor_parallel.tensor_peer import PLANS, SplitGPT, torchs_plan
from ...launch.ranks import Ranks
from ...models.gpt2 import GPTConfig
from ...parallel.tensor import Columns, TensorPlan, tensor_parallel


def our_plan(config: GPTConfig) -> TensorPlan:
    columns = {f"h.*.attn.{layer}": Columns(config.n_head) for layer in "qkv"}
    return TensorPlan(("h.*.attn", "h.*.mlp"), columns | {"h.*.mlp.c_fc": Columns()},
                      {"h.*.attn.o": config.n_head, "h.*.mlp.c_proj": None}, embedding="wte", head="lm_head")


class LossInside(SplitGPT):
    """With the loss where `tensor_parallel` replaces it."""

    def forward(self, tokens_BT, targets_BT):
        return self.loss(super().forward(tokens_BT), targets_BT)


def times(config: GPTConfig, batch: int, rounds: int) -> dict[str, tuple[list[float], float]]:
    """On each rank: {"ours", and torch's plans}: (seconds of each round's step, the last loss). Collective."""
    comm, tokens = Comm(), torch.randint(config.vocab_size, (batch, config.block_size + 1),
                                         generator=torch.Generator().manual_seed(0))
    x, y = tokens[:, :-1], tokens[:, 1:]
    mesh, models = init_device_mesh("cpu", (comm.world_size,)), {}
    for name in ("ours", *PLANS[:2]):
        torch.manual_seed(0)
        if name == "ours":
            models[name] = tensor_parallel(LossInside(config), comm, our_plan(config))
        else:
            models[name] = parallelize_module(SplitGPT(config), mesh, torchs_plan(config.n_layer, name))
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in models.items()}

    def step(name: str) -> float:
        if name == "ours":
            loss = models[name](x, y)
            loss.backward()
        else:
            with loss_parallel():
                loss = F.cross_entropy(models[name](x).flatten(0, 1), y.flatten())
                loss.backward()
        optimizers[name].step()
        optimizers[name].zero_grad()
        return float(loss)

    taken, losses = {name: [] for name in models}, {}
    for number in range(rounds + 1):
        for name in models:
            comm.on_any_rank([False], tokens.device)  # all begin together
            began = time.perf_counter()
            losses[name] = step(name)
            if number:  # the first sets things up
                taken[name].append(time.perf_counter() - began)
    return {name: (taken[name], losses[name]) for name in models}


def measure(config: GPTConfig, ranks: int, batch: int, rounds: int) -> dict[str, dict[str, float]]:
    """{"ours", and torch's plans}: median seconds of a step, of the slowest rank in each round; its last loss; and the
    ratio of our seconds to its."""
    with Ranks(ranks, quiet=True, device="cpu") as workers:
        by_rank = workers.run(times, config, batch, rounds)
    seconds = {name: statistics.median(map(max, zip(*(each[name][0] for each in by_rank), strict=True))) for name in by_rank[0]}
    return {name: {"seconds": each, "ratio": seconds["ours"] / each, "loss": by_rank[0][name][1]}
            for name, each in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option, default in (("ranks", 2), ("width", 256), ("layers", 4), ("batch", 4), ("rounds", 7)):
        parser.add_argument(f"--{option}", type=int, default=default)
    given = parser.parse_args()
    config = GPTConfig(given.layers, 8, given.width, block_size=128, vocab_size=256, tied=False)
    for name, found in measure(config, given.ranks, given.batch, given.rounds).items():
        what = name if name == "ours" else f"parallelize_module, {name}"
        print(f"{what:45} {found['seconds']:8.3f} s   ours / this {found['ratio']:5.2f}   loss {found['loss']:.6f}")


if __name__ == "__main__":
    main()
