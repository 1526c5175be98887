"""Our own cost grows no faster than it must: counted in lines, collectives, bytes and requests, never in seconds."""

import gc
import importlib.util
import json
import math
from functools import partial

import pytest
import torch

from zerocourse import shard
from zerocourse.bench import growth
from zerocourse.bench.growth import Growth, at_start, counts, exponent, grow, lines_run
from zerocourse.bench.parts.hook_cost import TinyBlock
from zerocourse.comm.simulated import SimulatedComm
from zerocourse.errors import BadInput
from zerocourse.layout.rankmap import Layout
from zerocourse.zero.passes.backward import Backward

SIZES = (8, 16, 32)  # each twice the one before, so that what grows with them grows by twice as much each time
LINES = ("lines of shard()", "lines of the first step", "lines of a step")


@pytest.fixture(scope="module", autouse=True)
def pages():
    """A large model leaves pages of NaN, which later ones take and make none of their own: so all take the same lines."""
    counts(3, 300, 1, 1)
    gc.collect()
    gc.freeze()  # a collection between two counts then looks at little
    yield
    gc.unfreeze()


def doubling(row: Growth) -> float:
    """How much more it grew at the second doubling than at the first: 2 for a cost per unit, 4 for its square, whatever
    it costs besides."""
    first, second, third = row.values
    return (third - second) / (second - first)


def check_linear(rows: list[Growth], tolerance: float = 1e-3) -> None:
    assert rows
    for row in rows:
        assert doubling(row) == pytest.approx(2, abs=tolerance), f"{row.what} by {row.by}: {row.values}"


# --- the fit ---

@pytest.mark.parametrize("power", (0, 0.5, 1, 2))
def test_the_exponent_of_a_power_is_the_power(power):
    sizes = (3, 10, 40, 700)
    assert exponent(sizes, [5 * size ** power for size in sizes]) == pytest.approx(power, abs=1e-9)


def test_the_exponent_is_a_least_squares_slope():
    """Of logarithms 0, 1, 2 and 0, 2, 1: 1/2."""
    assert exponent([1, math.e, math.e ** 2], [1, math.e ** 2, math.e]) == pytest.approx(0.5)


def test_what_is_paid_once_hides_least_at_the_largest_sizes():
    sizes = tuple(4 ** power for power in range(2, 8))
    row = Growth("cost", "units", sizes, tuple(1000 + size for size in sizes))
    assert row.fitted == (1024, 16384) and 0.7 < row.exponent < 1
    assert exponent(row.sizes, row.values) < row.exponent - 0.2


@pytest.mark.parametrize("sizes, values", (((1, 2), (1, 0)), ((1, 2), (1, math.nan)), ((1, 2), (1, -3)),
                                           ((2, 2), (1, 3)), ((1,), (1,)), ((1, 2, 3), (1, 2)), ((1, 2), (1, math.inf))))
def test_an_exponent_that_there_is_not(sizes, values):
    with pytest.raises(BadInput, match="an exponent needs a value above 0 at each of two sizes or more, and got"):
        exponent(sizes, values)


# --- counting lines ---

def test_lines_are_counted_round_by_round(tmp_path):
    path = tmp_path / "counted.py"
    path.write_text("def rounds(n):\n    total = 0\n    for i in range(n):\n        total += i\n"
                    "    return [x for x in range(n)]\n")
    spec = importlib.util.spec_from_file_location("counted", path)
    counted = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(counted)
    seen = [lines_run(lambda n=n: counted.rounds(n), str(tmp_path)) for n in (10, 20, 40)]
    assert seen[2] - seen[1] == 2 * (seen[1] - seen[0]) >= 2 * 3 * 10
    assert lines_run(lambda: counted.rounds(10), str(tmp_path / "elsewhere")) == 0


def test_looking_for_a_buffer_in_a_list_counts_what_it_is_compared_with():
    model, optimizer, comm = growth.tower(9, 1, 1)
    flats = shard(model, optimizer, 1, comm=comm)[0].zero.flats
    seen = [lines_run(lambda last=last: flats[last] in flats) for last in (0, 4, 9)]
    assert seen[2] - seen[1] == 5 and seen[1] - seen[0] == 4 and flats[0] != flats[1]


# --- the package ---

@pytest.mark.parametrize("stage", range(4))
def test_lines_grow_with_units_and_with_parameters(stage):
    for by in ("units", "parameters"):
        rows = grow(counts, by, SIZES, stage=stage)
        check_linear([row for row in rows if row.what in LINES or row.what.startswith("agreement")])
        (collectives,) = [row for row in rows if row.what.startswith("collectives")]
        if by == "units":
            check_linear([collectives])
        else:
            assert len(set(collectives.values)) == 1


MORE = {"deferred": {"deferred": True}, "half": {"param_dtype": torch.bfloat16},
        "gathered far ahead": {"prefetch": 3}, "two in flight": {"in_flight": 2},
        "a bucket for each parameter": {"bucket_size": 4}}


