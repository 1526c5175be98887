"""The machine of set times in chapter 14: its formula, and steps that really take as long."""

import pytest

from zerocourse.course.chapters.offload import simulated_device as sim


def by_hand(machine: sim.SleepingMachine, mode: str) -> float:
    """A step's seconds, block by block."""
    ready = [machine.blocks * machine.forward + (number + 1) * machine.backward for number in range(machine.blocks)]
    free = {"down": 0.0, "update": 0.0, "up": 0.0}
    for at in ready:
        at = machine.compute if mode == "at the step" else at
        for hand, takes in (("down", machine.down), ("update", machine.update), ("up", machine.link)):
            begin = max(at, free[hand], 0.0 if hand == "down" else machine.compute)
            at = free[hand] = begin + takes
    return free["up"]


@pytest.mark.parametrize("machine", (sim.SleepingMachine(), sim.SleepingMachine(link=0.01, update=0.003, full=True),
                                     sim.SleepingMachine(blocks=1)))
def test_the_formula_of_the_factory_line(machine):
    """Exact at the step; in the backward it may be below what comes of queues, by less than the time of one block."""
    assert machine.predicted("at the step") == pytest.approx(by_hand(machine, "at the step"))
    late = by_hand(machine, "in the backward") - machine.predicted("in the backward")
    assert 0 <= late + 1e-9 < machine.down + machine.update


def test_no_step_is_quicker_than_its_formula_says():
    machine = sim.SleepingMachine(blocks=2, link=0.002, update=0.03)
    for mode, options in sim.MODES.items():
        timed = sim.run(machine, rounds=1, **options)
        assert timed.seconds >= machine.predicted(mode), mode
        assert {event["verb"] for event in timed.events} >= {"forward", "backward", "down", "up"}
