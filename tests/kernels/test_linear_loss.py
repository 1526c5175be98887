"""The loss in chunks is that of whole logits, with its gradients, under any factor, and holds a chunk of logits at once."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from zerocourse import shard
from zerocourse.errors import BadInput
from zerocourse.kernels.linear_loss import linear_cross_entropy, peak_logits_bytes
from zerocourse.measure.ledger import Ledger

N, C, V = 37, 16, 101


def case(dtype=torch.float64, ignored=True):
    draw = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, generator=draw, dtype=torch.float64).to(dtype).requires_grad_() for size in ((N, C), (V, C)))
    targets = torch.randint(V, (N,), generator=draw)
    if ignored:
        targets[::5] = -100
    return x, weight, targets


def whole(x, weight, targets):
    return F.cross_entropy((x @ weight.T).float(), targets)


@pytest.mark.parametrize("chunk", (1, 8, 37, 1000, None))
@pytest.mark.parametrize("factor", (1.0, 128.0, 1 / 3))
def test_loss_and_gradients_are_those_of_whole_logits(chunk, factor):
    x, weight, targets = case(torch.float32)
    ours, theirs = linear_cross_entropy(x, weight, targets, chunk), whole(x, weight, targets)
    assert ours.dtype is torch.float32 and ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    for mine, exact in zip(torch.autograd.grad(ours * factor, (x, weight)), torch.autograd.grad(theirs * factor, (x, weight)), strict=True):
        torch.testing.assert_close(mine, exact, rtol=2e-5, atol=2e-6 * factor)


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="torch has one of its own from 2.13 on")
def test_torchs_own_says_the_same():
    x, weight, targets = case(torch.float32)
    assert linear_cross_entropy(x, weight, targets, 8).item() == pytest.approx(F.linear_cross_entropy(x, weight, targets).item(), rel=1e-6)


def test_in_bf16_the_gradients_are_bf16_and_the_sum_over_chunks_is_not():
    x, weight, targets = case(torch.bfloat16)
    exact = [each.detach().float().requires_grad_() for each in (x, weight)]
    ours = torch.autograd.grad(linear_cross_entropy(x, weight, targets, 4), (x, weight))
    theirs = torch.autograd.grad(whole(*exact, targets), exact)
    for mine, want in zip(ours, theirs, strict=True):
        assert mine.dtype is torch.bfloat16
        assert (mine.float() - want).abs().max() < 0.02 * want.abs().max()


@pytest.mark.parametrize("which", (0, 1))
def test_what_needs_no_gradient_gets_none(which):
    x, weight, targets = case(torch.float32)
    (x, weight)[which].requires_grad_(False)
    linear_cross_entropy(x, weight, targets, 8).backward()
    assert (x, weight)[which].grad is None and (x, weight)[1 - which].grad is not None
    with torch.no_grad():
        assert linear_cross_entropy(x, weight, targets, 8).item() == pytest.approx(whole(x, weight, targets).item(), rel=1e-6)


def test_where_nothing_counts_the_loss_is_zero_and_so_are_the_gradients():
    x, weight, _ = case(torch.float32)
    loss = linear_cross_entropy(x, weight, torch.full((N,), -100), 8)
    assert loss.item() == 0 and not any(bool(each.any()) for each in torch.autograd.grad(loss, (x, weight)))


def test_a_chunk_of_logits_is_there_at_once():
    """The ledger: with whole logits, four times N·V numbers; in chunks, those of a chunk, and dW."""
    def peak(loss):
        x = torch.randn(256, C, requires_grad=True)
        weight, targets = torch.randn(512, C, requires_grad=True), torch.randint(512, (256,))
        with Ledger().track(x, weight, targets) as ledger:
            before = ledger.alive
            loss(x, weight, targets).backward()
            return ledger.peak - before

    chunked = peak(lambda *given: linear_cross_entropy(*given, chunk=16))
    assert peak(whole) >= peak_logits_bytes(256, 512)
    assert chunked < 4 * peak_logits_bytes(256, 512, 16) + 3 * 4 * 512 * C + 2 * 4 * 256 * C < peak_logits_bytes(256, 512)


@pytest.mark.parametrize("shapes, chunk, words", ((((4, 3), (7, 2), (4,)), None, r"needed are \(..., C\), \(V, C\) and"),
                                                  (((4, 3), (7, 3), (5,)), None, "targets of"), (((4, 3), (7, 3), (4,)), 0, "chunk is 0")))
def test_other_shapes_are_refused(shapes, chunk, words):
    x, weight, targets = (torch.zeros(shape) for shape in shapes)
    with pytest.raises(BadInput, match=words):
        linear_cross_entropy(x, weight, targets.long(), chunk)


def test_fp16_is_refused_because_a_scale_of_the_loss_comes_too_late():
    x, weight, targets = case(torch.float16)
    with pytest.raises(BadInput, match="before the loss is scaled, and in fp16 small ones would be zero"):
        linear_cross_entropy(x, weight, targets)


class HeadAndLoss(nn.Module):
    """A unit of its own, whose weight stage 3 gathers for its forward."""

    def __init__(self, chunked):
        super().__init__()
        self.weight, self.chunked = nn.Parameter(torch.randn(V, C) * 0.1), chunked

    def forward(self, x, targets):
        return linear_cross_entropy(x, self.weight, targets, 8) if self.chunked else whole(x, self.weight, targets)


class Tiny(nn.Module):
    def __init__(self, chunked):
        super().__init__()
        self.embed, self.units = nn.Embedding(V, C), nn.ModuleList([nn.Linear(C, C), HeadAndLoss(chunked)])

    def forward(self, tokens):
        body, head = self.units
        return head(body(self.embed(tokens[:-1])), tokens[1:])


def losses(chunked, stage):
    torch.manual_seed(0)
    model = Tiny(chunked)
    model, optimizer = shard(model, torch.optim.AdamW(model.parameters(), lr=1e-2), stage=stage)
    found = []
    for step in range(4):
        tokens = torch.randint(V, (N,), generator=torch.Generator().manual_seed(2 * step + torch.distributed.get_rank()))
        loss = model(tokens)
        (loss * 64).backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("stage", (0, 2, 3))
def test_the_head_may_be_a_unit_of_a_stage(pool, stage):
    """Its gradient is computed in the forward, and comes in the backward, as any other's."""
    for ours, theirs in zip(pool(2).run(losses, True, stage), pool(2).run(losses, False, stage), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
