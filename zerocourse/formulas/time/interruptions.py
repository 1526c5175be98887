"""How often to save a run that is interrupted now and then. Formulas: no torch. All times are in seconds.

Source: J. W. Young, A first order approximation to the optimum checkpoint interval, Communications of the ACM 17(9),
1974. It is good as long as a save is much shorter than the mean time between two interruptions.
"""

import math

from ...errors import BadInput


def lost_share(interval: float, save_seconds: float, mean_seconds: float) -> float:
    """The share of the time that is lost when one saves every `interval` seconds of training: in saving, and in work
    that is done again after an interruption, which is half an interval on average.

    mean_seconds: the mean time between two interruptions of the whole run.
    """
    _positive(interval=interval, mean_seconds=mean_seconds)
    return save_seconds / interval + interval / (2 * mean_seconds)


def best_interval(save_seconds: float, mean_seconds: float) -> float:
    """The interval at which `lost_share` is least (Young's formula, the square root of 2 C M)."""
    _positive(save_seconds=save_seconds, mean_seconds=mean_seconds)
    return math.sqrt(2 * save_seconds * mean_seconds)


def mean_of_all(mean_seconds: float, parts: int) -> float:
    """The mean time between two interruptions of a run that every failure of one of its parts interrupts.

    mean_seconds: of one part alone; the parts fail independently.
    """
    _positive(mean_seconds=mean_seconds, parts=parts)
    return mean_seconds / parts


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise BadInput(f"{name} must be above 0, not {value}")
