"""Offload: the numbers of the plain run, and bytes on the device, on the host and over the link as integers."""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import product

import pytest
import torch
import worlds
from worlds import Case

from zerocourse import state_dict
from zerocourse.errors import OutOfMemory
from zerocourse.offload import HostLink, HostOffload, Tier

STEPS = 3
BF16 = torch.bfloat16


def steps(case: Case, offload: HostOffload | None, says_last: bool, look: Callable = lambda flats: None):
    """One step after the other: (loss, this rank's gradients as they are stepped, all parameters, the norm)."""
    model, optimizer = worlds.sharded(case, **({"offload": offload} if offload else {}))
    flats, rank = model.zero.flats, model.zero.comm.rank
    for step in range(case.steps):
        for micro in range(case.accumulation):
            last = micro == case.accumulation - 1
            options = {"is_last": True} if says_last else {}
            with model.zero.backward_options(**options) if last else model.zero.no_sync():
                loss = case.loss(model, step, micro, rank) / case.accumulation
                loss.backward()
        norm = model.zero.clip_grad_norm_(case.clip).item() if case.clip else None
        gradients = {flat.name: flat.host_gradient().clone() if offload else flat.grad_shard.clone() for flat in flats}
        if offload:
            gradients = {flat.name: gradients[flat.name][: flat.real] for flat in flats}
        look(flats)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item(), gradients, state_dict(model), norm
    look(flats)


def equals_the_plain_run(cases: list[tuple[Case, bool, bool]]) -> list[dict[str, int]]:
    """Each case beside the same without offload, step by step. Returns the bytes of each over the link."""
    moved = []
    for case, says_last, parameters in cases:
        offload = HostOffload(parameters=parameters)
        for step, (ours, plain) in enumerate(zip(steps(case, offload, says_last), steps(case, None, False), strict=True)):
            what = f"{case}, {says_last=}, {parameters=}: step {step}"
            assert ours[0] == plain[0], f"{what}: the loss"
            for name, gradient in ours[1].items():
                wanted = plain[1][name][: gradient.numel()]
                if not case.clip:
                    assert torch.equal(gradient, wanted), f"{what}: the gradient of {name}"
            for name, value in ours[2].items():
                assert torch.equal(value, plain[2][name]) or case.clip and torch.allclose(value, plain[2][name]), f"{what}: {name}"
            assert ours[3] == plain[3], f"{what}: the norm"
        moved.append(dict(offload.link.bytes))
    return moved


@pytest.mark.parametrize("world_size", (1, 2, 3))
def test_equals_the_plain_run_and_moves_each_element_once_each_way(pool, world_size):
    """Bitwise: stages 1 to 3, fp32 and bf16, accumulation 1 and 4, gradients that go down early or at the step."""
    cases = [(Case(stage, world_size, param_dtype=dtype, accumulation=accumulation, bucket_size=300), says_last, False)
             for stage, dtype, (accumulation, says_last) in product((1, 2, 3), (None, BF16), ((1, True), (4, True), (4, False)))]
    by_rank = pool(world_size).run(equals_the_plain_run, cases)
    params = sum(param.numel() for param in worlds.gpt().parameters())
    for (case, *_), moved in zip(cases, zip(*by_rank, strict=True), strict=True):
        expected = params * (2 if case.param_dtype else 4) * case.steps
        for verb in ("down", "up"):
            assert sum(each[verb] for each in moved) == expected, f"{case}: {verb}"
