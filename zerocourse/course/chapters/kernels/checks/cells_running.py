"""The check of 22.w3, which chapter 22 asks for itself: attention over keys that come in pieces, by a running maximum."""

import torch

from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.words import a

D = 4
SCORES = {  # about what the keys of each piece score
    "alike": (0, 0, 0), "rising": (-3, 0, 4), "falling": (4, 0, -3), "far apart": (-900, 300, 900), "far down": (900, -900), "one piece": (0,)}


def attend(q, pieces):
    """Attention of one query over keys that come in pieces.

    q: (D,), scaled already.   pieces: an iterator of (k (S, D), v (S, D)), and no piece is
    there any more when the next one comes.
    Returns (out (D,), lse): out = softmax(scores) @ v with the scores k @ q of all keys,
    and lse, the logarithm of the sum of exp(scores).
    """
    most, total, out = torch.tensor(-torch.inf), 0.0, torch.zeros_like(q)
    for k, v in pieces:
        scores = k @ q
        larger = torch.maximum(most, scores.max())
        share, kept = (scores - larger).exp(), (most - larger).exp()
        total = total * kept + share.sum()
        out = out * kept + share @ v
        most = larger
    return out / total, most + total.log()


def attended(answer, kind):
    """Result and lse, where a piece is overwritten as soon as the next one is asked for."""
    source = torch.Generator().manual_seed(len(kind))
    q = torch.tensor([1.0, 0.0, 0.5, -0.5])
    kept = []
    for number, level in enumerate(SCORES[kind]):
        k, v = torch.randn(2, 3 + 2 * number, D, generator=source)
        k[:, 0] += level
        kept.append((k, v))

    def pieces():
        for k, v in kept:
            k, v = k.clone(), v.clone()
            yield k, v
            k.fill_(torch.nan)
            v.fill_(torch.nan)

    made = answer(q, pieces())
    if not (isinstance(made, tuple) and len(made) == 2 and torch.is_tensor(made[0])):
        raise Wrong(f"it returned {a(made)}: return out, a tensor, and lse", MISUSED)
    return {"finite": bool(made[0].isfinite().all()), "out": made[0], "lse": float(made[1])}


@exercise(
    "22.w3", "A softmax that runs", minutes=15, difficulty=3, answer="attend", own=attend,
    replaces=("zerocourse.parallel.context.score_block:*",), trials=[Trial([(kind,) for kind in SCORES], attended, close=1e-4)],
    mistakes={
        "no maximum": ({"level": lambda most, scores: torch.zeros(())},
                       {"level": lambda most, scores: scores.max() if most == -torch.inf else most}),
        "own maximum": {"level": lambda most, scores: scores.max()},
        "sum not scaled": {"scale_sum": False},
        "out not scaled": {"scale_out": False},
        "not divided": {"divide": False},
        "every piece alike": {"forget": True},
        "lse without the maximum": {"adds_most": False},
        "pieces kept": {"keep": list},
    })
def attention_in_pieces(q, pieces, *, level=lambda most, scores: torch.maximum(most, scores.max()), scale_sum=True, scale_out=True, divide=True,
                        forget=False, adds_most=True, keep=iter):
    """(out, lse)."""
    most, total, out, means = torch.tensor(-torch.inf), torch.zeros(()), torch.zeros_like(q), []
    for k, v in keep(pieces):
        scores = k @ q
        larger = level(most, scores)
        share, kept = (scores - larger).exp(), (most - larger).exp() if most > -torch.inf else torch.zeros(())
        means.append(scores.softmax(0) @ v)
        total = total * (kept if scale_sum else 1) + share.sum()
        out = out * (kept if scale_out else 1) + share @ v
        most = larger
    out = torch.stack(means).mean(0) if forget else out / total if divide else out
    return out, (most if adds_most else 0) + total.log()
