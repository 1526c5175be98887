"""The cases of chapter 09: bugs by number, so that a reader can suspect before the name says it."""

from dataclasses import asdict

from matplotlib.figure import Figure

from ...errors import OutOfMemory
from ...measure.ledger import Ledger
from ..show import Shown
from ..show.figures import panels
from . import BUGS
from .bug import Bug
from .scene import Played, Scene, batch, engine_of, play

CASES = ("summed", "unscaled_loss", "last_micro_batch", "late_micro_batch", "nothing_reduced", "norm_of_a_shard", "no_reshard",
         "owner_only")


def case(number: int) -> Bug:
    """The bug of a case, counted from 1."""
    return BUGS[CASES[number - 1]]


def play_cases(numbers: list[int], scene: Scene | None = None) -> dict[int, Played]:
    """Play each case on this rank, in `scene` or in its own; number 0 has no bug. Collective."""
    return {number: play(scene or case(number).scene, case(number) if number else None) for number in numbers}


def play_in_budget(number: int, scene: Scene, budget: int) -> dict[str, object]:
    """Train under a ledger's budget of bytes: in which error it ended, if it did, and the peak by kind. Collective."""
    bug, error = case(number) if number else None, None
    engine = engine_of(scene)
    ledger = Ledger(engine.module, engine.optimizer, budget=budget)
    try:
        with ledger:
            if bug:
                with bug.planted():
                    steps(scene, engine)
            else:
                steps(scene, engine)
    except OutOfMemory as caught:
        error = str(caught)
    return {"error": error, "peak_bytes": ledger.peak, **asdict(ledger.at_peak)}


def steps(scene: Scene, engine) -> None:
    for step in range(scene.steps):
        engine.backward(engine(*batch(scene, step, 0, engine.global_rank)))
        engine.step()


def solved(number: int, folded: str = "") -> Shown:
    """The case's answer, under its number."""
    return case(number).told(f"Case {number}, {case(number).name}.", folded)


def mean_losses(ranks: list[Played]) -> list[float]:
    """The ranks' mean loss, step by step."""
    return [sum(losses) / len(ranks) for losses in zip(*(played.losses for played in ranks), strict=True)]


def curves(lines: dict[str, list[float]], ylabel: str = "loss") -> Figure:
    """One curve a name, over steps; told apart by dashes and markers, not by colour alone."""
    figure, axes = panels(8, 3.2)
    styles = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))
    for (name, values), (dashes, marker) in zip(lines.items(), styles, strict=False):
        axes.plot(range(len(values)), values, dashes, marker=marker, markersize=4, label=name)
    axes.set(xlabel="step", ylabel=ylabel)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()
    return figure
