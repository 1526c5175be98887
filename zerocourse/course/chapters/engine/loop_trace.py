"""The training loop, micro-batch by micro-batch: what the engine sends, holds and updates after each of them.

    records = trace_loop({"train_micro_batch_size_per_gpu": 2, ...}, micro_batches=8)          # on a rank
    records = trace_loop(config, micro_batches=8, turn=my_turn)                                # with a loop of one's own

Runs on every rank of the default process group, and sends what the engine sends.
"""

from collections import Counter
from collections.abc import Callable, Mapping

import torch

from ....engine import Engine, initialize
from ....models.gpt2 import CONFIGS, GPT, GPTConfig

Turn = Callable[[Engine, torch.Tensor, torch.Tensor], torch.Tensor]
T = 32  # tokens in a sample


def turn_of_the_engine(engine: Engine, x_BT: torch.Tensor, y_BT: torch.Tensor) -> torch.Tensor:
    """One micro-batch as the loop has it. Returns its loss."""
    loss = engine(x_BT, y_BT)
    engine.backward(loss)
    engine.step()
    return loss


def trace_loop(config: Mapping, micro_batches: int, turn: Turn = turn_of_the_engine, model: GPTConfig = CONFIGS["gpt2-tiny"],
               lr: float = 0.1, seed: int = 0) -> list[dict]:
    """One record for each micro-batch; every rank has tokens of its own. Collective.

    config: a ds_config; SGD with the rate `lr` is the optimizer, unless it has one.
    Records: "boundary" (did the micro-batch end its window?); "sent", bytes by collective, in the whole turn;
    "gradients_bytes", held when `engine.backward` has ended (None where it was never called); "update", the number of the optimizer step, and "rate",
    the learning rate of it (both None where there was none); "norm" of the whole gradient at that update; "moved", by how much this
    rank's parameters changed (the largest difference); "loss".
    """
    torch.manual_seed(seed)
    made = GPT(model)
    optimizer = None if "optimizer" in config else torch.optim.SGD(made.parameters(), lr=lr)
    engine, optimizer, *_ = initialize(model=made, optimizer=optimizer, config=dict(config))
    comm, records, updates = engine.zero.comm, [], []
    optimizer.register_step_pre_hook(lambda *_: updates.append(optimizer.param_groups[0]["lr"]))
    held: list[int] = []
    backward = engine.backward

    def watched_backward(*args, **kwargs):
        loss = backward(*args, **kwargs)
        held.append(engine.memory()["gradients_bytes"])
        return loss

    engine.backward = watched_backward
    for number in range(micro_batches):
        tokens = draw(engine, number, model)
        before, sent = [each.clone() for each in slices(engine)], Counter(comm.sent)
        boundary, done = engine.is_gradient_accumulation_boundary(), len(updates)
        loss = turn(engine, tokens[:, :-1], tokens[:, 1:])
        updated = len(updates) > done
        records.append({
            "boundary": boundary, "sent": dict(Counter(comm.sent) - sent), "gradients_bytes": held[-1] if held else None,
            "update": len(updates) if updated else None, "rate": updates[-1] if updated else None,
            "norm": engine.get_global_grad_norm() if updated else None, "loss": loss.item(),
            "moved": max((now - then).abs().max().item() for now, then in zip(slices(engine), before, strict=True))})
    return records


def draw(engine: Engine, number: int, model: GPTConfig) -> torch.Tensor:
    """The tokens of a micro-batch, (B, T + 1) int64, of this rank's own."""
    seed = torch.Generator().manual_seed(1_009 * number + engine.global_rank)
    often = torch.rand(engine.train_micro_batch_size_per_gpu(), T + 1, generator=seed).square()  # small numbers more often
    return (often * model.vocab_size).long()


def slices(engine: Engine) -> list[torch.Tensor]:
    """The parameters that this rank updates."""
    return [param.detach() for group in engine.optimizer.param_groups for param in group["params"]]
