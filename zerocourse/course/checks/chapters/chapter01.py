"""The checks of chapter 01, memory math: formulas, so one process and no collectives."""

import math

from ....formulas.states import largest_params, model_states
from ....formulas.transformer import gpt2_params
from ....formulas.volumes import sent_bytes
from ..exercise import FORMULAS, exercise
from ..lab import Lab
from ..trace import Trial
from .moments import first_wrong_moment, moments

FLOATS = "`/` makes a float, and floats lose whole numbers above 2^53: round up with -(-a // b)."


# 1.1 ----------------------------------------------------------------------------------------------------------------

def count_parts(layers, width, vocab, block_size, tied, *, matrices=12, biases=9, norms=4, last_norm=2, positions=1,
                head=None, head_bias=0):
    """GPT-2's parameters, part by part; `norms` and `biases` of a block in units of the width."""
    head = (0 if tied else 1) if head is None else head
    block = matrices * width**2 + (biases + norms) * width
    return ((1 + head) * vocab * width + positions * block_size * width + layers * block + last_norm * width
            + head_bias * vocab)


def counts(**parts):
    return lambda *case: count_parts(*case, **parts)


@exercise("1.1", "Count GPT-2", minutes=10, difficulty=1, answer="count_params", own=gpt2_params,
          replaces=FORMULAS, sample=lambda random: (random.randint(1, 48), 64 * random.randint(1, 25),
                                                    random.randint(100, 60_000), 128 * random.randint(1, 16),
                                                    random.random() < .5))
def count_params(lab: Lab):
    cases = [(12, 768, 50257, 1024, True), (24, 1024, 50257, 1024, True), (4, 64, 256, 128, False),
             (1, 16, 1000, 32, False)]
    lab.compare(cases, count_parts, [
        ("You counted the head although it is tied: then it is the token table itself, one tensor with two uses.",
         counts(head=1)),
        ("You left out the head where it is not tied: then it is a second table of vocab x width.", counts(head=0)),
        ("You gave the head a bias: it has none.", counts(head_bias=1)),
        ("You left out the biases of the four linear layers of a block: 3C + C + 4C + C = 9C.", counts(biases=0)),
        ("You left out the LayerNorms: each has a weight and a bias of C, two in a block and one at the end.",
         counts(norms=0, last_norm=0)),
        ("You left out the last LayerNorm, which comes after all blocks: 2C.", counts(last_norm=0)),
        ("You gave a LayerNorm one vector: it has a weight and a bias, 2C together.", counts(norms=2, last_norm=1)),
        ("You left out the table of positions: block_size x C.", counts(positions=0)),
        ("You left out the projection after attention, the second C x C matrix: attention has 3C² and C².",
         counts(matrices=11, biases=8)),
    ])
    return "124,439,808 for GPT-2 small, and right for every other shape tried."


# 1.2 ----------------------------------------------------------------------------------------------------------------

def share_of(params, ranks):
    """What the rank that owns most owns of so many parameters."""
    return -(-params // ranks)


def float_share(params, ranks):
    return math.ceil(params / ranks)


def states(params, stage, ranks, *, sizes=(2, 2, 12), from_stage=(3, 2, 1), share=None):
    """Bytes a rank of parameters, gradients and optimizer; `from_stage`: the first stage that shards each."""
    share = share_of(params, ranks) if share is None else share
    return sum(size * (share if stage >= first else params) for size, first in zip(sizes, from_stage, strict=True))


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
    "1.2", "What a rank holds", minutes=15, difficulty=1, answer="state_bytes",
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
        "gradients whole": {"from_stage": (3, 4, 1)},
        "parameters whole": {"from_stage": (4, 2, 1)},
        "no master copy": {"sizes": (2, 2, 8)},
        "fp32 gradients": {"sizes": (2, 4, 12)},
        "plain fp32": {"sizes": (4, 4, 8)},
        "no gradients": {"sizes": (2, 0, 12)},
        "floats": {"rounded": float_share},
        "rounded down": {"rounded": lambda params, ranks: params // ranks},
        "rounded bytes": (rounded_together, rounded_apart),
    })
