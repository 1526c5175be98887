"""The check of 15.7: what is wrong with a training on the disk, with instruments that cost minutes."""

from itertools import pairwise

from ....checks import Trial, Wrong, exercise

MINUTES = {"ledger": 1, "process": 2, "lanes": 5}
MB = 10**6
STEADY, GROWING, WARM, SHAKY = ([900 * MB] * 6, [900 * MB + 4 * MB * step for step in range(6)], [700 * MB, *[900 * MB] * 5],
                                [900 * MB, 901 * MB, 900 * MB, 902 * MB, 900 * MB, 903 * MB])
FAST = {"read": 2.0, "step": 2.1, "write": 1.9, "whole": 2.6}
RUNS = {  # what the ledger says of the device, what the process takes after each step, for how many seconds each lane is busy
    "the states stay": (800, STEADY, FAST), "the states stay, and more": (400, GROWING, FAST),
    "it grows": (0, GROWING, FAST), "it warms up": (0, WARM, {"read": 4.0, "step": 1.0, "write": 1.5, "whole": 4.4}),
    "it shakes": (0, SHAKY, {"read": 1.0, "step": 5.0, "write": 1.5, "whole": 5.6}),
    "it grows late": (0, [700 * MB, 900 * MB, 900 * MB, 904 * MB, 908 * MB, 912 * MB], {"read": 1.0, "step": 4.0, "write": 1.0, "whole": 4.3}),
    "it grows from the third on": (0, [900 * MB, 900 * MB, 904 * MB, 908 * MB, 912 * MB], {"read": 5.0, "step": 2.0, "write": 4.0, "whole": 6.0}),
    "it saws": (0, [700 * MB, 900 * MB, 904 * MB, 902 * MB, 906 * MB, 904 * MB], {"read": 1.0, "step": 4.0, "write": 1.0, "whole": 4.3}),
    "in turn": (0, STEADY, {"read": 2.0, "step": 3.0, "write": 1.98, "whole": 7.0}),
    "the disk writes": (0, WARM, {"read": 3.0, "step": 1.0, "write": 4.0, "whole": 4.2}),
    "more than the lanes": (0, STEADY, {"read": 2.0, "step": 3.0, "write": 1.0, "whole": 10.0}),
    "the disk writes longest": (0, STEADY, {"read": 1.0, "step": 2.0, "write": 3.0, "whole": 4.0}),
    "the disk reads longest": (0, STEADY, {"read": 3.0, "step": 2.0, "write": 1.0, "whole": 4.0}),
    "the lanes are short": (0, STEADY, {"read": 2.0, "step": 3.0, "write": 4.51, "whole": 10.0}),
    "the lanes are long": (0, STEADY, {"read": 2.0, "step": 5.0, "write": 3.4, "whole": 10.0}),
    "the lanes are shorter": (0, STEADY, {"read": 2.0, "step": 3.0, "write": 4.4, "whole": 10.0}),
    "the lanes are longer": (0, STEADY, {"read": 2.0, "step": 5.0, "write": 3.6, "whole": 10.0}),
    "the host": (0, STEADY, {"read": 3.0, "step": 3.5, "write": 3.1, "whole": 3.9}),
    "the host, long": (0, STEADY, {"read": 0.5, "step": 6.0, "write": 0.5, "whole": 6.2})}


class Run:
    """A training that can be examined. minutes: spent."""

    def __init__(self, name):
        self.seen, self.minutes = dict(zip(MINUTES, RUNS[name], strict=True)), 0

    def _look(self, what):
        self.minutes += MINUTES[what]
        return self.seen[what]

    def ledger(self):
        return {"parameters": 1600, "gradients": 1600, "optimizer": self._look("ledger")}

    def process(self):
        return list(self._look("process"))

    def lanes(self):
        return dict(self._look("lanes"))


VERDICTS = "states on the device", "leak", "in turn", "slow disk", "slow host"


def examined(answer, name):
    """The verdict, and the minutes it took."""
    run = Run(name)
    said = answer(run)
    if said not in VERDICTS:
        raise Wrong(f"it returned {said!r:.40}, which is none of the five verdicts", "no verdict")
    return {"verdict": said, "minutes": max(run.minutes, spent(name))}


def spent(name):
    run = Run(name)
    what_is_wrong(run)
    return run.minutes


def grows(process):
    return all(later > earlier for earlier, later in pairwise(process[1:]))


def longest(lanes):
    return max(("read", "step", "write"), key=lanes.get)


def in_turn(lanes):
    return sum(lanes[lane] for lane in ("read", "step", "write")) >= 0.95 * lanes["whole"]


def overlaps_nothing(lanes, within=0.05):
    return abs(sum(lanes[lane] for lane in ("read", "step", "write")) / lanes["whole"] - 1) <= within


@exercise(
    "15.7", "Choose your instruments", minutes=30, difficulty=2,
    trials=[Trial([(name,) for name in RUNS], examined)],
    mistakes={
        "too many": ({"looks_at_all": True}, {"order": ("lanes", "process", "ledger")}),
        "any growth": {"grows": lambda process: process[-1] > process[0]},
        "warm-up too": {"grows": lambda process: all(later >= earlier for earlier, later in pairwise(process))
                        and process[-1] > process[0]},
        "third step too": {"grows": lambda process: grows(process[1:])},
        "from the second on": {"grows": lambda process: all(later > earlier for earlier, later in pairwise(process))},
        "in turn is a sum": {"in_turn": in_turn},
        "never in turn": ({"in_turn": lambda lanes: overlaps_nothing(lanes, 0.01)}, {"in_turn": lambda lanes: False}),
        "too wide": {"in_turn": lambda lanes: overlaps_nothing(lanes, 0.1)},
        "reads alone": {"disk": ("read",)},
    })
def what_is_wrong(run, *, order=("ledger", "process", "lanes"), looks_at_all=False, grows=grows, in_turn=overlaps_nothing, disk=("read", "write")):
    """The cheapest instrument that can say something comes first."""
    seen = {what: getattr(run, what)() for what in order} if looks_at_all or order[0] != "ledger" else {}

    def look(what):
        return seen[what] if what in seen else getattr(run, what)()

    if look("ledger")["optimizer"]:
        return "states on the device"
    if grows(look("process")):
        return "leak"
    lanes = look("lanes")
    if in_turn(lanes):
        return "in turn"
    return "slow disk" if longest(lanes) in disk else "slow host"
