"""An explorer of fragmentation: a step's own allocations in an arena whose size one chooses."""

from collections.abc import Mapping

from ....activations import Arena, replay
from ....activations.arena import ALIGNMENT
from ....errors import OutOfMemory
from ...show.widgets import Control, explore
from .activation_trial import Step
from .plots_activations import arena_map


def fragmentation(steps: Mapping[str, Step], step: str, percent: int = 105, apart: bool = False) -> None:
    """steps: by name, of which `step` is seen first.   percent: the arena's size, of the most bytes that are in use.

    apart: long-lived blocks are placed from the other end.
    """
    peaks = {name: replay(each.events).peak for name, each in steps.items()}

    def size_of(step: str, percent: int) -> int:
        return peaks[step] * percent // 100 // ALIGNMENT * ALIGNMENT

    def describe(step: str, percent: int, apart: bool) -> str:
        arena = Arena(size_of(step, percent), apart)
        begins = f"{step}: at most {peaks[step]:,} bytes are in use at a time, and the arena has {percent} % of that. "
        try:
            replay(steps[step].events, arena=arena)
        except OutOfMemory as error:
            return begins + str(error)[0].upper() + str(error)[1:] + "."
        return begins + "Every block finds a place."

    def draw(step: str, percent: int, apart: bool):
        return arena_map(steps[step], size_of(step, percent), apart, f"{step}, {percent} %" + ", two ends" * apart)

    explore(draw, describe, step=Control(list(steps), step, "list", label="computes again"),
            percent=Control(range(100, 121), percent, label="size, % of use"),
            apart=Control({"from one end": False, "long-lived from the other end": True}, apart, "list", label="places"))
