"""The check of 22.8: causal attention in blocks of queries and of keys, which reads what the kernel of the package reads."""

import torch

from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.words import a

D = 8


def attended_in_blocks(answer, T, block):
    """Result and lse; how many rows were asked for at once, and in all."""
    source = torch.Generator().manual_seed(T)
    rows = {name: 2 * torch.randn(T, D, generator=source) for name in ("q", "k", "v")}
    asked = []

    def load(name, start, stop):
        if name not in rows or not 0 <= start <= stop <= T:
            raise Wrong(f"load({name!r}, {start}, {stop}): there are q, k and v, and rows 0 to {T}", MISUSED)
        asked.append((name, stop - start))
        return rows[name][start:stop].clone()

    made = answer(load, T, block)
    if not (isinstance(made, tuple) and len(made) == 2 and all(map(torch.is_tensor, made))):
        raise Wrong(f"it returned {a(made)}: return two tensors, out and lse", MISUSED)
    out, lse = made
    counts = {name: sum(number for each, number in asked if each == name) for name in rows}
    return {"shapes": [tuple(out.shape), tuple(lse.shape)], "at once": max((number for _, number in asked), default=0) <= block,
            "out": out, "lse": lse, "reads": counts, "_block": block}


@exercise(
    "22.8", "Attention in blocks", minutes=50, difficulty=3, trials=[Trial([(16, 4), (10, 4), (6, 8), (9, 2)], attended_in_blocks, close=1e-4)],
    mistakes={
        "no mask": {"seen": lambda queries, keys: queries[:, None] >= -1 + 0 * keys[None]},
        "not itself": {"seen": lambda queries, keys: (keys[None] < queries[:, None]) | (keys[None] == 0)},
        "not scaled": {"scale": 1.0},
        "scaled by the width": {"scale": 1 / D},
        "maximum of a block": {"scale_down": False},
        "all keys": {"end": lambda stop, T: T},
        "queries again": {"again": True},
        "not divided": {"divide": False},
        "lse without the maximum": {"adds_most": False},
        "everything": {"size": lambda T, block: T},
    })
def flash(load, T, block, *, seen=lambda queries, keys: keys[None] <= queries[:, None], scale=D**-0.5, scale_down=True,
          end=lambda stop, T: stop, again=False, divide=True, adds_most=True, size=lambda T, block: block):
    """(out (T, D), lse (T,))."""
    outs, lses, step = [], [], size(T, block)
    for start in range(0, T, step):
        stop = min(start + step, T)
        q, queries = load("q", start, stop), torch.arange(start, stop)
        most, total, out = torch.full((len(q),), -torch.inf), torch.zeros(len(q)), torch.zeros(len(q), D)
        for first in range(0, end(stop, T), step):
            last = min(first + step, end(stop, T))
            if again and first:
                load("q", start, stop)
            k, v = load("k", first, last), load("v", first, last)
            scores = (q @ k.T * scale).masked_fill(~seen(queries, torch.arange(first, last)), -torch.inf)
            larger = torch.maximum(most, scores.amax(1))
            share, kept = (scores - larger[:, None]).exp(), (most - larger).exp() if scale_down else (most > -torch.inf).float()
            total, out, most = total * kept + share.sum(1), out * kept[:, None] + share @ v, larger
        outs.append(out / total[:, None] if divide else out)
        lses.append(total.log() + (most if adds_most else 0))
    return torch.cat(outs), torch.cat(lses)