def state_bytes(params, stage, ranks, *, rounded=share_of, **how):
    """Bytes that a rank holds.

    gradients first: You divided the gradients first and the optimizer's states later: the largest part, 12 of 16 bytes,
        goes first, at stage 1.
    parameters at stage 2: You divided the parameters too: stage 2 keeps them whole on every rank.
    one early: You divided one kind too early: stage 1 divides the optimizer's states alone.
    gradients at stage 1: You divided the gradients at stage 1 already: it divides the optimizer's states alone.
    from stage 0: You divided one kind too early: stage 0 is data parallel, and divides nothing.
    always all: You divided everything at every stage: that is stage 3 alone, and stage 0 divides nothing.
    all from stage 1: You divided everything from stage 1 on: only stage 3 divides all three kinds.
    one late: You divided one kind too late: stage 1 divides the optimizer's states, stage 2 the gradients too, stage 3
        the parameters too.
    gradients whole: You left the gradients whole: stage 2 divides them too.
    parameters whole: You never divided the parameters: that is what stage 3 adds.
    no master copy: You left out the fp32 master copy of the parameters: the optimizer holds 4 + 4 + 4 = 12 bytes a
        parameter.
    fp32 gradients: You counted the gradients in fp32: in this convention they are fp16, 2 bytes.
    plain fp32: You counted plain fp32 training, 4 + 4 + 8: mixed precision has the same sum and another split, 2 + 2 +
        12.
    no gradients: You left out the gradients.
    floats: `/` makes a float, and floats lose whole numbers above 2^53: round up with -(-a // b).
    rounded down: You rounded a share down: four ranks that own 400 of 1601 parameters each leave one to nobody. Round
        up.
    rounded bytes: You rounded the bytes: it is the parameters that are shared out, so round a rank's share of them up
        to a whole number first, and then multiply by bytes.
    right: the paper's 120, 31.4, 16.6 and 1.88 GB, and shares that do not divide evenly.
    """
    return states(params, stage, ranks, share=rounded(params, ranks), **how)


# 1.3 ----------------------------------------------------------------------------------------------------------------

def largest(card_bytes, stage, ranks, share=share_of):
    """The most parameters that fit, by bisection: slow to read, hard to get wrong."""
    def needs(params):
        return states(params, stage, ranks, share=share(params, ranks))

    low, high = 0, card_bytes * ranks
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if needs(middle) <= card_bytes else (low, middle - 1)
    return low


def by_formula(card_bytes, stage, ranks):
    """With the share not rounded."""
    whole, shared = per_parameter(stage)
    return card_bytes * ranks // (whole * ranks + shared)


def at_stage(other):
    """What fits at another stage, by the formula and with shares that are whole numbers."""
    return [lambda card, stage, ranks, fits=fits: fits(card, other(stage), ranks) for fits in (by_formula, largest)]


@exercise("1.3", "The largest model", minutes=20, difficulty=2, answer="largest_model", own=largest_params,
          replaces=FORMULAS, sample=lambda random: (random.randint(16, 10**random.randint(2, 12)), random.randint(0, 3),
                                                    random.randint(1, 100)))
