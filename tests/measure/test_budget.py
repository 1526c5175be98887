"""One rank that is over its budget ends the step on every rank, as OutOfMemory."""

import time

import pytest
import torch
from torch import nn

from zerocourse import shard
from zerocourse.errors import CollectiveError, OutOfMemory
from zerocourse.measure.ledger import Ledger


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)))


def over_budget(stage: int, budget: int | None) -> tuple[str, str, float]:
    """Train where rank 0 owns every tensor, so that it alone needs much: how it ended, and after how many seconds."""
    begun = time.monotonic()
    with Ledger(budget=budget) as ledger:
        model = mlp()
        model, optimizer = shard(model, torch.optim.AdamW(model.parameters()), stage=stage, units=[nn.Sequential],
                                 rank_map=everything_to_rank_0)
        try:
            for _ in range(2):
                model(torch.ones(2, 64)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        except (OutOfMemory, CollectiveError) as error:
            return type(error).__name__, str(error), time.monotonic() - begun
        return "trained", str(ledger.peak), time.monotonic() - begun


def everything_to_rank_0(shapes, world_size):
    return dict.fromkeys(shapes, 0)


@pytest.mark.parametrize("world_size, stage", [(2, 1), (2, 2), (2, 3), (3, 3)])
def test_a_budget_that_one_rank_exceeds_is_out_of_memory_on_every_rank(pool, world_size, stage):
    peaks = [int(peak) for _, peak, _ in pool(world_size).run(over_budget, stage, None)]
    between = (peaks[0] + max(peaks[1:])) // 2
    assert max(peaks[1:]) < 0.8 * between, "only rank 0 goes over this budget"
    found = pool(world_size).run(over_budget, stage, between)
    assert [kind for kind, _, _ in found] == ["OutOfMemory"] * world_size, found
    assert all("rank 0 ran out of memory" in words and seconds < 30 for _, words, seconds in found), found
    assert all(words.startswith(f"rank {rank} stopped in ") for rank, (_, words, _) in enumerate(found) if rank), found
