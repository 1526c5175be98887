"""The checks of 15.1 and 15.2: how fast a tier must be, and what belongs on which."""

from .....formulas.time import efficiency as formulas
from ....checks import exercise

# 15.1 ---------------------------------------------------------------------------------------------------------------

def own_bandwidth(kind, tokens, peak, share):
    intensity_of = formulas.intensity_of_parameters if kind == "parameters" else formulas.intensity_of_states
    return formulas.bandwidth_needed(intensity_of(tokens), share, peak)


@exercise(
    "15.1", "How fast must it be?", minutes=10, difficulty=1, own=own_bandwidth,
    replaces=("zerocourse.formulas.time.efficiency:*",),
    sample=lambda random: (random.choice(("parameters", "states")), random.randint(1, 1 << 16),
                           random.uniform(1e12, 1e15), random.uniform(0.05, 0.95)),
    cases=[("parameters", 1024, 70e12, 0.5), ("states", 2048, 70e12, 0.9), ("parameters", 4096, 312e12, 0.8),
           ("states", 65536, 990e12, 0.75), ("states", 1022, 70e12, 0.5)],
    mistakes={
        "no peak": {"odds": lambda share: share},
        "odds turned over": {"odds": lambda share: (1 - share) / share},
        "one minus": {"odds": lambda share: 1 / (1 - share)},
        "the same for states": {"states": 1},
        "four times": {"states": 4},
        "whole tokens": {"rounds": int},
        "gigabytes": {"unit": 1e9},
        "tokens times": {"over": lambda intensity: 1 / intensity},
    })
def bandwidth_for(kind, tokens, peak, share, *, odds=lambda share: share / (1 - share), states=1 / 4, unit=1, rounds=float,
                  over=lambda intensity: intensity):
    """Bytes per second."""
    intensity = rounds(tokens * (1 if kind == "parameters" else states))
    return peak * odds(share) / over(intensity) / unit


# 15.2 ---------------------------------------------------------------------------------------------------------------

MACHINES = [(10**9, 1, 16e9, 0, 0), (10**9, 1, 16e9 - 1, 64e9, 1e12), (10**9, 1, 2e9, 14e9, 0), (10**9, 1, 3e9, 15e9, 0),
            (10**9, 1, 2e9, 14e9 - 1, 12e9), (10**9, 1, 1.5e9, 16e9, 1e12), (10**9, 1, 1.5e9, 15e9, 14e9),
            (10**9, 1, 1.5e9, 15e9, 13e9), (10**9, 1, 2e9, 1e9, 1e12), (8 * 10**9, 8, 3e9, 14e9, 1e12),
            (8 * 10**9, 8, 3e9, 13e9, 12e9), (8 * 10**9, 8, 17e9, 0, 0), (10**9, 1, 3e9, 2e9, 13e9), (10**9, 1, 3e9, 3e9, 13e9),
            (10**9 + 1, 2, 8e9 + 8, 0, 0), (3, 2, 16, 0, 0), (3, 2, 24, 0, 0),
            (10**9, 1, 1.5e9, 17e9, 1e12), (10**9, 1, 1.5e9, 3e9, 17e9), (10**9, 1, 1.5e9, 15e9, 15e9)]

BOUNDS = [(0, "device"), (2, "host"), (3, "device"), (3, "host"), (4, "disk")]  # rows and tiers that one may compare wrongly


@exercise(
    "15.2", "Which tier for what?", minutes=20, difficulty=2, cases=MACHINES,
    mistakes={
        "all ranks": {"of": lambda params, ranks: params},
        "gradients forgotten": tuple({"gradients": of_rows} for of_rows in (
            (0,) * 5, (2, 0, 0, 2, 2), (2, 2, 2, 0, 0), (2, 2, 2, 2, 0))),
        "averages alone": {"states": 8},
        "gradients on the device": tuple({"gradients_at": lambda number, rows=rows: "device" if number in rows else "host"}
                                         for rows in (range(5), [1], [3], [1, 3])),
        "gradients on the disk": {"gradients_at": lambda number: "disk"},
        "turned round": {"told": lambda optimizer, parameters: (parameters, optimizer)},
        "disk first": {"order": (0, 3, 4, 1, 2)},
        "never both on the host": {"order": (0, 1, 3, 4)},
        "never both on the disk": {"order": (0, 1, 2, 3)},
        "always offloads": {"order": (1, 2, 3, 4)},
        "less than": ({"exact": lambda number, tier: False}, {"exact": lambda number, tier: False, "empty": False},
                      *({"exact": lambda number, tier, one=one: (number, tier) != one} for one in BOUNDS)),
        "rounded up": {"of": lambda params, ranks: -(-params // ranks)},
        "device alone": {"tiers": 1},
        "disk is endless": {"tiers": 2},
    })
def places(params, ranks, device, host, disk, *, of=lambda params, ranks: params / ranks, states=12, gradients=(2,) * 5,
           gradients_at=lambda number: "host", order=(0, 1, 2, 3, 4), exact=lambda number, tier: True, tiers=3, empty=True,
           told=lambda optimizer, parameters: (optimizer, parameters)):
    """The first arrangement that fits."""
    each, room = of(params, ranks), {"device": device, "host": host, "disk": disk}
    rows = [("device", "device"), ("host", "device"), ("host", "host"), ("disk", "device"), ("disk", "disk")]
    for number in order:
        optimizer, parameters = rows[number]
        need = dict.fromkeys(room, 0)
        need[optimizer] += states * each
        need[parameters] += 2 * each
        need["device" if optimizer == "device" else gradients_at(number)] += gradients[number] * each
        if all(need[tier] < room[tier] or need[tier] == room[tier] and exact(number, tier) or empty and not need[tier]
               for tier in list(room)[:tiers]):
            return told(*rows[number])
    return None
