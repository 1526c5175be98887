"""The published two-GPU table three ways: what was measured is what is simulated, and can be measured again."""

import pytest

from zerocourse.course.chapters.scale import two_gpu_table
from zerocourse.course.chapters.scale.two_gpu_table import MODES, account, by_simulation, by_training, cells, job_of, recorded, table
from zerocourse.errors import BadInput
from zerocourse.simulation.shapes import GPTS


def test_the_parameters_are_those_that_fit_the_published_figures():
    assert [round(GPTS[two_gpu_table.MODELS[size]].params / 1e6, 1) for size in ("small", "medium", "large")] == \
        [163.0, 406.2, 838.1]


@pytest.mark.parametrize("size", ("tiny", "small"))
def test_what_was_measured_is_what_is_simulated(size):
    """To the byte, on the fullest rank."""
    assert set(recorded()[size]) == set(MODES)
    for mode, measured in recorded()[size].items():
        assert max(measured["peak_bytes"]) == by_simulation(size, mode), mode


def test_the_cheapest_cell_measures_the_same_again():
    """The process itself grew by more than the ledger counts: what torch's kernels and threads take is in it too."""
    measured = by_training("tiny", "ZeRO-3")
    assert measured["peak_bytes"] == recorded()["tiny"]["ZeRO-3"]["peak_bytes"]
    assert all(grown > counted for grown, counted in zip(*map(measured.get, ("resident_peak_bytes", "peak_bytes"))))


def test_the_columns_and_their_account_add_up():
    for cell in cells("small"):
        assert cell.published == cell.simulated + cell.kept_logits + cell.unexplained
        assert cell.kept_logits == 4 * 1024 * 50304 and cell.measured == cell.simulated
    saved = two_gpu_table.drops("small")
    assert saved["ZeRO-1"][0] == pytest.approx(4 * 163_026_432, rel=1e-3)  # half of 8 bytes a parameter
    said, words = table(["small"]), account(["small"])
    assert said.count("\n") == 5 and "4.65" in said
    assert f"ZeRO-1 saves {saved['ZeRO-1'][0] / 1e9:.2f} GB over DDP when simulated, and 0.67 as published" in words
    assert "cannot be measured here" in words


def test_a_cell_that_is_not_there():
    with pytest.raises(BadInput, match="the table has no cell 'huge', 'DDP': it has tiny, small"):
        job_of("huge", "DDP")
