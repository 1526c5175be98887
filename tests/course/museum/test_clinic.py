"""Patients without names: what an instrument and an accusation cost, and that each can be told by the instrument that is said to tell it."""

import pytest

from zerocourse.course.museum import BUGS
from zerocourse.course.museum.clinic import MINUTES, NAMES, TELLS, WRONG, Clinic, Patient
from zerocourse.errors import BadInput


def test_letters_say_nothing_and_every_bug_is_there_once():
    orders = [[patient._name for patient in Clinic(None, seed).patients.values()] for seed in (0, 1)]
    assert orders[0] != orders[1] and all(sorted(names) == sorted(NAMES) for names in orders)
    assert not any(name in repr(Clinic(None)["A"]) for name in NAMES)
    assert set(TELLS) == set(NAMES) and set(TELLS.values()) <= set(MINUTES) and all(BUGS[name].scene for name in NAMES)


def test_a_wrong_accusation_costs_and_a_right_one_shows_the_line():
    patient = Patient("A", None, "step_count")
    assert f"cost {WRONG} minutes" in patient.accuse("stale_gradients").text and patient.minutes == WRONG and not patient.solved
    told = patient.accuse("step_count").text
    assert patient.solved and patient.minutes == WRONG and BUGS["step_count"].test in told and "\n+" in told
    patient.accuse("stale_gradients")
    assert patient.minutes == WRONG  # nothing is lost any more
    with pytest.raises(BadInput, match="no suspect 'sumed': there are weights_reduced"):
        patient.accuse("sumed")
    with pytest.raises(BadInput, match="no patient 'Z': there are A, B"):
        Clinic(None)["Z"]


def test_an_instrument_costs_once(pool):
    patient = Patient("A", pool(2), "unsharded_states")
    said = patient.bytes().text
    assert patient.bytes().text == said and "58,880" in said and patient.minutes == MINUTES["bytes"]
