"""One step of a model whose stages differ in memory as the theory says: deep, so that one block is little beside the
whole, with short sequences, so that activations are little beside the model states. For the chapters' timelines.

    recorded = record(stages=(1, 2, 3))                # on two ranks, a few seconds: {1: events, 2: events, 3: events}
    plots.compare({"ZeRO-1": recorded[1], ...}, formulas={"ZeRO-1": formulas(1), ...})
"""

from collections.abc import Callable, Sequence

import torch

from ....formulas.peak import gpt2_peak_bytes
from ....formulas.states import FP32, model_states
from ....init.deferred import deferred_init
from ....launch.launcher import launch
from ....measure.ledger import Ledger
from ....models.gpt2 import GPT, GPTConfig
from ....zero.extras import shard

DEEP = GPTConfig(12, 4, 128, block_size=16, vocab_size=256)  # 2.4 million parameters, of which a block has 198,272
SAMPLES = 1  # per rank and step, of block_size tokens
WARM_UP = 2  # steps before the one that is kept: the first makes the optimizer's states, and records the order of units


def record(stages: Sequence[int] = (0, 1, 2, 3), ranks: int = 2, config: GPTConfig = DEEP, **options) -> dict[int, list[dict]]:
    """A step at each stage, on real ranks: the events of all ranks, as `events.Event` has them, by stage.

    options: those of `shard`.   Their bytes are all that a ledger counts on the rank, by kind.
    """
    per_rank = launch(record_here, tuple(stages), config, options, nproc=ranks, quiet=True, env={"OMP_NUM_THREADS": "1"})
    return {stage: [event for recorded in per_rank for event in recorded[stage]] for stage in stages}


def record_here(stages: Sequence[int], config: GPTConfig = DEEP, options: dict | None = None) -> dict[int, list[dict]]:
    """The same on this rank: its events by stage. Collective."""
    return {stage: step_of(stage, config, **options or {}) for stage in stages}


def step_of(stage: int, config: GPTConfig = DEEP, prepare: Callable[..., None] = lambda model, optimizer: None,
            **options) -> list[dict]:
    """The events of one step at one stage, on this rank. prepare(model, optimizer): called right before it. Collective."""
    with deferred_init():
        model = GPT(config)
    model, optimizer = shard(model, torch.optim.AdamW(model.parameters(), fused=True), stage, **options)
    zero = model.zero
    draw = torch.Generator().manual_seed(zero.comm.rank)
    tokens_BT = torch.randint(config.vocab_size, (SAMPLES, config.block_size), generator=draw)
    for number in range(WARM_UP + 1):
        watches = number == WARM_UP
        zero.comm.all_reduce(torch.zeros(1))  # so that the ranks begin together
        if watches:
            with Ledger(model, optimizer) as ledger, zero.meter.watched_by(ledger):
                prepare(model, optimizer)
                one_step(model, optimizer, tokens_BT)
        else:
            one_step(model, optimizer, tokens_BT)
    return zero.recorder.of_step(WARM_UP)


def one_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, tokens_BT: torch.Tensor) -> None:
    model(tokens_BT, tokens_BT).backward()
    optimizer.step()
    optimizer.zero_grad()


def formulas(stage: int, ranks: int = 2, config: GPTConfig = DEEP) -> dict[str, int]:
    """By name, in bytes per rank: the model states, and the peak of such a step."""
    return {"model states": model_states(config.params, stage, ranks, FP32).total_bytes,
            "peak": gpt2_peak_bytes(config, stage, ranks, SAMPLES, config.block_size, FP32)}
