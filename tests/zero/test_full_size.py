"""GPT-2 small at full size, untied, 1 × 1024 tokens: two steps under stage 3 on two CPU ranks within 12 GiB in all."""

import resource
from dataclasses import replace

import pytest
import torch

from zerocourse import shard
from zerocourse.init.deferred import deferred_init
from zerocourse.launch import launch
from zerocourse.models.gpt2 import CONFIGS, GPT

GIB = 1 << 30


def train_two_steps() -> tuple[list[float], int]:
    """This rank's losses and the most memory that its process ever had resident, bytes."""
    with deferred_init():
        model = GPT(replace(CONFIGS["gpt2"], tied=False))
    assert sum(param.numel() for param in model.parameters()) == 163_037_184
    model, optimizer = shard(model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True), stage=3)
    tokens = torch.randint(0, 50257, (1, 1025), generator=torch.Generator().manual_seed(torch.distributed.get_rank()))
    losses = []
    for _ in range(2):
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.alone  # 12 GiB of memory
@pytest.mark.timeout(400)
def test_gpt2_small_trains_under_stage_3_within_12_gib():
    ranks = launch(train_two_steps, nproc=2, quiet=True, timeout=380, env={"OMP_NUM_THREADS": "1"})
    assert sum(resident for _, resident in ranks) < 12 * GIB
    for losses, _ in ranks:
        assert 10.5 < losses[0] < 11.2  # ln(50257) = 10.8: nothing learned yet
        assert losses[1] < losses[0]
    print([f"{resident / GIB:.2f} GiB" for _, resident in ranks])
