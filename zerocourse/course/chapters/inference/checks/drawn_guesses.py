"""The check of 23.3: a guess that was drawn from one distribution, checked so that the result is drawn from another."""

import torch

from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.words import a

P = torch.tensor([0.5, 0.25, 0.25, 0.0])
DRAFTS = {"too often": torch.tensor([0.2, 0.5, 0.3, 0.0]), "alike": P, "never right": torch.tensor([0.0, 0.0, 0.0, 1.0]),
          "sure of one": torch.tensor([1.0, 0.0, 0.0, 0.0]), "flat": torch.full((4,), 0.25),
          "too rarely right": torch.tensor([0.2, 0.2, 0.1, 0.5])}


def checked_guess(answer, kind):
    """For each token that the draft may propose: from which number on it is rejected, and what is drawn then; and the whole distribution."""
    q, taken, rest = DRAFTS[kind], [], []
    p_given, q_given = P.clone(), q.clone()
    for guess in range(len(P)):
        if q[guess] == 0:
            continue
        made = [answer(p_given, q_given, guess, number / 100 + 0.005) for number in range(100)]
        if not all(isinstance(each, tuple) and len(each) == 2 for each in made):
            raise Wrong(f"it returned {a(made[0])}: return (is it accepted?, a distribution or None)", MISUSED)
        taken.append(sum(bool(each[0]) for each in made) / 100)
        refused = [each[1] for each in made if not each[0]]
        rest.append(torch.as_tensor(refused[0]).float() if refused else torch.zeros(len(P)))
    proposed = q[q > 0]
    result = torch.zeros(len(P))
    for guess, share, accepted, other in zip((q > 0).nonzero().flatten().tolist(), proposed.tolist(), taken, rest, strict=True):
        result[guess] += share * accepted
        result += share * (1 - accepted) * other
    never = [bool(answer(p_given, q_given, guess, 0.0)[0]) for guess in range(len(P)) if q[guess] > 0 and not P[guess]]
    return {"changed": not (torch.equal(p_given, P) and torch.equal(q_given, q)), "accepted": taken, "never": never,
            "sums": [round(float(each.sum()), 3) for each in rest], "rest": torch.stack(rest), "result": result}


@exercise(
    "23.3", "A guess that is drawn", minutes=30, difficulty=3, trials=[Trial([(kind,) for kind in DRAFTS], checked_guess, close=1e-2)],
    mistakes={
        "always": {"share": lambda p, q: 1.0},
        "by p alone": {"share": lambda p, q: p},
        "turned": {"share": lambda p, q: min(1.0, q / p if p else 1.0)},
        "from p": {"rest_of": lambda p, q: p},
        "not normalised": {"normalise": False},
        "differences": {"rest_of": lambda p, q: (p - q).abs()},
        "from q": {"rest_of": lambda p, q: q},
    })
def verified(p, q, guess, number, *, share=lambda p, q: min(1.0, p / q), rest_of=lambda p, q: (p - q).clamp(min=0), normalise=True):
    """(is it accepted?, the distribution to draw from otherwise)."""
    if number < share(float(p[guess]), float(q[guess])):
        return True, None
    rest = rest_of(p, q)
    return False, rest / rest.sum() if normalise else rest
