"""The check of 26.w1, which chapter 26 asks for itself: a whole claim, evidence and judgement, whose world the check changes."""

from collections.abc import Mapping
from functools import partial

from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.words import a

STATES = ("parameters", "gradients", "optimizer")
PSI = 5040


def evidence(held, sizes):
    """Of the claim “at stage 2 no rank holds more than a quarter of what it holds
    at stage 0”.

    held(stage, ranks, rank): trains a model, and returns the bytes that this rank holds,
        by kind: "parameters", "gradients", "optimizer" and "activations". Model states
        are the first three.
    sizes: numbers of ranks to look at.
    Returns the largest share of any rank, by the number of ranks: {"2 ranks": 0.56, ...}.
    """
    def states(stage, ranks, rank):
        kinds = held(stage, ranks, rank)
        return sum(kinds[kind] for kind in ("parameters", "gradients", "optimizer"))

    return {f"{ranks} ranks": max(states(2, ranks, rank) / states(0, ranks, rank)
                                  for rank in range(ranks)) for ranks in sizes}


def holds(found):
    """Where the claim holds, by the number of ranks: {"2 ranks": False, ...}.
    It looks at the evidence alone."""
    return {case: share <= 1 / 4 for case, share in found.items()}


def held_in(world, stage, ranks, rank):
    """Bytes that a rank holds, in a world that may not be ours."""
    whole = {"parameters": 2 * PSI, "gradients": 2 * PSI, "optimizer": 12 * PSI}
    if stage > 1 and world != "gradients whole":
        whole["gradients"] //= ranks
    if stage:
        whole["optimizer"] //= ranks
        heavy = {"a heavy rank 0": 0, "a heavy last rank": ranks - 1, "a heavy rank between": ranks // 2}.get(world)
        whole["optimizer"] *= 1 + (rank == heavy)
    if world == "fp32 at stage 0" and not stage:
        whole["parameters"] *= 4
    return whole | {"activations": 20 * PSI}


def judged_in(evidence, holds, world, sizes):
    """The verdict that the answer comes to in a world."""
    found = evidence(partial(held_in, world), sizes)
    if not isinstance(found, Mapping):
        raise Wrong(f"evidence returned {a(found)}: return a dictionary with a share for each number of ranks", MISUSED)
    verdict = holds(dict(found))
    names = [f"{ranks} ranks" for ranks in sizes]
    if not isinstance(verdict, Mapping) or sorted(verdict) != sorted(names):
        raise Wrong(f"holds returned {a(verdict) if not isinstance(verdict, Mapping) else sorted(verdict)}: return a "
                    f"dictionary with True or False for {names}", MISUSED)
    return {"verdict": {name: bool(verdict[name]) for name in names}}


WORLDS = [(world, sizes) for world in ("ours", "gradients whole", "a heavy rank 0", "a heavy last rank", "a heavy rank between",
                                       "fp32 at stage 0") for sizes in ((2, 4, 8, 16),)] + [("ours", (6, 7))]


@exercise(
    "26.w1", "A whole claim", minutes=12, difficulty=2, answer=("evidence", "holds"), own=(evidence, holds),
    trials=[Trial(WORLDS, judged_in)],
    mistakes={
        "rank 0 alone": {"looked_at": lambda ranks: [0]},
        "the last rank alone": {"looked_at": lambda ranks: [ranks - 1]},
        "the mean": {"of_all": lambda shares: sum(shares) / len(shares)},
        "activations": {"kinds": (*STATES, "activations")},
        "optimizer alone": {"kinds": ("optimizer",)},
        "less than": {"keeps": lambda share: share < 1 / 4},
        "by formula": {"formula": True},
        "upside down": {"keeps": lambda share: share >= 1 / 4},
        "stage 1": {"stage": 1},
    })
def whole_claim(*, looked_at=range, of_all=max, kinds=STATES, keeps=lambda share: share <= 1 / 4, formula=False, stage=2):
    """Both functions."""
    def collected(held, sizes):
        def states(stage, ranks, rank):
            of_rank = (partial(held_in, "ours") if formula else held)(stage, ranks, rank)
            return sum(of_rank[kind] for kind in kinds)

        return {f"{ranks} ranks": of_all([states(stage, ranks, rank) / states(0, ranks, rank) for rank in looked_at(ranks)])
                for ranks in sizes}

    return collected, lambda found: {case: keeps(share) for case, share in found.items()}
