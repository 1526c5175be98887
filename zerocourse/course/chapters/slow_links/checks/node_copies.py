"""The check of 20.4: find the bugs in what keeps a copy of gathered weights in a node."""

import torch

from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.words import a

# What happens to a copy: a unit is wanted, or the optimizer has stepped, or somebody has written a unit's weights.
RUNS = {
    "one step": "a b b a",
    "two steps": "a b b a + a b b a",
    "two micro-batches": "a b b a a b b a + a",
    "weights loaded": "a b /a a b b a + a b",
    "weights loaded before anything": "/a a b + /a a b",
    "an update before anything": "+ a a",
    "a step that evaluates between": "a b b a + a b a b",
    "three units": "a b c c b a + a b c c b a",
    "weights loaded twice": "a b b /a /a a b /a a + a b",
}


def replayed(answer, run):
    """What it returned for each unit, and for which it asked the other nodes."""
    weights, asked, seen = {"a": 1, "b": 100, "c": 10_000}, [], []

    def gather(unit):
        asked.append(unit)
        return torch.tensor([float(weights[unit])])

    copy = answer(gather)
    for event in RUNS[run].split():
        if event == "+":
            weights = {unit: value + 1 for unit, value in weights.items()}
            copy.updated()
        elif event[0] == "/":
            weights[event[1]] += 10
            copy.written(event[1])
        else:
            got = copy.unshard(event)
            if not torch.is_tensor(got):
                raise Wrong(f"unshard returned {a(got)}: return the unit's weights, a tensor", MISUSED)
            seen.append(got.item())
            got += 0.5  # a rank's own buffer, in which it may do what it likes
    return {"weights": seen, "asked": " ".join(asked)}


@exercise(
    "20.4", "Find the bugs: yesterday's weights", minutes=20, difficulty=2, answer="NodeCopy",
    trials=[Trial([(run,) for run in RUNS], replayed)],
    mistakes={
        "never renewed": {"on_update": lambda copy: None},
        "loaded weights ignored": {"on_write": lambda copy, unit: None},
        "everything dropped": {"on_write": lambda copy, unit: copy.kept.clear()},
        "asked at once": ({"on_write": lambda copy, unit: copy.kept.update({unit: copy.gather(unit)})},
                          {"on_update": lambda copy: copy.kept.update({unit: copy.gather(unit) for unit in copy.kept})}),
        "never kept": {"keeps": False},
        "second use": {"keeps": "once"},
        "one unit": ({"most": 1}, {"most": 2}),
        "the copy itself": ({"clones": False}, {"clones": "later"}),
        "shared": lambda gather, kept={}: NodeCopies(gather, kept=kept),
    })
class NodeCopies:
    """A copy of each unit, from the first time that it is wanted until its weights change."""

    def __init__(self, gather, *, on_update=lambda copy: copy.kept.clear(), on_write=lambda copy, unit: copy.kept.pop(unit, None), keeps=True,
                 most=None, clones=True, kept=None):
        self.gather, self.kept = gather, {} if kept is None else kept
        self.on_update, self.on_write, self.keeps, self.most, self.clones = on_update, on_write, keeps, most, clones

    def unshard(self, unit):
        if unit not in self.kept:
            weights = self.gather(unit)
            if not self.keeps:
                return weights
            if len(self.kept) == self.most:
                self.kept.pop(next(iter(self.kept)))
            self.kept[unit] = weights
            if self.clones == "later":
                return weights
        elif self.keeps == "once":
            return self.kept.pop(unit)
        return self.kept[unit].clone() if self.clones else self.kept[unit]

    def updated(self):
        self.on_update(self)

    def written(self, unit):
        self.on_write(self, unit)
