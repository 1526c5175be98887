"""The check of 24.5: where a policy ends that is rewarded, and pulled to a reference."""

import math

from ....checks import Trial, exercise

CASES = [([0.7, 0.2, 0.1], [0.0, 0.0, 1.0], 0.5), ([0.75, 0.25], [0.0, 1.0], 0.5), ([0.75, 0.25], [0.0, 1.0], 0.05),
         ([0.5, 0.5, 0.0], [0.0, 1.0, 9.0], 1.0),
         ([0.25] * 4, [1.0, 2.0, 3.0, 4.0], 2.0), ([0.25, 0.75], [1001.0, 1000.0], 1.0),
         ([0.5, 0.5], [1.0, 0.0], 1.0), ([0.25, 0.25, 0.5], [0.0, 1.0, 1.3], 0.02)]


@exercise(
    "24.5", "Pulled back", minutes=25, difficulty=2, answer="pulled_policy", trials=[Trial(CASES, close=1e-4)],
    mistakes={
        "times the pull": {"scaled": lambda reward, pull: reward * pull},
        "reference forgotten": {"weigh": lambda chance: 1.0},
        "not normalised": {"whole": lambda weights: 1.0, "push": math.exp},
        "too large for a float": {"push": math.exp},
        "added": {"join": lambda chance, push: chance + push, "push": math.exp},
        "the pull alone": {"push": lambda scaled: 1.0},
        "rewards as they are": {"push": lambda scaled: scaled},
        "penalised": {"push": lambda scaled: math.exp(-scaled)},
    })
def policy_at_rest(reference, rewards, pull, *, scaled=lambda reward, pull: reward / pull, push=None, weigh=lambda chance: chance,
                   join=lambda chance, push: chance * push, whole=sum):
    """A list of probabilities."""
    pushes = [scaled(reward, pull) for reward in rewards]
    weights = [join(weigh(chance), push(each) if push else math.exp(each - max(pushes))) for chance, each in zip(reference, pushes, strict=True)]
    return [weight / whole(weights) for weight in weights]
