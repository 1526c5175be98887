"""The check of 23.4: how many guesses a step should check, where guessing costs something, too."""

from numbers import Integral

from ....checks import Board, Trial, Wrong, exercise

MOST = 16
CASES = [(0.9, 0.05), (0.8, 0.05), (0.6, 0.05), (0.6, 0.3), (0.9, 0.3), (0.3, 0.4), (0.95, 0.0), (0.0, 0.1), (0.75, 0.12), (1.0, 0.2), (1.0, 2.0)]


def speed(right, cost, guesses):
    """Tokens for the time of a step. right: the chance of each guess, if those before it were right.   cost: of one guess, in steps."""
    tokens = sum(right**number for number in range(guesses + 1))
    return tokens / (1 + guesses * cost)


def chosen_guesses(answer, right, cost):
    guesses = answer(right, cost)
    if isinstance(guesses, bool) or not isinstance(guesses, Integral) or not 0 <= guesses <= MOST:
        raise Wrong(f"it returned {guesses!r}: a whole number from 0 to {MOST} is wanted")
    return {"speed": speed(right, cost, guesses), "_guesses": guesses}


BEST = sum(1 / max(speed(right, cost, guesses) for guesses in range(MOST + 1)) for right, cost in CASES)


@exercise(
    "23.4", "Beat this number: how many guesses?", minutes=25, difficulty=2, trials=[Trial(CASES, chosen_guesses, close=1e-6)],
    board=(Board("steps for a token of each case", lambda seen: sum(1 / case["speed"] for case in seen[0][0] if case.get("speed")), BEST, BEST,
                 "all numbers were tried", ("speed",)),),
    mistakes={
        "four": {"choose": lambda right, cost: 4},
        "none": {"choose": lambda right, cost: 0},
        "as many as there may be": {"choose": lambda right, cost: MOST},
        "cost forgotten": {"of": lambda right, cost, guesses: speed(right, 0.0, guesses)},
        "all or nothing": {"of": lambda right, cost, guesses: (1 + guesses * right**guesses) / (1 + guesses * cost)},
        "no extra token": {"of": lambda right, cost, guesses: sum(right**number for number in range(1, guesses + 1)) / (1 + guesses * cost)},
        "each by itself": {"of": lambda right, cost, guesses: (1 + guesses * right) / (1 + guesses * cost)},
    })
def best_guesses(right, cost, *, of=speed, choose=None):
    """The number with the highest speed."""
    return choose(right, cost) if choose else max(range(MOST + 1), key=lambda guesses: of(right, cost, guesses))
