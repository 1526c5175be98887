"""The check of 14.3: a delay queue of length one."""

from ....checks import Trial, exercise

RATES = [0.5, 0.25, 0.125, 0.5, 0.25]


def gradient(x, k):
    """Of batch k at x: exact in binary."""
    return 0.5 * x + (3 - 2 * k)  # the last one, which waits, is negative


def steps(answer, after):
    """Five steps, of which the first `after` are not delayed."""
    asked = []

    def counted(x, k):
        asked.append(k)
        return gradient(x, k)

    values = answer(4.0, counted, list(RATES), after)
    return {"asked": asked, "during": values[:-1], "saved": values[-1]}


@exercise(
    "14.3", "A delay queue of length one", minutes=25, difficulty=2,
    trials=[Trial([(0,), (2,), (5,)], steps, close=1e-9)],
    mistakes={
        "not delayed": {"delay": 0},
        "two steps late": {"delay": 2},
        "no flush": {"flush": False},
        "no warm-up": {"warm": lambda after: 0},
        "warm-up twice": {"again": True},
        "first at once": {"warm": lambda after: after + 1 if after < 5 else after, "again": True},
        "one step more": {"warm": lambda after: after + 1 if after < 5 else after},
        "today's rate": {"rate": lambda made, now: now},
        "at the new x": {"fresh": True},
    })
def delayed_steps(x, gradient, rates, after, *, delay=1, flush=True, warm=lambda after: after, again=False,
                  rate=lambda made, now: made, fresh=False):
    """x after each step, and at last after the flush."""
    waiting, values = [], []
    for k, now in enumerate(rates):
        delays = k >= warm(after)
        if delays and fresh and waiting:
            old, made = waiting.pop(0)
            x = x - rate(made, now) * old
        new = gradient(x, k)
        if not delays:
            x = x - now * new
            if again and k == warm(after) - 1 and k + 1 < len(rates):
                waiting.append((new, now))
        else:
            waiting.append((new, now))
            if len(waiting) > delay and not fresh:
                old, made = waiting.pop(0)
                x = x - rate(made, now) * old
        values.append(x)
    for old, made in waiting if flush else ():
        x = x - rate(made, rates[-1]) * old
    return [*values, x]
