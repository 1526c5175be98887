"""The check of 22.3: find the bugs in the softmax of a row, of which only a block is there at a time."""

from collections import Counter

import torch

from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.words import a

AROUND = 64
ROWS = {"ordinary": (24, 8), "a rest": (21, 8), "negative": (21, 8), "large": (21, 8), "one block": (5, 8), "falling": (30, 8),
        "far below 0": (21, 8), "lower than any number one thinks of": (21, 8), "steep": (21, 8)}


def row_of(kind):
    C, _ = ROWS[kind]
    if kind == "lower than any number one thinks of":
        return torch.linspace(-1e30, -2e30, C)  # its softmax is 1 and zeros, however one rounds
    row = torch.randn(C, generator=torch.Generator().manual_seed(C))
    slope = torch.linspace(-1, 1, C) * {"falling": -3, "steep": 100}.get(kind, 2)
    return row + slope + {"negative": -40.0, "large": 200.0, "far below 0": -900.0}.get(kind, 0.0)


def softmaxed(answer, kind):
    """The result, and how much was read, where."""
    row, (C, block), read = row_of(kind), ROWS[kind], []
    memory = torch.cat([torch.full((AROUND,), 300.0), row, torch.full((AROUND,), 300.0)])

    def load(columns, mask, other):
        if len(columns) > block:
            raise Wrong(f"it loaded {len(columns)} numbers at once: at most BLOCK, {block}, are there at a time", MISUSED)
        read.extend(columns[mask].tolist())
        at = (columns + AROUND).clamp(0, len(memory) - 1)
        return torch.where(mask, memory[at], torch.as_tensor(other, dtype=memory.dtype))

    made = answer(load, C, block)
    if not torch.is_tensor(made):
        raise Wrong(f"it returned {a(made)}: return a tensor", MISUSED)
    outside = sum(not 0 <= at < C for at in read)
    return {"shape": tuple(made.shape), "outside": outside, "softmax": made, "reads": max(2, *Counter(read).values())}


@exercise(
    "22.3", "Find the bugs: a row in blocks", minutes=25, difficulty=2, trials=[Trial([(kind,) for kind in ROWS], softmaxed, close=1e-5)],
    mistakes={
        "zeros": {"other": 0.0},
        "a low number": ({"other": -1e4}, {"other": -1e9}),
        "own maximum": {"carries": False},
        "not scaled down": {"scales": False},
        "first maximum": {"first": True},
        "first pass not masked": {"masked": (False, True)},
        "second pass not masked": {"masked": (True, False)},
        "padding kept": {"cut": False},
        "read once more": {"looks": True},
        "clamped": {"last": True},
        "maximum from zero": {"least": 0.0},
    })
def softmax_row(load, C, BLOCK, *, other=-torch.inf, carries=True, scales=True, masked=(True, True), cut=True, looks=False,
                first=False, last=False, least=-torch.inf):
    """(C,): the softmax of the row."""
    most, total, parts = torch.tensor(least), torch.zeros(()), []
    blocks = [begin + torch.arange(BLOCK) for begin in range(0, C, BLOCK)]

    def values(columns, is_masked):
        if last:
            return load(columns.clamp(max=C - 1), columns >= 0, other).where(columns < C, other)
        return load(columns, columns < C if is_masked else columns >= 0, other)

    for columns in blocks:
        x = values(columns, masked[0])
        if looks:
            values(columns, True)
        larger = most if first and parts else torch.maximum(most, x.max())
        parts = [larger]
        total = total * ((most - larger).exp() if scales else 1) + (x - larger).exp().sum()
        most = larger
    parts = []
    for columns in blocks:
        x = values(columns, masked[1])
        parts.append((x - (most if carries else x.max())).exp() / total)
    return torch.cat(parts)[: C if cut else None]
