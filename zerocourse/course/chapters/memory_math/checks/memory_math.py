"""The checks of chapter 01, memory math: formulas, so one process and no collectives."""

import itertools
import math
import operator

from .....formulas.states import largest_params, model_states
from .....formulas.volumes import sent_bytes
from ....checks import FORMULAS, Trial, exercise

# 1.2 ----------------------------------------------------------------------------------------------------------------

def share_of(params, ranks):
    """What the rank that owns most owns of so many parameters."""
    return -(-params // ranks)


def float_share(params, ranks):
    return math.ceil(params / ranks)


def states(params, stage, ranks, *, sizes=(2, 2, 12), from_stage=(3, 2, 1), share=None, shards=operator.ge):
    """Bytes a rank of parameters, gradients and optimizer; `from_stage`: the first stage that shards each, and
    `shards(stage, first)`: does this one?"""
    share = share_of(params, ranks) if share is None else share
    return sum(size * (share if shards(stage, first) else params)
               for size, first in zip(sizes, from_stage, strict=True))


def per_parameter(stage):
    """Bytes that every rank holds of a parameter, and bytes that the ranks share."""
    whole = (16, 4, 2, 0)[stage]
    return whole, 16 - whole


def rounded_together(params, stage, ranks):
    whole, shared = per_parameter(stage)
    return whole * params + -(-shared * params // ranks)


def rounded_apart(params, stage, ranks):
    return sum(-(-size * params // ranks) if stage >= first else size * params
               for size, first in ((2, 3), (2, 2), (12, 1)))


@exercise(
    "1.2", "What a rank holds", minutes=15, difficulty=1,
    own=lambda params, stage, ranks: model_states(params, stage, ranks).total_bytes, replaces=FORMULAS,
    sample=lambda random: (random.randint(1, 10**random.randint(1, 12)), random.randint(0, 3), random.randint(1, 1024)),
    cases=[(7_500_000_000, stage, 64) for stage in range(4)] + [(1600, stage, ranks) for stage in range(4)
                                                                for ranks in (1, 2, 4)],
    trials=[Trial([(1601, stage, 4) for stage in (1, 2, 3)] + [(10, 3, 64), (10**18 + 1, 1, 3)])],  # no even shares
    mistakes={
        "gradients first": {"from_stage": (3, 1, 2)},
        "parameters at stage 2": {"from_stage": (2, 2, 1)},
        "one early": {"from_stage": (2, 1, 1)},
        "gradients at stage 1": {"from_stage": (3, 1, 1)},
        "from stage 0": {"from_stage": (2, 1, 0)},
        "always all": {"from_stage": (0, 0, 0)},
        "all from stage 1": {"from_stage": (1, 1, 1)},
        "one late": {"from_stage": (4, 3, 2)},
        "one kind a stage": {"shards": operator.eq},
        "gradients whole": {"from_stage": (3, 4, 1)},
        "parameters whole": {"from_stage": (4, 2, 1)},
        "no master copy": {"sizes": (2, 2, 8)},
        "fp32 gradients": {"sizes": (2, 4, 12)},
        "plain fp32": {"sizes": (4, 4, 8)},
        "no gradients": {"sizes": (2, 0, 12)},
        "floats": {"rounded": float_share},
        "rounded down": {"rounded": lambda params, ranks: params // ranks},
        "one more": {"rounded": lambda params, ranks: params // ranks + 1},
        "rounded bytes": (rounded_together, rounded_apart),
    })
def state_bytes(params, stage, ranks, *, rounded=share_of, **how):
    """Bytes that a rank holds."""
    return states(params, stage, ranks, share=rounded(params, ranks), **how)


# 1.3 ----------------------------------------------------------------------------------------------------------------

def by_formula(card_bytes, stage, ranks):
    """With the share not rounded."""
    whole, shared = per_parameter(stage)
    return card_bytes * ranks // (whole * ranks + shared)


def with_floats(card_bytes, stage, ranks):
    whole, shared = per_parameter(stage)
    return card_bytes / (whole + shared / ranks)


def fits_or_not(case, got, want):
    card, stage, ranks = case
    if type(got) is not int or got < 0:
        return None
    needs, more = states(got, stage, ranks), states(got + 1, stage, ranks)
    return "too large" if needs > card else "too small", {"needs": needs, "more": more}


@exercise(
    "1.3", "The largest model", minutes=20, difficulty=2, own=largest_params,
    replaces=FORMULAS, timeout=4,
    sample=lambda random: (random.randint(16, 10**random.randint(2, 12)), random.randint(0, 3), random.randint(1, 100)),
    cases=[(states(params * ranks, stage, ranks), stage, ranks) for params in (1, 50, 10**9) for stage in range(4)
           for ranks in (1, 2, 8)] + [(16, 3, 64)],  # every card is full
    trials=[Trial([*((card, stage, ranks) for card in (15, 100, 1001, 24 * 10**9, 24 * 2**30) for stage in range(4)
                     for ranks in (3, 7)), (10**16 + 2, 3, 7), (10**17 + 3, 3, 3)],
                  words=dict.fromkeys(("returned", "exactly"), fits_or_not))],
    mistakes={
        "always stage 3": (lambda card, stage, ranks: card * ranks // 16,
                           lambda card, stage, ranks: card // 16 * ranks),
        "one card": lambda card, stage, ranks: card // 16,
        "times ranks": lambda card, stage, ranks: card // 16 * (ranks if stage else 1),
        "upside down": lambda card, stage, ranks: card * ranks // (per_parameter(stage)[1] * ranks
                                                                   + per_parameter(stage)[0]),
        "stage too far": ({"at": lambda stage: min(stage + 1, 3)},
                          lambda card, stage, ranks: by_formula(card, min(stage + 1, 3), ranks)),
        "stage behind": ({"at": lambda stage: max(stage - 1, 0)},
                         lambda card, stage, ranks: by_formula(card, max(stage - 1, 0), ranks)),
        "gradients first": {"from_stage": (3, 1, 2)},
        "one short": {"fits": lambda needs, card: needs < card},
        "one less": {"more": -1},
        "as many as bytes": {"most": lambda card, ranks: card},
        "2 bytes each": {"most": lambda card, ranks: card // 2},
        "one too many": {"more": 1},
        "no master copy": (lambda card, stage, ranks: card * ranks // ((12, 4, 2, 0)[stage] * ranks
                                                                       + (0, 8, 10, 12)[stage]), {"sizes": (2, 2, 8)}),
        "fp32 gradients": {"sizes": (2, 4, 12)},
        "floats": {"rounded": float_share},
        "whole rows": lambda card, stage, ranks: card // (per_parameter(stage)[0] * ranks
                                                          + per_parameter(stage)[1]) * ranks,
        "shares not whole": by_formula,
        "divided with /": (with_floats, lambda *case: int(with_floats(*case))),
        "rounded down": {"rounded": lambda params, ranks: params // ranks},
        "hung": lambda card, stage, ranks: next(params for params in itertools.count()
                                                if states(params + 1, stage, ranks) > card),
    })
def largest_model(card_bytes, stage, ranks, *, rounded=share_of, fits=lambda needs, card: needs <= card, more=0,
                  most=lambda card, ranks: card * ranks, at=lambda stage: stage, **how):
    """The most parameters that fit, by bisection: slow to read, hard to get wrong."""
    low, high = 0, most(card_bytes, ranks)
    while low < high:
        middle = (low + high + 1) // 2
        fitting = fits(states(middle, at(stage), ranks, share=rounded(middle, ranks), **how), card_bytes)
        low, high = (middle, high) if fitting else (low, middle - 1)
    return low + more


# 1.4 ----------------------------------------------------------------------------------------------------------------

@exercise(
    "1.4", "What a rank sends", minutes=20, difficulty=2, own=sent_bytes, replaces=FORMULAS,
    sample=lambda random: (random.randint(1, 10**random.randint(1, 12)), random.randint(0, 3), random.randint(1, 1024),
                           random.randint(1, 16)),
    cases=[(1600, stage, ranks, accumulation) for accumulation in (1, 3) for stage in range(4) for ranks in (2, 4, 1)],
    trials=[Trial([*((1601, stage, 4, 3) for stage in range(4)), (10, 3, 64, 1), (10**17 + 1, 0, 3, 1)])],
    mistakes={
        "all-reduce once": {"passes": lambda G: (1, 2, G + 1, 3 * G)},
        "no gather": {"passes": lambda G: (2, 1, G, 3 * G)},
        "gathered once": {"passes": lambda G: (2, 2, G + 1, 2 * G)},
        "reduced once": {"passes": lambda G: (2, 2, G + 1, 2 * G + 1)},
        "all-reduce at stage 1": {"passes": lambda G: (2, 3, G + 1, 3 * G)},
        "all-reduce at stages 1 and 2": {"passes": lambda G: (2, 3, 2 * G + 1, 3 * G)},
        "all-reduce at stage 3": {"passes": lambda G: (2, 2, G + 1, 4 * G)},
        "no accumulation": {"passes": lambda G: (2, 2, 2, 3)},
        "no accumulation at stage 2": {"passes": lambda G: (2, 2, 2, 3 * G)},
        "no accumulation at stage 3": {"passes": lambda G: (2, 2, G + 1, 3)},
        "accumulation everywhere": {"passes": lambda G: (2 * G, 2 * G, 2 * G, 3 * G)},
        "accumulation below stage 2": ({"passes": lambda G: (2, G + 1, G + 1, 3 * G)},
                                       {"passes": lambda G: (2 * G, 2, G + 1, 3 * G)},
                                       {"passes": lambda G: (2 * G, G + 1, G + 1, 3 * G)}),
        "gathered each time": {"passes": lambda G: (2, 2, 2 * G, 3 * G)},
        "elements": {"nbytes": 1},
        "twice": {"nbytes": 4},
        "everything": {"shares": lambda ranks: ranks},
        "all ranks": {"shares": lambda ranks: ranks * (ranks - 1)},
        "one share": {"shares": lambda ranks: 1},
        "floats": {"rounded": float_share},
        "shares not whole": ({"rounded": lambda params, ranks: params // ranks},
                             {"rounded": lambda params, ranks: params / ranks},
                             {"rounded": lambda params, ranks: -(-2 * params // ranks), "nbytes": 1},
                             {"rounded": lambda params, ranks: -(-params * (ranks - 1) // ranks),
                              "shares": lambda ranks: 1},
                             lambda params, stage, ranks, G: step_traffic(
                                 params, stage, 1, G, shares=lambda _: ranks - 1) // ranks),
    })
def step_traffic(params, stage, ranks, accumulation, *, passes=lambda G: (2, 2, G + 1, 3 * G), rounded=share_of,
                 shares=lambda ranks: ranks - 1, nbytes=2):
    """Bytes sent. passes: of each stage, how often all parameters or gradients travel."""
    return nbytes * passes(accumulation)[stage] * shares(ranks) * rounded(params, ranks)
