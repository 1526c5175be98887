"""Published tokens a second are below their bounds, all of them, and the bytes behind them are those of our formulas."""

import pytest

from zerocourse.course.chapters.inference.published_rates import A100, DISK, HOST, MODELS, gpt_fast, zero_inference
from zerocourse.formulas.models.kv_cache import weights_read
from zerocourse.simulation.shapes import shape_of

TABLES = {"ZeRO-Inference": zero_inference(), "gpt-fast": gpt_fast()}


@pytest.mark.parametrize("name", TABLES)
def test_no_row_exceeds_its_bound(name):
    assert all(0 < each.share < 1 for each in TABLES[name])


def test_every_published_cell_is_there():
    assert {name: len(rates) for name, rates in TABLES.items()} == {"ZeRO-Inference": 3 * len(MODELS), "gpt-fast": 13}
    assert len({(each.model, each.way) for rates in TABLES.values() for each in rates}) == 28
    assert [each.bandwidth for each in zero_inference() if each.bandwidth != HOST] == [DISK, DISK]


def test_models_have_the_size_of_their_names():
    assert [round(weights_read(shape) / 2e9) for shape in MODELS.values()] == [30, 66, 175, 176, 69]


def test_what_comes_from_the_disk_comes_nearest():
    best = max((each for rates in TABLES.values() for each in rates), key=lambda each: each.share)
    assert best.bandwidth == DISK and best.share == pytest.approx(0.92, abs=0.005)
    shares = {(each.model, each.way): each.share for rates in TABLES.values() for each in rates}
    assert shares["Llama 2 7B", "half precision"] == pytest.approx(0.82, abs=0.005)
    assert shares["Llama 2 7B", "8 bits"] == pytest.approx(0.63, abs=0.005)
    assert shares["Llama 2 7B", "4 bits"] == pytest.approx(0.51, abs=0.005)
    in_few_bits = [shares[model, "weights in 4 bits"] for model in MODELS]
    assert min(in_few_bits) == pytest.approx(0.39 * 25e9 / HOST, abs=0.005) and max(in_few_bits) == pytest.approx(0.71 * 25e9 / HOST, abs=0.005)


def test_the_bytes_of_a_token_are_the_weights_and_a_little():
    """Of a few keys and values; in 4 bits 32 weights share 32 bits more."""
    base, eight, four = ({each.way: each for each in gpt_fast() if each.model == "Llama 2 7B"}[way] for way in ("half precision", "8 bits", "4 bits"))
    weights = weights_read(shape_of("llama2-7b"))
    assert 1 < base.nbytes / weights < 1.01
    assert 1 < eight.nbytes / (weights / 2) < 1.05 and 1 < four.nbytes / (weights * 5 / 16) < 1.07
    assert base.bandwidth == A100 and base.requests == 1


def test_eight_cards_are_three_times_as_fast_as_one():
    seven = {each.way: each.rate for each in gpt_fast() if each.model == "Llama 2 7B"}
    assert seven["half precision, 8 cards"] / seven["half precision"] == pytest.approx(3.13, abs=0.005)
