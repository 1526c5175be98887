"""The checks of chapter 05, ZeRO-1: here 5.1 to 5.3, in which nothing or one number is sent; the others start ranks
with data of their own and train.
"""

import math

import torch

from ....layout.rankmap import Layout
from ..exercise import FORMULAS, exercise
from ..lab import Lab
from ..verdict import Wrong
from . import zero1_ops, zero1_optimizer  # noqa: F401  (5.4, 5.5 and 5.6 are there)
from .stage_runs import WatchedComm
from .stage_probe import bytes_under, near, same_calls

# 5.1 ----------------------------------------------------------------------------------------------------------------

def slices(numel, ranks):
    """Elements of a flat buffer that each rank owns, without padding."""
    size = -(-numel // ranks)
    return [max(0, min(numel, (rank + 1) * size) - rank * size) for rank in range(ranks)]


def by_rank(share=slices, each=8):
    """Bytes of each rank, if a buffer of n elements is shared out as `share(n, ranks)`."""
    return lambda rows, ranks: [each * sum(of_rank) for of_rank in zip(*(share(n, ranks) for n in rows), strict=True)]


def own_adam_bytes(rows, ranks):
    layouts = [Layout.build({"row": (numel,)}, ranks) for numel in rows]
    return [8 * sum(layout.real(rank) for layout in layouts) for rank in range(ranks)]


@exercise("5.1", "The optimizer's bytes, rank by rank", minutes=10, difficulty=1, answer="adam_bytes",
          own=own_adam_bytes, replaces=("zerocourse.layout.rankmap:Layout.build", *FORMULAS),
          sample=lambda random: ([random.randint(1, 10**random.randint(1, 6)) for _ in range(random.randint(1, 4))],
                                 random.randint(1, 9)))
def adam_bytes(lab: Lab):
    even = [([12], 4), ([800, 1600], 2), ([10**9], 8), ([30, 6], 3), ([7], 1)]
    lab.compare(even, by_rank(), [
        ("You counted one average: Adam keeps two a parameter, 4 bytes each.", by_rank(each=4)),
        ("You counted a master copy: this training is all in fp32, so the parameters themselves are what is updated.",
         by_rank(each=12)),
        ("You counted parameters and gradients too: only the optimizer's states are wanted.", by_rank(each=16)),
        ("You counted elements: each takes 4 bytes, and there are two averages.", by_rank(each=1)),
        ("You let every rank keep the states of all parameters: that is data parallel. A rank keeps those of its "
         "slice.",
         by_rank(lambda n, ranks: [n] * ranks)),
    ], exact=False)
    ragged = [([10], 4), ([5], 4), ([801, 1601], 2), ([3], 8), ([7, 7, 7], 3), ([7744], 3)]
    lab.compare(ragged, by_rank(), [
        ("You counted the padding: slices are equal, but the last one ends in padding, which is no parameter and has "
         "no states.", by_rank(lambda n, ranks: [-(-n // ranks)] * ranks)),
        ("You laid all buffers end to end and cut once: each buffer is cut by itself, so a rank owns a part of each.",
         lambda rows, ranks: by_rank()([sum(rows)], ranks)),
        ("You rounded a slice down and gave the rest to the last rank: slices are rounded up, so the last rank has "
         "less, not more.", by_rank(lambda n, ranks: [n // ranks] * (ranks - 1) + [n - (ranks - 1) * (n // ranks)])),
        ("You dealt the rest out one by one: slices are rounded up and cut from the front, so only the last ones are "
         "short.", by_rank(lambda n, ranks: [n // ranks + (rank < n % ranks) for rank in range(ranks)])),
        ("You rounded a slice down: then the last parameters belong to nobody.",
         by_rank(lambda n, ranks: [n // ranks] * ranks)),
        ("A rank owns at least nothing: where the parameters end before its slice begins, you count below 0.",
         by_rank(lambda n, ranks: [min(n, (rank + 1) * -(-n // ranks)) - rank * -(-n // ranks)
                                   for rank in range(ranks)])),
        ("You took all padding from the last rank: it may reach back over several slices, and no rank has less than "
         "nothing.", by_rank(lambda n, ranks: [-(-n // ranks)] * (ranks - 1) + [n - (ranks - 1) * -(-n // ranks)])),
    ])
    return "to the byte, also where slices end in padding and where a rank owns nothing."


# 5.2 ----------------------------------------------------------------------------------------------------------------

def clip_cases(world):
    """(what it shows, this rank's slices for each rank, max_norm)."""
    slices = [[torch.tensor([3.0, 4.0]), torch.tensor([12.0, -5.0])], [torch.tensor([8.0, -6.0]), torch.tensor([2.0])],
              [torch.tensor([-1.0, 2.0]), torch.tensor([7.0, 4.0])]][:world]
    return [("a gradient that is too long", slices, 6.5), ("a gradient that is short enough", slices, 1000.0),
            ("a last rank that owns nothing", [*slices[:-1], []], 6.5),
            ("a very small gradient that is too long", [[part * 1e-7 for part in mine] for mine in slices], 1e-6)]


def clip_on_a_rank(answer, case, world):
    _, slices, max_norm = clip_cases(world)[case]
    comm = WatchedComm()
    mine = [part.clone() for part in slices[comm.rank]]
    with same_calls("a rank whose list is empty takes part too, with 0"):
        norm = answer(list(mine), max_norm, comm)  # others hold the slices, and nobody its list
    try:
        norm = float(norm)
    except (TypeError, ValueError):
        raise Wrong(f"it returned {type(norm).__name__} {norm!r:.80}, and the norm is wanted, a tensor of one "
                    "number") from None
    return {"norm": norm, "slices": mine, "elements": comm.elements.total(), "control": comm.metadata}


@exercise("5.2", "The norm of a gradient in slices", minutes=15, difficulty=2, answer="clip_slices",
          replaces=("zerocourse.zero.ddp:*", "zerocourse.zero.ddp:DataParallel.grad_norm",
                    "zerocourse.zero.ddp:DataParallel.clip_grad_norm_"), timeout=15)
def clip_slices(lab: Lab):
    for world in (2, 3):
        for number, (what, slices, max_norm) in enumerate(clip_cases(world)):
            found = lab.run(clip_on_a_rank, number, world, world=world)
            _judge_clip(lab, found, f"{what}, on {world} ranks", slices, max_norm, world)
    return "one norm on all ranks, for one small number sent, and every slice scaled alike."


def _alike(got, want) -> bool:
    """Up to a part in 10,000, however small both are."""
    return got.shape == want.shape and torch.allclose(got, want, rtol=1e-4, atol=0)


def _judge_clip(lab, found, case, slices, max_norm, world):
    squares = [sum(part.square().sum().item() for part in mine) for mine in slices]
    lengths = [math.sqrt(square) for square in squares]
    norm = math.sqrt(sum(squares))
    sums = [sum(part.norm().item() for part in mine) for mine in slices]
    wrong_norms = [
        ("You measured this rank's slices only: each rank then scales by a factor of its own. Add up the squares of "
         "all ranks.", lengths),
        ("You added up norms: it is their squares that add up, and the root comes last.", [sum(lengths)] * world),
        ("You added up norms: it is their squares that add up, and the root comes last.", [sum(sums)] * world),
        ("You added up norms: it is their squares that add up, and the root comes last.",
         [math.sqrt(sum(x * x for x in sums))] * world),
        ("You took no root: these are the squares, added up.", [norm**2] * world),
        ("You took the mean over the ranks: the slices are parts of one gradient, so their squares add up.",
         [norm / math.sqrt(world)] * world),
        ("You took the mean over the ranks: the slices are parts of one gradient, so their squares add up.",
         [sum(lengths) / world] * world),
        ("You took the largest rank's norm: the slices are parts of one gradient, so their squares add up.",
         [max(lengths)] * world),
        ("You measured after scaling: the norm before is wanted.", [min(norm, max_norm)] * world),
    ]
    got = [each["norm"] for each in found]
    if not all(math.isclose(a, norm, rel_tol=1e-4) for a in got):
        why = next((why for why, model in wrong_norms
                    if all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(got, model, strict=True))), "")
        lab.wrong(f"{case}: the ranks returned {', '.join(f'{x:.4g}' for x in got)}, and the norm is {norm:.4g} on "
                  f"all. {why}".rstrip())
    factor = min(1.0, max_norm / (norm + 1e-6))
    for rank, each in enumerate(found):
        scaled = [[part * factor for part in mine] for mine in slices]
        if all(map(_alike, each["slices"], scaled[rank])):
            continue
        models = [
            ("You divided by the norm alone: the factor is max_norm / (norm + 1e-6), which is never infinite."
             if norm > max_norm else
             "You made a short gradient longer: scale only when the norm is above max_norm.",
             [part * max_norm / norm for part in slices[rank]]),
            ("You changed nothing: multiply in place, with mul_, since others hold the same slices.", slices[rank]),
            ("You scaled every slice by its own norm: the direction of the whole gradient changes. One factor for all.",
             [part * min(1.0, max_norm / part.norm()) for part in slices[rank]]),
            ("You cut off single numbers, as clamp_ does: the direction of the gradient changes. One factor for all.",
             [part.clamp(-max_norm, max_norm) for part in slices[rank]]),
            ("You scaled by this rank's own norm: one factor for all ranks.",
             [part * min(1.0, max_norm / lengths[rank]) for part in slices[rank]]),
        ]
        why = next((why for why, model in models
                    if all(map(_alike, each["slices"], model))), "")
        lab.wrong(f"{case}: afterwards rank {rank} has {[part.tolist() for part in each['slices']]}, and every slice "
                  f"times {factor:.4f} is right. {why}".rstrip())
    sent = max(each["elements"] for each in found)
    if sent:
        lab.wrong(f"{case}: the values are right, but a rank sent {sent} elements of gradients. You brought the slices "
                  "together: the sum of squares, one number a rank, is enough.")


# 5.3 ----------------------------------------------------------------------------------------------------------------

HOW = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 0.05, "weight_decay": 0.3}
STEPS = 4


def adamw_data():
    """Two rows, this rank's slice of each, and for each step the gradients of the slices."""
    seed = torch.Generator().manual_seed(5)
    rows = [torch.randn(7, generator=seed), torch.randn(4, generator=seed)]
    own = [slice(2, 5), slice(0, 2)]
    return rows, own, [[torch.randn(3, generator=seed), torch.randn(2, generator=seed)] for _ in range(STEPS)]


def adamw_model(*, l2=False, count=lambda step, number: step + 1, correct=True, eps_inside=False, after=False,
                decay=True, forget=False, swap=False):
    """Both rows after each step; the keywords are misunderstandings."""
    rows, own, gradients = adamw_data()
    lr, (beta1, beta2), eps, wd = HOW.values()
    beta1, beta2 = (beta2, beta1) if swap else (beta1, beta2)
    m, v = [torch.zeros(3), torch.zeros(2)], [torch.zeros(3), torch.zeros(2)]
    seen = []
    for step in range(STEPS):
        for i in range(2):
            p, g, t = rows[i][own[i]], gradients[step][i], count(step, i)
            if forget:
                m[i], v[i] = torch.zeros_like(p), torch.zeros_like(p)
            g = g + wd * p if l2 else g
            if decay and not (l2 or after):
                p.mul_(1 - lr * wd)
            m[i] = beta1 * m[i] + (1 - beta1) * g
            v[i] = beta2 * v[i] + (1 - beta2) * g * g
            m_hat, v_hat = (m[i] / (1 - beta1**t), v[i] / (1 - beta2**t)) if correct and t else (m[i], v[i])
            p.sub_(lr * m_hat / ((v_hat + eps).sqrt() if eps_inside else v_hat.sqrt() + eps))
            if decay and after and not l2:
                p.mul_(1 - lr * wd)
        seen.append([row.clone() for row in rows])
    return seen


def adamw_on_a_rank(answer):
    rows, own, gradients = adamw_data()
    state, seen, spoiled = {}, [], None
    mine = [row[part] for row, part in zip(rows, own, strict=True)]
    for step, of_step in enumerate(gradients):
        given = [gradient.clone() for gradient in of_step]
        answer(list(mine), given, state, *HOW.values())
        if spoiled is None and not all(map(torch.equal, given, of_step)):
            spoiled = step
        seen.append([row.clone() for row in rows])
    return {"seen": seen, "bytes": bytes_under(state, but=rows), "spoiled": spoiled}


@exercise("5.3", "AdamW on slices", minutes=25, difficulty=2, answer="adamw",
          replaces=("torch.optim:AdamW.step", "torch.optim:Adam.step", "torch.optim.adamw:adamw",
                    "torch.optim.adam:adam"))
def adamw(lab: Lab):
    found = lab.run(adamw_on_a_rank)[0]
    right, rows = adamw_model(), adamw_data()[0]

    def like(model):
        return all(near(a, b) for got, want in zip(found["seen"], model, strict=True)
                   for a, b in zip(got, want, strict=True))

    if not like(right):
        models = [
            ("You changed nothing: write into the slices, with mul_ and sub_, since a new tensor is not part of the "
             "buffer.",
             [rows] * STEPS),
            ("That is Adam with L2: the decay went into the gradient, and so into both averages. In AdamW it shrinks "
             "the parameter itself.", adamw_model(l2=True)),
            ("There is no weight decay in it: first p becomes p (1 - lr weight_decay).", adamw_model(decay=False)),
            ("You counted a step for each slice: one step of the optimizer is one step for all slices.",
             adamw_model(count=lambda step, number: 2 * step + number + 1)),
            ("You left out the bias correction: the averages begin at zero and are too small at first.",
             adamw_model(correct=False)),
            ("Your step count stays at 1, or the correction is the first step's: count on in `state`.",
             adamw_model(count=lambda step, number: 1)),
            ("You begin to count at 2: in the first step it is 1.", adamw_model(count=lambda step, number: step + 2)),
            ("You have eps under the root: it is added to the root of v.", adamw_model(eps_inside=True)),
            ("You decayed the new parameter: AdamW decays the old one, before the update.", adamw_model(after=True)),
            ("Your averages begin anew in every step: keep them in `state`.", adamw_model(forget=True)),
            ("Your averages begin anew in every step: keep them in `state`.",
             adamw_model(forget=True, count=lambda step, number: 1)),
            ("You exchanged the betas: the first belongs to the average of gradients, the second to that of squares.",
             adamw_model(swap=True)),
        ]
        why = next((why for why, model in models if like(model)), "")
        if not all(row.isfinite().all() for row in found["seen"][0]):  # near to no model
            why = "You begin to count at 0, and 1 - beta^0 is 0: in the first step it is 1."
        step = next(i for i in range(STEPS) if not all(map(near, found["seen"][i], right[i])))
        lab.wrong(f"after step {step + 1} the two buffers are {_short(found['seen'][step])}, and {_short(right[step])} "
                  f"are right. {why}".rstrip())
    if found["spoiled"] is not None:
        lab.wrong("the parameters are right, but the gradients changed: you wrote into them in place. Whoever logs "
                  "them or reads them again gets other numbers.")
    if found["bytes"] != 40:
        lab.wrong(f"the parameters are right, but after {STEPS} steps `state` holds {found['bytes']} bytes, and 40 are "
                  "right: two averages of fp32 for 3 + 2 elements. " + (
                      "It has less: what is kept elsewhere is lost when the slices are another model's."
                      if found["bytes"] < 40 else "You keep more than two averages, or averages longer than the "
                                                  "slices."))
    return "as torch's AdamW, four steps long, with 8 bytes an element of the slices and not one more."


def _short(rows) -> str:
    return " and ".join(str([round(value, 3) for value in row.tolist()]) for row in rows)
