"""The check of 24.5: where a policy ends that is rewarded, and pulled to a reference."""

import math

from ....checks import exercise

CASES = [([0.7, 0.2, 0.1], [0.0, 0.0, 1.0], 0.5), ([0.75, 0.25], [0.0, 1.0], 0.5), ([0.75, 0.25], [0.0, 1.0], 0.05),
         ([0.5, 0.5, 0.0], [0.0, 1.0, 9.0], 1.0),
         ([0.25] * 4, [1.0, 2.0, 3.0, 4.0], 2.0)]


@exercise(
    "24.5", "Pulled back", minutes=25, difficulty=2, answer="pulled_policy", cases=CASES,
    mistakes={
        "times the pull": {"scaled": lambda reward, pull: reward * pull},
        "reference forgotten": {"weigh": lambda chance: 1.0},
        "not normalised": {"whole": lambda weights: 1.0},
        "added": {"join": lambda chance, push: chance + push},
        "the pull alone": {"push": lambda scaled: 1.0},
        "rewards as they are": {"push": lambda scaled: scaled},
        "penalised": {"push": lambda scaled: math.exp(-scaled)},
    })
def policy_at_rest(reference, rewards, pull, *, scaled=lambda reward, pull: reward / pull, push=math.exp, weigh=lambda chance: chance,
                   join=lambda chance, push: chance * push, whole=sum):
    """A list of probabilities."""
    weights = [join(weigh(chance), push(scaled(reward, pull))) for chance, reward in zip(reference, rewards, strict=True)]
    return [weight / whole(weights) for weight in weights]
