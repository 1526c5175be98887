"""The check of 10.3: the rules by which a loss scale rises and falls."""

from ....checks import Trial, Wrong, exercise
from ....checks.words import a

CASES = [("....", 8.0, 2, 1, 1.0), ("x..x.", 8.0, 2, 1, 1.0), (".x..x...", 16.0, 3, 1, 1.0), ("xxx", 4.0, 2, 1, 3.0),
         (".x..", 16.0, 3, 2, 1.0), ("x.x..", 16.0, 4, 2, 1.0), ("xxx....x", 64.0, 2, 2, 1.0),
         ("xx.xx", 64.0, 9, 3, 1.0), ("xxxx..xx", 64.0, 2, 3, 1.0)]


def scale_by_step(answer, steps, scale, window, hysteresis, minimum):
    """What the state is after each step of a script."""
    state, states = (scale, 0, hysteresis), []
    for step in steps:
        state = answer(*state, step == "x", window, hysteresis, minimum)
        if not isinstance(state, (tuple, list)) or len(state) != 3:
            raise Wrong(f"it returned {a(state)}, and a tuple (scale, good, left) is wanted")
        states.append(state)
    return {name: [state[place] for state in states] for place, name in enumerate(("scales", "good", "left"))}


@exercise("10.3", "The life of a loss scale", minutes=20, difficulty=2, timeout=10,
          replaces=("zerocourse.precision.loss_scaler:DynamicLossScaler.update",),
          trials=[Trial(CASES, scale_by_step)],
          mistakes={
              "good kept": {"interrupted": lambda good, halved: good},
              "tolerated is good": {"interrupted": lambda good, halved: 0 if halved else good + 1},
              "tolerated is nothing": {"interrupted": lambda good, halved: 0 if halved else good},
              "rises on": {"after_rise": lambda good: good},
              "counts to multiples": {"after_rise": lambda good: good, "rises": lambda good, window: good % window == 0},
              "from 1": {"after_rise": lambda good: 1},
              "late": {"rises": lambda good, window: good > window},
              "every good step": {"rises": lambda good, window: True},
              "below the minimum": {"least": lambda scale, minimum: scale},
              "not to the minimum": {"least": lambda scale, minimum: scale if scale >= minimum else 2 * scale},
              "no hysteresis": {"tolerates": lambda left: False},
              "one too many": {"tolerates": lambda left: left > 0},
              "never back": {"back": lambda left, hysteresis, rose: left},
              "back each step": {"back": lambda left, hysteresis, rose: hysteresis},
              "back when halved": {"left_when_halved": lambda left, hysteresis: hysteresis},
              "counted on": {"left_when_halved": lambda left, hysteresis: left - 1},
          })
def next_scale(scale, good, left, overflow, window, hysteresis, minimum, *, interrupted=lambda good, halved: 0,
               after_rise=lambda good: 0, rises=lambda good, window: good >= window, least=max,
               tolerates=lambda left: left > 1, back=lambda left, hysteresis, rose: hysteresis if rose else left,
               left_when_halved=lambda left, hysteresis: left):
    """One step further."""
    if overflow:
        if tolerates(left):
            return scale, interrupted(good, False), left - 1
        return least(scale / 2, minimum), interrupted(good, True), left_when_halved(left, hysteresis)
    good += 1
    if rose := rises(good, window):
        scale, good = 2 * scale, after_rise(good)
    return scale, good, back(left, hysteresis, rose)
