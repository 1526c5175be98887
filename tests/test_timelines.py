"""What the events of a step say of its bytes, and the pictures that are drawn from them."""

from dataclasses import replace

import pytest
import torch

import worlds
from zerocourse.measure.ledger import Ledger
from zerocourse.measure.stage_meter import KINDS
from zerocourse.measure.storages import raw_grad
from worlds import Case

STAGES = (0, 1, 2, 3)


def deep():
    return worlds.gpt(n_layer=6)


def two_counts(case: Case) -> list[tuple[dict, dict, int]]:
    """At every event of a step: the kinds it was recorded with, those that a ledger finds by reading every storage, and
    by how much the first may have more bytes of model states: slices that arrive from other ranks, less gradients that
    autograd has just brought and nobody has collected."""
    model, optimizer = worlds.sharded(case)
    worlds.train_plain(replace(case, steps=1), model, optimizer)
    stage, found = model.zero, []
    with Ledger(model, optimizer) as ledger, stage.meter.watched_by(ledger):
        kinds = stage.recorder.kinds

        def both() -> dict:
            counted = kinds()
            fresh = [raw_grad(param) for param in model.parameters()]
            found.append((counted, ledger.now().as_dict(), sum(flat.received_bytes for flat in stage.flats)
                          - sum(gradient.nbytes for gradient in fresh if gradient is not None)))
            return counted

        stage.recorder.kinds = both
        case.loss(model, 0, 0, stage.comm.rank).backward()
        optimizer.step()
    return found


@pytest.mark.parametrize("dtype", (None, torch.bfloat16))
@pytest.mark.parametrize("stage", STAGES)
def test_the_kinds_of_an_event_are_those_of_the_ledger(pool, stage, dtype):
    case = Case(stage, make=deep, param_dtype=dtype, options=(("in_flight", 2),))
    for events in pool(2).run(two_counts, case):
        assert len(events) > 20
        for counted, seen, apart in events:
            assert list(counted) == list(KINDS) and sum(counted.values()) == seen["alive_bytes"]
            states = seen["parameters_bytes"] + seen["gradients_bytes"] + seen["optimizer_bytes"] + apart
            assert sum(counted.values()) - counted["activations"] == states
            assert counted["optimizer"] == seen["optimizer_bytes"] and counted["activations"] >= 0