@pytest.mark.parametrize("what", [*MORE, "a group for each unit", "units by class"])
def test_other_models_and_options_grow_alike(what, monkeypatch):
    if what == "a group for each unit":
        monkeypatch.setattr(growth, "tower", tower_of_groups)
    if what == "units by class":
        monkeypatch.setattr(growth, "shard", partial(shard, units=TinyBlock))
    # For each gradient, stage 3 asks all buffers of a unit whether half of its gradients are there.
    tolerance = 0.02 if what == "a bucket for each parameter" else 1e-3
    for by in ("units", "parameters"):
        rows = grow(counts, by, SIZES, stage=3, **MORE.get(what, {}))
        check_linear([row for row in rows if row.what in LINES], tolerance)


def tower_of_groups(units: int, parameters: int, ranks: int):
    model = growth.Tower(units, parameters)
    groups = [{"params": [*each.parameters()]} for each in [*model.h]] + [{"params": [model.scale]}]
    return model, torch.optim.AdamW(groups), SimulatedComm(0, ranks)


def test_units_times_ranks_is_nowhere():
    """A rank more costs no line, and no more than a byte for each flag of the agreement."""
    few, many = ({ranks: counts(3, units, 2, ranks) for ranks in (64, 128, 256)} for units in (4, 32))
    for found in (few, many):
        for what in (*LINES, "collectives of a step"):
            assert len({of_ranks[what] for of_ranks in found.values()}) == 1, what
        flags = found[64]["agreement, bytes"] / 63
        assert [of_ranks["agreement, bytes"] for of_ranks in found.values()] == [flags * 63, flags * 127, flags * 255]


def test_the_bounds_of_equal_slices_take_no_memory():
    assert Layout.build({"a": (5,)}, 4).bounds == range(0, 9, 2)
    assert len(Layout.build({"a": (10,)}, 10 ** 9).bounds) == 10 ** 9 + 1
    assert Layout.build({"a": (0,)}, 3).bounds == (0, 0, 0, 0) == Layout.build({}, 3).bounds


@pytest.mark.parametrize("world_size", (2, 3))
def test_what_ranks_ask_of_the_store(pool, world_size):
    """Two requests, however many ranks; a digest of every rank, however large the model."""
    for units in (2, 20):
        for found in pool(world_size).run(at_start, units, 3):
            assert found["store, requests of a rank"] == 2
            assert found["store, bytes read by a rank"] == world_size * (2 + 64)  # a digest in quotation marks


# --- planted: what these counts are for ---

def looks_at_every_unit(monkeypatch) -> None:
    own = Backward.come_to

    def come_to(self, of_pass, unit):
        for _ in self.order:
            pass
        return own(self, of_pass, unit)

    monkeypatch.setattr(Backward, "come_to", come_to)


def looks_through_a_list(monkeypatch) -> None:
    from zerocourse.zero.stage3 import Stage3
    own = Stage3.on_gradient

    def on_gradient(self, flat, key, param):
        assert flat in self.flats
        own(self, flat, key, param)

    monkeypatch.setattr(Stage3, "on_gradient", on_gradient)


@pytest.mark.parametrize("plant", (looks_at_every_unit, looks_through_a_list))
def test_a_planted_square_is_seen(monkeypatch, plant):
    monkeypatch.setattr(growth, "lines_run", lambda call: lines_run(call, (growth.PACKAGE, __file__)))
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="lines of a step by units"):
        check_linear([row for row in grow(counts, "units", SIZES, stage=3) if row.what == "lines of a step"])


# --- the table, the record, the picture ---

def test_the_command(monkeypatch, capsys):
    monkeypatch.setattr(growth, "SIZES", {"units": (2, 4, 8), "ranks": (2, 4)})
    assert growth.main(["--stage", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["by"], *row["sizes"]) for row in rows} == {("units", 2, 4, 8), ("ranks", 2, 4)}
    assert all(row["exponent"] == exponent(row["sizes"], row["values"]) for row in rows)
    assert growth.main([]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 1 + len(rows) and "in 2..8" in printed[1] and "units 2, 4, 8: " in printed[1]


def test_times_are_of_the_stage_and_not_of_the_model():
    found = growth.times(3, 4, 2, 2)
    assert list(found) == ["shard(), ms", "a step beyond the model's own, ms"] and found["shard(), ms"] > 0


def test_the_record_is_what_the_counts_are_now():
    """Times are of the machine that recorded them; lines may change with the code, and their exponents may not."""
    rows = growth.recorded_growth()
    assert {row["by"] for row in rows} == {*growth.SIZES, "real ranks"}
    for row in rows:
        sizes, values = row["sizes"][-growth.FITTED:], row["values"][-growth.FITTED:]
        assert row["exponent"] == pytest.approx(exponent(sizes, values)) and row["fitted"] == [sizes[0], sizes[-1]]
        if row["by"] == "units" and row["what"] in LINES:
            assert row["exponent"] == pytest.approx(1, abs=0.05)
