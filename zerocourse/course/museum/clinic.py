"""Trainings that are ill, and nobody says of what: choose instruments, which cost minutes of a cluster, and name the bug.

    clinic = Clinic(ranks)          # two ranks that are kept alive
    clinic.waiting()                # the patients, each with what a log would show
    clinic["A"].norms()             # an instrument
    clinic["A"].accuse("step_count")  # right: the line, and the test that kills the bug; wrong: more minutes
    clinic.score()

A patient is a bug of the museum, planted in a training of two ranks. Their order is shuffled and their names are letters.
"""

import random
from dataclasses import dataclass, field, replace

from ...errors import BadInput
from ...launch import Ranks
from .. import show
from ..show import Shown
from . import BUGS
from .proof import gathers_run_ahead
from .scene import Played, Scene, delay_of, play, play_whole

NAMES = ("weights_reduced", "first_micro_batch", "rank_zero_skipped", "never_broadcast", "stale_gradients", "l2_for_decay", "step_count",
         "mean_of_nothing", "unsharded_states", "full_gradients", "fp32_gradients_kept", "wait_at_once")
MINUTES = {"bytes": 3, "step_counts": 3, "parameters": 5, "first_nan": 5, "norms": 8, "order": 8, "delay": 10}
"""What each instrument costs, in minutes of a cluster: the dearer ones need more trainings."""
WRONG = 30  # minutes that a wrong accusation costs: somebody has changed a line, and waited for a training
TELLS = {"weights_reduced": "norms", "first_micro_batch": "norms", "rank_zero_skipped": "parameters", "never_broadcast": "parameters",
         "stale_gradients": "delay", "l2_for_decay": "parameters", "step_count": "step_counts", "mean_of_nothing": "first_nan",
         "unsharded_states": "bytes", "full_gradients": "bytes", "fp32_gradients_kept": "bytes", "wait_at_once": "order"}
"""The instrument that we would take for each bug. A cleverer reader may need a cheaper one."""


def play_name(name: str, scene: Scene) -> Played:
    """On a rank, which finds the bug by its name. Collective."""
    return play(scene, BUGS[name])


def delay_with(name: str, stage: int) -> int:
    return delay_of(stage, BUGS[name])