def largest_model(lab: Lab):
    even = [(states(params * ranks, stage, ranks), stage, ranks) for params in (1, 50, 10**9) for stage in range(4)
            for ranks in (1, 2, 8)]
    lab.compare(even, largest, [
        ("You divided all 16 bytes among the ranks at every stage: that is stage 3; below it a part of each parameter "
         "stays whole on every rank.", lambda card, stage, ranks: card * ranks // 16,
         lambda card, stage, ranks: card // 16 * ranks),
        ("You took one rank's card for the whole: with more ranks more fits, since they share the load.",
         lambda card, stage, ranks: card // 16),
        ("You multiplied what fits on one card by the number of ranks at every stage but 0: only what is shared out "
         "grows with the ranks.", lambda card, stage, ranks: card // 16 * (ranks if stage else 1)),
        ("You divided the whole part by the ranks and left the shared part whole: it is the other way round.",
         lambda card, stage, ranks: card * ranks // (per_parameter(stage)[1] * ranks + per_parameter(stage)[0])),
        ("You are one stage too far: stage 1 shares the 12 bytes of the optimizer, stage 2 also the 2 of the gradient, "
         "stage 3 all 16.", *at_stage(lambda stage: min(stage + 1, 3))),
        ("You are one stage behind: stage 1 shares the 12 bytes of the optimizer, stage 2 also the 2 of the gradient, "
         "stage 3 all 16.", *at_stage(lambda stage: max(stage - 1, 0))),
        ("You stopped one short: a model that fills the card to the last byte fits.",
         lambda card, stage, ranks: largest(card - 1, stage, ranks)),
        ("You are off by one: one parameter more fits.", lambda card, stage, ranks: largest(card, stage, ranks) - 1),
        ("You counted a card's bytes as if a parameter took 12: the master copy, 4 bytes in fp32, belongs to it.",
         lambda card, stage, ranks: card * ranks // ((12, 4, 2, 0)[stage] * ranks + (0, 8, 10, 12)[stage])),
    ], exact=False)
    ragged = [(card, stage, ranks) for card in (15, 100, 1001, 24 * 10**9, 24 * 2**30) for stage in range(4)
              for ranks in (3, 7)] + [(10**17 + 3, 3, 3)]
    lab.compare(ragged, largest, [
        (FLOATS, lambda *case: largest(*case, share=float_share)),
        ("You counted only whole rows of parameters, a multiple of the number of ranks: some ranks may own one more "
         "than others.",
         lambda card, stage, ranks: card // (per_parameter(stage)[0] * ranks + per_parameter(stage)[1]) * ranks),
        ("Shares are whole numbers: the rank that owns most holds ceil(P / N) parameters, not P / N, and it is its "
         "card that overflows.", by_formula),
        ("You divided with / and rounded: a float has 53 bits, too few for these numbers. Stay with whole numbers.",
         lambda card, stage, ranks: int(card / (per_parameter(stage)[0] + per_parameter(stage)[1] / ranks))),
    ], tell=_fits_or_not)
    return "to the last parameter: one more would not fit."


def _fits_or_not(case, got, right) -> str | None:
    card, stage, ranks = case
    if type(got) is not int or got < 0:
        return None
    needs, more = states(got, stage, ranks), states(got + 1, stage, ranks)
    if needs > card:
        return f"it returned {got:_}, which needs {needs:_} bytes on a rank and does not fit; {right:_} is right"
    return f"it returned {got:_}, and one more needs {more:_} bytes and fits too; {right:_} is right"


# 1.4 ----------------------------------------------------------------------------------------------------------------

def passes(stage, accumulation):
    return (2, 2, accumulation + 1, 3 * accumulation)[stage]


def sends(passes=passes, share=share_of):
    """Bytes sent, if all parameters or gradients travel so many times."""
    return lambda params, stage, ranks, accumulation: (2 * passes(stage, accumulation) * (ranks - 1)
                                                       * share(params, ranks))


@exercise("1.4", "What a rank sends", minutes=20, difficulty=2, answer="step_traffic", own=sent_bytes,
          replaces=FORMULAS, sample=lambda random: (random.randint(1, 10**random.randint(1, 12)), random.randint(0, 3),
                                                    random.randint(1, 1024), random.randint(1, 16)))
def step_traffic(lab: Lab):
    even = [(1600, stage, ranks, accumulation) for accumulation in (1, 3) for stage in range(4) for ranks in (2, 4, 1)]
    lab.compare(even, sends(), [
        ("You counted an all-reduce once: it is a reduce-scatter and an all-gather, two passes.",
         sends(lambda stage, G: (1, 2, G + 1, 3 * G)[stage])),
        ("You left out the gather of the updated parameters at stages 1 and 2: each rank has updated only its own "
         "share.",
         sends(lambda stage, G: (2, 1, G, 3 * G)[stage])),
        ("You gathered the parameters once at stage 3: they are freed after the forward, so the backward gathers them "
         "again.", sends(lambda stage, G: (2, 2, G + 1, 2 * G)[stage])),
        ("At stage 1 you all-reduced the gradients and then gathered the parameters: a reduce-scatter is enough, since "
         "a rank needs only its own share of the gradients.", sends(lambda stage, G: (2, 3, G + 1, 3 * G)[stage])),
        ("You all-reduced the gradients at stages 1 and 2: a reduce-scatter, half of that, is enough, since a rank "
         "needs only its own share.", sends(lambda stage, G: (2, 3, 2 * G + 1, 3 * G)[stage])),
        ("You left out accumulation at stages 2 and 3: with nowhere to add up a whole gradient, each micro-batch's is "
         "reduced at once, and stage 3 also gathers for each.", sends(lambda stage, G: (2, 2, 2, 3)[stage])),
        ("You left out accumulation at stage 2: with nowhere to add up a whole gradient, each micro-batch's is reduced "
         "at once.", sends(lambda stage, G: (2, 2, 2, 3 * G)[stage])),
        ("You left out accumulation at stage 3: it gathers twice and reduces once for each micro-batch.",
         sends(lambda stage, G: (2, 2, G + 1, 3)[stage])),
        ("You multiplied every stage by the accumulation: stages 0 and 1 add up locally and reduce once, and stage 2 "
         "gathers its parameters once, after the step.", sends(lambda stage, G: (2, 2, 2, 3)[stage] * G)),
        ("You gathered the parameters of stage 2 after every micro-batch: they change only with the optimizer's step.",
         sends(lambda stage, G: (2, 2, 2 * G, 3 * G)[stage])),
        ("You counted elements: in fp16 each is 2 bytes.", lambda *case: sends()(*case) // 2),
        ("You let a rank send everything: its own share stays where it is, so a pass sends (N - 1) / N of it.",
         lambda params, stage, ranks, G: 2 * passes(stage, G) * params),
        ("You added up all ranks: what one rank sends is wanted.", lambda *case: sends()(*case) * case[2]),
        ("You counted one share a pass: a rank sends a share to each of the N - 1 others.",
         lambda params, stage, ranks, G: 2 * passes(stage, G) * params // ranks),
    ], exact=False)
    ragged = [(1601, stage, 4, 3) for stage in range(4)] + [(10, 3, 64, 1), (10**17 + 1, 0, 3, 1)]
    lab.compare(even + ragged, sends(), [
        (FLOATS, sends(share=float_share)),
        ("A share is a whole number of parameters, and the padding of the last one travels too: round params / ranks up "
         "before you multiply.",
         lambda params, stage, ranks, G: int(2 * passes(stage, G) * (ranks - 1) * params // ranks),
         lambda params, stage, ranks, G: 2 * passes(stage, G) * (ranks - 1) * (params // ranks)),
    ])
    return "2Ψ, 2Ψ, (G + 1)Ψ and 3GΨ elements, times (N - 1) / N, padding included."


# 1.5 ----------------------------------------------------------------------------------------------------------------

def _sample_units(random):
    return ([(random.randint(1, 10**6), random.randint(0, 10**7)) for _ in range(random.randint(1, 8))],
            random.randint(0, 3), random.randint(1, 9))


@exercise("1.5", "A step, moment by moment", minutes=60, difficulty=3, answer="timeline", replaces=FORMULAS,
          sample=_sample_units)
def timeline(lab: Lab):
    even = [([(800, 5000), (1600, 7000), (400, 300)], stage, ranks) for stage in range(4) for ranks in (2, 4, 1)]
    lab.compare([*even, ([(64, 100)], 3, 2)], moments, exact=False, tell=first_wrong_moment)
    ragged = [([(801, 5001), (4, 7), (1, 3)], stage, ranks) for stage in (1, 2, 3) for ranks in (2, 3)]
    lab.compare(even + ragged, moments, tell=first_wrong_moment)
    return "every moment of every stage. The most is held in the backward, while activations are still there."
