"""The check of 22.8: causal attention in blocks of queries and of keys, which reads what the kernel of the package reads."""

from functools import cache

import torch

from .....comm.torch_private import TorchDispatchMode
from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.words import a

D = 8


class Wide(TorchDispatchMode):
    """Notes how wide the widest matrix is that is made."""

    columns = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if torch.is_tensor(made) and made.is_floating_point() and made.dim() > 1:
            self.columns = max(self.columns, made.shape[-1])
        return made


def attended_in_blocks(answer, T, block, kind):
    """Result and lse; how many rows were asked for at once, and in all."""
    source = torch.Generator().manual_seed(T)
    rows = {name: 2 * torch.randn(T, D, generator=source) for name in ("q", "k", "v")}
    if kind == "very low":
        rows["q"] += 10
        rows["k"] -= 10
    asked = []

    def load(name, start, stop):
        if name not in rows or not 0 <= start <= stop <= T:
            raise Wrong(f"load({name!r}, {start}, {stop}): there are q, k and v, and rows 0 to {T}", MISUSED)
        asked.append((name, stop - start))
        return rows[name][start:stop].clone()

    with Wide() as wide:
        made = answer(load, T, block)
    if not (isinstance(made, tuple) and len(made) == 2 and all(map(torch.is_tensor, made))):
        raise Wrong(f"it returned {a(made)}: return two tensors, out and lse", MISUSED)
    out, lse = made
    counts = {name: sum(number for each, number in asked if each == name) for name in rows}
    return {"shapes": [tuple(out.shape), tuple(lse.shape)], "at once": max((number for _, number in asked), default=0) <= block,
            "out": out, "lse": lse, "reads": counts, "wide": max(wide.columns, block, D),
            "_block": block}


def whole_rows(load, T, block):
    """The scores of a block of queries are put together before their softmax."""
    outs, lses = [], []
    for start in range(0, T, block):
        stop = min(start + block, T)
        q, parts = load("q", start, stop), [(first, min(first + block, stop)) for first in range(0, stop, block)]
        scores = torch.cat([q @ load("k", *part).T for part in parts], 1) * D**-0.5
        scores = scores.masked_fill(torch.arange(stop) > torch.arange(start, stop)[:, None], -torch.inf)
        outs.append(scores.softmax(1) @ torch.cat([load("v", *part) for part in parts]))
        lses.append(scores.logsumexp(1))
    return torch.cat(outs), torch.cat(lses)


@exercise(
    "22.8", "Attention in blocks", minutes=50, difficulty=3,
    trials=[Trial([(16, 4, "ordinary"), (10, 4, "ordinary"), (6, 8, "ordinary"), (9, 2, "ordinary"), (9, 4, "very low")],
                  attended_in_blocks, close=1e-4)],
    mistakes={
        "no mask": {"seen": lambda queries, keys: queries[:, None] >= -1 + 0 * keys[None]},
        "not itself": {"seen": lambda queries, keys: (keys[None] < queries[:, None]) | (keys[None] == 0)},
        "not scaled": {"scale": 1.0},
        "scaled by the width": {"scale": 1 / D},
        "maximum of a block": {"scale_down": False},
        "all keys": {"end": lambda stop, T: T},
        "queries again": {"again": True},
        "not divided": {"divide": False},
        "maximum from zero": {"least": 0.0},
        "keys kept": {"keeps": cache},
        "all scores": whole_rows,
        "lse without the maximum": {"adds_most": False},
        "everything": {"size": lambda T, block: T},
    })
def flash(load, T, block, *, seen=lambda queries, keys: keys[None] <= queries[:, None], scale=D**-0.5, scale_down=True,
          end=lambda stop, T: stop, again=False, divide=True, adds_most=True, size=lambda T, block: block, least=-torch.inf,
          keeps=lambda load: load):
    """(out (T, D), lse (T,))."""
    outs, lses, step, load = [], [], size(T, block), keeps(load)
    for start in range(0, T, step):
        stop = min(start + step, T)
        q, queries = load("q", start, stop), torch.arange(start, stop)
        most, total, out = torch.full((len(q),), least), torch.zeros(len(q)), torch.zeros(len(q), D)
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