@dataclass
class Patient:
    """One training with an unknown bug. minutes: spent so far.   solved: was the right bug named?"""

    label: str
    ranks: Ranks = field(repr=False)
    _name: str = field(repr=False)
    minutes: int = 0
    solved: bool = False
    used: list[str] = field(default_factory=list)

    @property
    def _scene(self) -> Scene:
        return BUGS[self._name].scene

    def _played(self, **changes) -> tuple[list[Played], Played]:
        """What each rank saw, and what one process saw that has no bug."""
        scene = replace(self._scene, **changes)
        return self.ranks.run(play_name, self._name, scene), play_whole(scene)

    def _pay(self, instrument: str) -> None:
        if instrument not in self.used:  # a table that one has may be looked at again
            self.used.append(instrument)
            self.minutes += MINUTES[instrument]

    def log(self) -> dict[str, object]:
        """What a log shows, for nothing: the settings, and the mean loss of the first and the last step."""
        ranks, whole = self._played()
        scene, losses = self._scene, [sum(each) / len(ranks) for each in zip(*(played.losses for played in ranks), strict=True)]
        return {"patient": self.label, "stage": scene.stage, "optimizer": scene.optimizer, "bf16": "yes" if scene.half else "no",
                "micro-batches": scene.accumulation, "first loss": f"{losses[0]:.4f}", "last loss": f"{losses[-1]:.4f}",
                "one process, last": f"{whole.losses[-1]:.4f}"}

    def norms(self) -> Shown:
        """The gradient's norm at the first step on each rank, by that of one process, with 1, 2 and 4 micro-batches."""
        self._pay("norms")
        columns = {G: self._played(steps=1, accumulation=G) for G in (1, 2, 4)}
        return show.table([{"rank": rank, **{f"G = {G}": f"{ranks[rank].norms[0] / whole.norms[0]:.3f}"
                                             for G, (ranks, whole) in columns.items()}} for rank in range(2)],
                          caption="the gradient's norm at the first step / that of one process")

    def parameters(self) -> Shown:
        """Sums of the absolute values of each rank's parameters, and how far those have moved that a rank updates."""
        self._pay("parameters")
        ranks, whole = self._played()
        rows = [{"": f"rank {rank}", "before": f"{each.sums[0]:.3f}", "after the first step": f"{each.sums[1]:.3f}",
                 "at the end": f"{each.sums[-1]:.3f}", "its own part has moved by": f"{each.moved:.3f}"} for rank, each in enumerate(ranks)]
        return show.table([*rows, {"": "one process", "before": f"{whole.sums[0]:.3f}", "after the first step": f"{whole.sums[1]:.3f}",
                                   "at the end": f"{whole.sums[-1]:.3f}", "its own part has moved by": f"{whole.moved:.3f}"}],
                          caption="sums of absolute values (in stage 3: of the rank's own part)")

    def bytes(self) -> Shown:
        """What each rank holds just before the last update, by kind, and the gradients that are left after it."""
        self._pay("bytes")
        ranks, whole = self._played()
        return show.table([{"rank": rank, **{kind: each.bytes_before_step[f"{kind}_bytes"] for kind in ("parameters", "gradients", "optimizer")},
                            "gradients left after the update": each.bytes_after_step["gradients_bytes"]} for rank, each in enumerate(ranks)],
                          caption=f"bytes; the model has {whole.params:,} parameters")

    def order(self) -> Shown:
        """Was the next block being gathered when a block's forward ended? For stage 3."""
        self._pay("order")
        if self._scene.stage != 3:
            return show.sentence("Nothing is gathered ahead below stage 3, so the order says nothing here.")
        ranks, whole = self._played()
        try:
            gathers_run_ahead(ranks, whole, self._scene)
        except AssertionError as red:
            return show.sentence(f"Not in order: {red}.")
        return show.sentence("While each block computes, the next one is being gathered.")

    def delay(self) -> Shown:
        """By the staleness meter: how many steps late a gradient is applied, with plain SGD in the patient's stage."""
        self._pay("delay")
        return show.sentence(f"The delay of its gradients, in steps: {self.ranks.run(delay_with, self._name, self._scene.stage)[0]}.")

    def first_nan(self) -> Shown:
        """The first tensor on each rank that is not finite."""
        self._pay("first_nan")
        rows = []
        for rank, each in enumerate(self._played()[0]):
            step, what, name = each.not_finite or ("never", "", "")
            rows.append({"rank": rank, "at step": step, "what": f"the {what} of {name}" if what else "–"})
        return show.table(rows, caption="the first that is not finite")

    def step_counts(self) -> Shown:
        """The optimizer's own counts of its steps."""
        self._pay("step_counts")
        return show.table([{"rank": rank, "steps made": self._scene.steps, "smallest count": int(each.step_counts[0]),
                            "largest count": int(each.step_counts[1])} for rank, each in enumerate(self._played()[0])])

    def accuse(self, name: str) -> Shown:
        """Say which bug it is. Raises BadInput for a name that no suspect has."""
        if name not in NAMES:
            raise BadInput(f"there is no suspect {name!r}: there are {', '.join(NAMES)}")
        if name != self._name:
            if not self.solved:
                self.minutes += WRONG
            return show.sentence(f"No: it is not {name}. That cost {WRONG} minutes, and patient {self.label} is at {self.minutes}.")
        self.solved = True
        return BUGS[name].told(f"Right, after {self.minutes} minutes: patient {self.label} has {name}.")


class Clinic:
    """Twelve patients under letters. seed: of their order."""

    def __init__(self, ranks: Ranks, seed: int = 0):
        names = list(NAMES)
        random.Random(seed).shuffle(names)
        self.patients = {label: Patient(label, ranks, name) for label, name in zip("ABCDEFGHIJKL", names, strict=True)}

    def __getitem__(self, label: str) -> Patient:
        if label not in self.patients:
            raise BadInput(f"there is no patient {label!r}: there are {', '.join(self.patients)}")
        return self.patients[label]

    def waiting(self) -> Shown:
        """Each patient's log."""
        return show.table([patient.log() for patient in self.patients.values()], caption="what the logs show")

    def suspects(self) -> Shown:
        return show.table([{"name": name, "what is wrong": BUGS[name].title} for name in sorted(NAMES)])

    def score(self) -> Shown:
        """Minutes spent for each patient that one has looked at, beside those of the instrument that we would take."""
        rows = [{"patient": label, "solved": "yes" if each.solved else "not yet", "minutes": each.minutes,
                 "minutes we needed": MINUTES[TELLS[each._name]] if each.solved else "?", "instruments": ", ".join(each.used)}
                for label, each in self.patients.items() if each.minutes or each.solved]
        spent = sum(each.minutes for each in self.patients.values())
        done = sum(each.solved for each in self.patients.values())
        if not rows:
            return show.sentence("Nobody was looked at yet.")
        return show.table(rows, caption=f"{done} of {len(self.patients)} solved, {spent} minutes")
