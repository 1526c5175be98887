"""The checks of 15.1 and 15.2: how fast a tier must be, and what belongs on which."""

from .....formulas import efficiency as formulas
from ....checks import exercise

# 15.1 ---------------------------------------------------------------------------------------------------------------

def own_bandwidth(kind, tokens, peak, share):
    intensity_of = formulas.intensity_of_parameters if kind == "parameters" else formulas.intensity_of_states
    return formulas.bandwidth_needed(intensity_of(tokens), share, peak)


@exercise(
    "15.1", "How fast must it be?", minutes=10, difficulty=1, own=own_bandwidth,
    replaces=("zerocourse.formulas.efficiency:*",),
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
    """Bytes per second.

    no peak: You multiplied by the efficiency alone: solve e = a·b / (a·b + peak) for b, where b stands twice.
    odds turned over: You have e and 1 − e the wrong way round: more efficiency needs more bandwidth.
    one minus: You divided by 1 − e and left out e itself.
    the same for states: Optimizer states have another intensity than parameters: 32 bytes move and not 8.
    four times: Of optimizer states four times as many bytes move, so there are a quarter of the operations for each.
    whole tokens: You divided the tokens with //: a quarter of them may be a fraction.
    gigabytes: You returned gigabytes, and bytes per second are wanted.
    tokens times: You multiplied by the intensity: with more operations for each byte, fewer bytes are needed.
    right: without a word about the size of the model, which cancels.
    """
    intensity = rounds(tokens * (1 if kind == "parameters" else states))
    return peak * odds(share) / over(intensity) / unit


# 15.2 ---------------------------------------------------------------------------------------------------------------

MACHINES = [(10**9, 1, 16e9, 0, 0), (10**9, 1, 16e9 - 1, 64e9, 1e12), (10**9, 1, 2e9, 14e9, 0),
            (10**9, 1, 2e9, 14e9 - 1, 12e9), (10**9, 1, 1.5e9, 16e9, 1e12), (10**9, 1, 1.5e9, 15e9, 14e9),
            (10**9, 1, 1.5e9, 15e9, 13e9), (10**9, 1, 2e9, 1e9, 1e12), (8 * 10**9, 8, 3e9, 14e9, 1e12),
            (8 * 10**9, 8, 3e9, 13e9, 12e9), (8 * 10**9, 8, 17e9, 0, 0), (10**9, 1, 3e9, 2e9, 13e9), (10**9 + 1, 2, 8e9 + 8, 0, 0)]


@exercise(
    "15.2", "Which tier for what?", minutes=20, difficulty=2, cases=MACHINES,
    mistakes={
        "all ranks": {"of": lambda params, ranks: params},
        "gradients forgotten": {"gradients": 0},
        "averages alone": {"states": 8},
        "gradients on the device": {"gradients_at": "device"},
        "gradients on the disk": {"gradients_at": "disk"},
        "disk first": {"order": (0, 3, 4, 1, 2)},
        "never both on the host": {"order": (0, 1, 3, 4)},
        "never both on the disk": {"order": (0, 1, 2, 3)},
        "always offloads": {"order": (1, 2, 3, 4)},
        "less than": ({"fits": lambda need, room: need < room}, {"fits": lambda need, room: need < room, "empty": False}),
        "rounded up": {"of": lambda params, ranks: -(-params // ranks)},
        "device alone": {"tiers": 1},
        "disk is endless": {"tiers": 2},
    })
def places(params, ranks, device, host, disk, *, of=lambda params, ranks: params / ranks, states=12, gradients=2,
           gradients_at="host", order=(0, 1, 2, 3, 4), fits=lambda need, room: need <= room, tiers=3, empty=True):
    """The first arrangement that fits.

    all ranks: You did not divide by the ranks: in ZeRO-3 each has a share of everything.
    gradients forgotten: You left out the gradients of the step: 2 bytes a parameter, wherever the update is computed.
    averages alone: You left out the master weights: with Adam the optimizer's part is 12 bytes.
    gradients on the device: You left the gradients on the device: they go down as they are reduced, to where the update
        is computed.
    gradients on the disk: You put the gradients on the disk: the update is computed on the host, and they wait for it
        there.
    disk first: You took the disk where the host has room for everything: take the first row that fits.
    never both on the host: You left out the third row: parameters can be on the host as well.
    never both on the disk: You left out the last row: parameters can be on the disk as well.
    always offloads: You offload where all fits on the device: that moves bytes for nothing.
    less than: What fits exactly fits, and what needs nothing fits where there is no room.
    rounded up: You rounded a rank's share up: count without rounding.
    device alone: You looked at the device alone: the other tiers have sizes, too.
    disk is endless: A disk has a size, too.
    right: each row moves more bytes in a step than the one before, so the first that fits is the best.
    """
    each, room = of(params, ranks), {"device": device, "host": host, "disk": disk}
    rows = [("device", "device"), ("host", "device"), ("host", "host"), ("disk", "device"), ("disk", "disk")]
    for number in order:
        optimizer, parameters = rows[number]
        need = dict.fromkeys(room, 0)
        need[optimizer] += states * each
        need[parameters] += 2 * each
        need["device" if optimizer == "device" else gradients_at] += gradients * each
        if all(fits(need[tier], room[tier]) or empty and not need[tier] for tier in list(room)[:tiers]):
            return rows[number]
    return None
