"""The collectives: right to the last bit, counted to the last byte, and never silent about ranks that disagree.

Run as a script (`python tests/comm/test_comm.py`) it measures what the loopback interface carries; the wire test does that
in a network namespace of its own, where nothing else is on the wire.
"""

import contextlib
import gc
import io
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from zerocourse import shard
from zerocourse.comm import Chain, Comm, Handle, add_in_order, backends, fail_all
from zerocourse.comm.backends import gloo, nccl
from zerocourse.comm.events import MOST_EVENTS, Recorder
from zerocourse.comm.simulated import SimulatedComm
from zerocourse.comm.waits import desync, mutual_waits, watch
from zerocourse.errors import BadInput, CollectiveError
from zerocourse.launch.ranks import Ranks
from zerocourse.layout.rankmap import Layout

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64)
HALF = (torch.bfloat16, torch.float16)


def layouts(world_size: int) -> dict[str, Layout]:
    """Rows by name: equal slices, padding, an empty last slice, uneven slices, empty ones, and nothing at all."""
    def owned(*owner):
        shapes = {f"p{i}": (3 + 2 * i,) for i in range(len(owner))}
        return Layout.build(shapes, world_size, {f"p{i}": rank for i, rank in enumerate(owner)})

    return {"even": Layout.build({"a": (4 * world_size,)}, world_size),
            "padded": Layout.build({"a": (4 * world_size - 1,), "b": ()}, world_size),
            "short": Layout.build({"a": (world_size - 1,)}, world_size),
            "uneven": owned(*range(world_size)),
            "one owner": owned(world_size - 1, world_size - 1),
            # 2, 1, 3 elements on three ranks: as long as equal slices, and not equal
            "nearly": Layout.build({"a": (2,), "b": (1,), "c": (3,)}, world_size,
                                   {"a": 0, "b": 1, "c": world_size - 1}),
            "nothing": Layout.build({"a": (0,)}, world_size)}


def row_of(rank: int, layout: Layout, dtype: torch.dtype) -> torch.Tensor:
    """Rank's own values: of all magnitudes, so that another order of additions gives another sum."""
    generator = torch.Generator().manual_seed(1000 + rank)
    values = torch.randn(layout.padded, generator=generator, dtype=torch.float64)
    values *= 10.0 ** torch.randint(-3, 3, (layout.padded,), generator=generator)
    return values.to(dtype) if dtype.is_floating_point else (values * 1000).to(dtype)


def expected_sum(layout: Layout, world_size: int, dtype: torch.dtype, order=None, exact=torch.float32) -> torch.Tensor:
    """All rows added up one after the other, halves in fp32 and rounded once."""
    rows = [row_of(rank, layout, dtype) for rank in order or range(world_size)]
    total = rows[0].to(exact) if dtype in HALF else rows[0].clone()
    for row in rows[1:]:
        total = total + row.to(total.dtype)
    return total.to(dtype)


# --- values ---

def collect_and_compare() -> list[str]:
    """Both collectives on every layout and dtype, with `into` in all three ways; returns what was wrong."""
    comm, wrong = Comm(), []
    for name, layout in layouts(comm.world_size).items():
        for dtype in DTYPES:
            own, case = layout.slice(comm.rank), f"{name} {dtype}"
            whole = row_of(99, layout, dtype)
            row = torch.full_like(whole, 77)
            row[own] = whole[own]
            comm.all_gather(row, layout, case).wait()
            if not torch.equal(row, whole):
                wrong.append(f"all_gather {case}: {row} is not {whole}")
            summed = expected_sum(layout, comm.world_size, dtype)[own]
            for into in ("nothing", "own slice", "memory"):
                row, got = row_of(comm.rank, layout, dtype), []
                target = {"nothing": None, "own slice": row[own], "memory": torch.full_like(summed, 77)}[into]
                comm.reduce_scatter(row, layout, case, into=target, done=got.append).wait()
                if len(got) != 1 or not torch.equal(got[0], summed) or got[0].dtype != dtype:
                    wrong.append(f"reduce_scatter {case} into {into}: {got} is not {summed}")
                elif target is not None and not (got[0] is target and torch.equal(target, summed)):
                    wrong.append(f"reduce_scatter {case} into {into}: the sum is not there")
    return wrong


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_both_collectives_bitwise(pool, world_size):
    assert pool(world_size).run(collect_and_compare) == [[]] * world_size


def test_the_data_of_these_tests_can_tell_orders_and_roundings_apart():
    layout = layouts(4)["even"]
    for dtype in (torch.float32, torch.float64):
        backwards = expected_sum(layout, 4, dtype, order=[3, 2, 1, 0])
        assert not torch.equal(expected_sum(layout, 4, dtype), backwards), dtype
    for dtype in HALF:
        rounded_each_time = expected_sum(layout, 4, dtype, exact=dtype)
        assert not torch.equal(expected_sum(layout, 4, dtype), rounded_each_time), dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("into", [None, 0, 1, 2, "new"])
def test_add_in_order_wherever_the_sum_goes(dtype, into):
    layout = Layout.build({"a": (50,)}, 1)
    terms = [row_of(rank, layout, dtype) for rank in range(3)]
    target = torch.empty_like(terms[0]) if into == "new" else terms[into] if into is not None else None
    result = add_in_order(terms, target)
    assert torch.equal(result, expected_sum(layout, 3, dtype))
    assert target is None or result is target


def exchange_rows(dtype: torch.dtype = torch.float32) -> tuple:
    """Row r to rank r: what arrived, counts, events. Row r of rank s holds s, r, and where in the row."""
    comm = Comm()
    sent = torch.stack([torch.full((2, 3), 100 * comm.rank + 10 * to) for to in range(comm.world_size)]) + torch.arange(3)
    sent, got = sent.to(dtype), torch.full((comm.world_size, 2, 3), -1, dtype=dtype)
    before = sent.clone()
    handle = comm.all_to_all(sent, got, "a")
    handle.wait()
    handle.wait()  # a second time is nothing
    comm.all_to_all(torch.empty(comm.world_size, 0), torch.empty(comm.world_size, 0), "nothing").wait()
    right = all(torch.equal(got[source], (100 * source + 10 * comm.rank + torch.arange(3)).expand(2, 3).to(dtype))
                for source in range(comm.world_size))
    return (right and torch.equal(sent, before), comm.elements["all_to_all"], comm.sent["all_to_all"],
            comm.padding + comm.metadata, handle.nbytes, list(comm.issued)[0])


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_all_to_all_brings_each_row_to_its_rank_and_counts_it(pool, world_size):
    for dtype in DTYPES:
        elements = 6 * (world_size - 1)
        for seen in pool(world_size).run(exchange_rows, dtype):
            assert seen == (True, elements, elements * dtype.itemsize, 0, elements * dtype.itemsize,
                            ("all_to_all", "a", 6 * world_size, dtype))


def test_all_to_all_wants_a_row_for_each_rank():
    comm = SimulatedComm(1, 3)
    for tensor, into in ((torch.ones(2, 4), torch.ones(2, 4)), (torch.ones(3, 4), torch.ones(3, 5)),
                         (torch.ones(3, 4), torch.ones(3, 4).double()), (torch.tensor(1.0), torch.tensor(1.0))):
        with pytest.raises(BadInput, match="all_to_all of heads on 3 ranks .*: both must have a row for each rank"):
            comm.all_to_all(tensor, into, "heads")


def test_a_simulated_all_to_all_is_counted_and_sends_nothing():
    comm, got = SimulatedComm(1, 3), torch.empty(3, 2)
    comm.all_to_all(torch.arange(6.0).view(3, 2), got, "a").wait()
    assert comm.sent == {"all_to_all": 16} and got.tolist() == [[2.0, 3.0]] * 3


def in_pieces(least: int) -> list:
    comm, gloo.PIECE_BYTES = Comm(), least
    try:
        layout = Layout.build({"a": (700_001,)}, comm.world_size)
        row, other = row_of(comm.rank, layout, torch.float32), torch.arange(layout.padded)
        got = []
        scatter = comm.reduce_scatter(row, layout, "a", done=got.append)
        other[: layout.bounds[comm.rank]], other[layout.bounds[comm.rank + 1] :] = 0, 0
        gather = comm.all_gather(other, layout, "b")
        works = len(scatter.works), len(gather.works)
        gather.wait()
        scatter.wait()
        ok = torch.equal(got[0], expected_sum(layout, comm.world_size, torch.float32)[layout.slice(comm.rank)])
        return [ok, torch.equal(other, torch.arange(layout.padded)), *works]
    finally:
        gloo.PIECE_BYTES = 1 << 20


@pytest.mark.parametrize("least, pieces", [(1 << 20, (1, 2)), (100_000, (14, 16))])
def test_large_rows_travel_in_pieces(pool, least, pieces):
    """Slices of 1.3 and 2.7 MiB: a piece is at least `PIECE_BYTES`, and there are at most 16."""
    there_and_back = [2 * count for count in pieces]
    assert pool(2).run(in_pieces, least) == [[True, True, *there_and_back]] * 2


# --- metadata ---

def metadata_values() -> dict:
    comm, found = Comm(), {}
    r = comm.rank
    found["max"] = comm.all_reduce(torch.tensor([r, 5 - r, 3], dtype=torch.uint8), "max").tolist()
    scalar = torch.tensor(0.1 + r)
    found["sum"] = (comm.all_reduce(scalar) is scalar, scalar.item())
    found["sum of halves"] = comm.all_reduce(row_of(r, layouts(3)["even"], torch.bfloat16)).tolist()
    table = (torch.arange(6.0).view(2, 3) if r == 0 else torch.full((2, 3), -1.0)).t()[::2]  # not in one piece
    found["broadcast"] = comm.broadcast(table, "table").tolist(), table.is_contiguous()
    flags = torch.tensor([[r == 0, False], [False, r == 0]])
    found["bool"] = comm.broadcast(flags, "flags").tolist()
    found["scalar"] = comm.broadcast(torch.tensor(7 if r == 0 else 0), "n").item()
    found["empty"] = comm.broadcast(torch.ones(0, 3), "none").tolist()
    found["objects"] = comm.all_gather_object({"rank": r, "text": "é" * r})
    return found


@pytest.mark.parametrize("world_size", [2, 3])
def test_metadata(pool, world_size):
    summed = torch.tensor(0.1)
    for rank in range(1, world_size):
        summed = summed + torch.tensor(0.1 + rank)
    half = [row_of(rank, layouts(3)["even"], torch.bfloat16).float() for rank in range(world_size)]
    expected = {"max": [world_size - 1, 5, 3], "sum": (True, summed.item()),
                "sum of halves": sum(half[1:], half[0]).bfloat16().tolist(),
                "broadcast": ([[0.0, 3.0], [2.0, 5.0]], False), "bool": [[True, False], [False, True]],
                "scalar": 7, "empty": [],
                "objects": [{"rank": rank, "text": "é" * rank} for rank in range(world_size)]}
    for found in pool(world_size).run(metadata_values):
        assert found == expected


# --- counts ---

def counted() -> dict:
    """Ten elements on each rank's three: bytes by kind after each call."""
    comm = Comm()
    layout = Layout.build({"a": (7,), "b": (3,)}, comm.world_size)
    found = {"start": (comm.sent.total(), comm.elements.total(), comm.padding, comm.metadata)}
    comm.all_gather(torch.zeros(layout.padded, dtype=torch.bfloat16), layout, "a").wait()
    found["all_gather"] = (comm.sent["all_gather"], comm.elements["all_gather"], comm.padding, comm.metadata)
    comm.reduce_scatter(torch.zeros(layout.padded), layout, "a").wait()
    found["reduce_scatter"] = (comm.sent["reduce_scatter"], comm.elements["reduce_scatter"], comm.padding,
                               comm.metadata)
    comm.all_reduce(torch.zeros(5, dtype=torch.uint8), "max")
    comm.all_reduce(torch.zeros(()))
    found["agreed"] = (comm.sent.total(), comm.padding, comm.metadata)
    comm.broadcast(torch.zeros(4), "a")
    comm.all_gather_object(1)
    found["broadcast"] = (comm.sent.total(), comm.padding, comm.metadata)
    return found


def keys_left() -> list[int]:
    """Keys in the store before objects are exchanged, after few exchanges, and after many."""
    comm, store, counts = Comm(), dist.distributed_c10d._get_process_group_store(dist.group.WORLD), []
    for number in (0, 5, 200):
        for each in range(number):
            assert comm.all_gather_object([comm.rank, each]) == [[rank, each] for rank in range(comm.world_size)]
        dist.barrier()
        counts.append(store.num_keys())
        dist.barrier()
    return counts


def test_the_store_does_not_grow_with_the_objects_that_it_carried(pool):
    for before, few, many in pool(3).run(keys_left):
        assert many == few <= before + 4, "of the last exchange alone: a key for each rank, and one that counts readers"


def drops_what_it_started(rounds: int = 10) -> list[int]:
    """Each rank is by turns the late one, when the other has dropped what it would have received."""
    found = []
    for number in range(rounds):
        comm = Comm()
        if number % 2 == comm.rank:
            time.sleep(0.02)
        comm.start_max([comm.rank], torch.device("cpu"), "dropped")
        found.append(sum(comm.all_gather_object(number)))
    return found


def test_a_message_that_nobody_waits_for_leaves_the_connection_whole(pool):
    """As a backward leaves it that ended in an exception. (gloo alone breaks a pair whose receiver has gone.)"""
    assert pool(2).run(drops_what_it_started) == [[2 * number for number in range(10)]] * 2


def test_counts_are_exact(pool):
    """At 4 ranks slices of 3, the last with one element and 2 of padding. Data is counted without padding."""
    for rank, found in enumerate(pool(4).run(counted)):
        real, padding = (3, 0) if rank < 3 else (1, 2)
        to_others = 10 - real, 2 - padding  # what reduce_scatter sends: all that is not one's own
        padded = 3 * padding * 2
        assert found["start"] == (0, 0, 0, 0)
        assert found["all_gather"] == (3 * real * 2, 3 * real, padded, 0)
        padded += to_others[1] * 4
        assert found["reduce_scatter"] == (to_others[0] * 4, to_others[0], padded, 0)
        data, metadata = 3 * real * 2 + to_others[0] * 4, 3 * (5 + 4)
        assert found["agreed"] == (data, padded, metadata)
        assert found["broadcast"] == (data, padded, metadata + (3 * 4 * 4 if rank == 0 else 0))


def on_loopback(elements: int) -> dict:
    """Bytes on the loopback interface for each rank's Ψ elements, as a multiple of Ψ's bytes (needs quiet)."""
    comm = Comm()

    def carried() -> int:
        comm.all_reduce(torch.zeros(1), "max")
        line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
        comm.all_reduce(torch.zeros(1), "max")
        return int(line.split(":")[1].split()[8])  # sent

    layout = Layout.build({"a": (elements,)}, comm.world_size)
    found, row, own = {}, torch.ones(layout.padded), torch.empty(layout.padded // comm.world_size)
    gloos_own = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    calls = {"reduce_scatter": lambda: comm.reduce_scatter(row, layout, "a").wait(),
             "all_gather": lambda: comm.all_gather(row, layout, "a").wait(),
             "gloo's own": lambda: gloos_own(own, row)}
    for name, call in calls.items():
        call()  # connections and buffers are there
        on_the_wire = []
        for _ in range(5):  # a busy kernel sends some segments again, which only adds: the least is the call's own
            before, counted = carried(), comm.sent.total()
            call()
            on_the_wire.append((carried() - before) / comm.world_size / (4 * elements))
            found[f"{name}, as counted"] = (comm.sent.total() - counted) / (4 * elements)
        found[name] = min(on_the_wire)
    return found


def measure_the_wire() -> None:
    for world_size in (2, 4):
        with Ranks(world_size, timeout=60, quiet=True, env={"GLOO_SOCKET_IFNAME": "lo"}) as ranks:
            print(json.dumps([world_size, ranks.run(on_loopback, 2_000_000)[0]]))


def private_network() -> str | None:
    """Why a network namespace of our own is not to be had here, or None."""
    if sys.platform != "linux" or not shutil.which("unshare"):
        return "there is no unshare on this system"
    if not shutil.which("ip"):
        return "there is no ip: install iproute2"
    tried = subprocess.run(["unshare", "-n", "ip", "link", "set", "lo", "up"], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"a network namespace is not permitted: {tried.stderr.strip()}"


@pytest.mark.alone  # bytes of a connection, which sends again what is late
def test_the_wire_carries_what_is_counted():
    """Both collectives together: 2Ψ(N-1)/N a rank, within 2 %; gloo's own reduce_scatter: twice its part."""
    if reason := private_network():
        pytest.skip(reason)
    root = Path(__file__).parents[2]
    script = f"ip link set lo up && exec {sys.executable} {__file__}"
    done = subprocess.run(["unshare", "-n", "sh", "-c", script], capture_output=True, text=True, timeout=100,
                          env={**os.environ, "PYTHONPATH": str(root)})
    assert done.returncode == 0, done.stderr
    measured = dict(json.loads(line) for line in done.stdout.splitlines())
    assert set(measured) == {2, 4}
    for world_size, found in measured.items():
        formula = (world_size - 1) / world_size
        for verb in ("reduce_scatter", "all_gather"):
            assert found[verb] == pytest.approx(formula, rel=0.02)
            assert found[verb] >= found[f"{verb}, as counted"] == formula, "nothing is counted that is not sent"
        assert found["reduce_scatter"] + found["all_gather"] == pytest.approx({2: 1.0, 4: 1.5}[world_size], rel=0.02)
        assert found["gloo's own"] == pytest.approx(2 * formula, rel=0.02)
        assert found["gloo's own, as counted"] == 0, "it went past the counter"


# --- handles ---

def handles() -> dict:
    comm, layout = Comm(), Layout.build({"a": (60,)}, dist.get_world_size())
    found = {}

    def started(unit):
        row = torch.zeros(layout.padded)
        row[layout.slice(comm.rank)] = comm.rank + ord(unit)
        return row, comm.all_gather(row, layout, unit)

    # Each rank starts and waits in its own order: what was started pairs up by name.
    order = "abc" if comm.rank else "cab"
    rows = {unit: started(unit) for unit in order}
    for unit in reversed(order):
        rows[unit][1].wait()
        rows[unit][1].wait()  # a second time is nothing
    found["by name"] = [sorted(set((rows[unit][0] - ord(unit)).tolist())) for unit in "abc"]

    row, handle = started("d")
    memory = weakref.ref(row)
    comm.recorder.alive = lambda: int(memory() is not None)
    del row
    gc.collect()
    found["kept until wait"] = memory() is not None
    handle.wait()

    events = [(event.verb, event.bytes, event.alive) for event in comm.recorder.events if event.unit == "d"]
    found["events"] = events, all(event.start <= event.end for event in comm.recorder.events)

    def look(total):
        alive = [each for each in gc.get_objects() if isinstance(each, torch.Tensor) and each.shape == total.shape]
        found["the other terms are gone"] = all(each is total or each._is_view() for each in alive)

    comm.reduce_scatter(torch.ones(layout.padded), layout, "e", done=look).wait()
    return found


@pytest.mark.ranks_may_differ
def test_handles(pool):
    for found in pool(3).run(handles):
        assert found == {"by name": [[0.0, 1.0, 2.0]] * 3, "kept until wait": True, "the other terms are gone": True,
                         "events": ([("wait", 160, 1), ("all_gather", 160, 0)], True)}


def in_two_parts() -> dict:
    """Two buckets are summed up by a reduce-scatter and then an all-gather each, the second half of one beside that of the other."""
    comm, layout = Comm(), Layout.build({"a": (6,)}, dist.get_world_size())
    own, found = layout.slice(comm.rank), {}
    rows = {unit: torch.full((layout.padded,), float(2 ** comm.rank)) for unit in "ab"}

    def second_half(unit):
        return comm.all_gather(rows[unit], layout, unit)

    chains = {unit: comm.reduce_scatter(rows[unit], layout, unit, into=rows[unit][own]).then(partial(second_half, unit)) for unit in "ab"}
    chains["a"] = chains["a"].then(lambda: found.setdefault("at the end", rows["a"].tolist()) and None)
    found["takes"] = chains["a"].tensor is rows["a"], chains["a"].received
    time.sleep(0.2)  # the first half is complete, and nobody has waited for it
    found["begun"] = [verb for verb, *_ in comm.issued]
    found["parts left"] = [chain.advance() for chain in chains.values()]
    found["takes then"] = chains["a"].tensor is rows["a"], chains["a"].received
    for chain in [*chains.values(), *chains.values()]:  # a second time is nothing
        chain.wait()
    found["sums"] = {number for row in rows.values() for number in row.tolist()}
    found["issued"] = [verb + unit for verb, unit, *_ in comm.issued if unit]
    found["events"] = sorted(event.verb + event.unit for event in comm.recorder.events if event.verb != "wait")
    return found | {"over": [chains["a"].tensor, chains["a"].received]}


@pytest.mark.parametrize("ranks", ("pool", "strict_pool"))
def test_one_thing_and_then_another(request, ranks):
    for found in request.getfixturevalue(ranks)(2).run(in_two_parts):
        begun = [verb for verb in found.pop("begun") if verb != "all_reduce_sum"]  # NCCL's first call
        assert begun == ["reduce_scatter"] * 2, "what comes next begins when somebody waits, and not by itself"
        received = found.pop("takes")[1]
        assert found == {"at the end": [3.0] * 6, "parts left": [True, True], "takes then": (True, 0), "sums": {3.0},
                         "issued": ["reduce_scattera", "reduce_scatterb", "all_gathera", "all_gatherb"],
                         "events": ["all_gathera", "all_gatherb", "reduce_scattera", "reduce_scatterb"], "over": [None, 0]}
        assert received == 12


class Fails(Handle):
    def wait(self) -> None:
        raise CollectiveError("too late")


def test_after_an_error_nothing_further_begins():
    done = []
    chain = Chain(None, lambda: done.append("first")).then(Fails).then(lambda: done.append("never"))
    for _ in range(2):
        with pytest.raises(CollectiveError, match="too late"):
            chain.wait()
    assert done == ["first"]
    own = Chain(SimpleNamespace(wait=lambda: done.append("a handle that can only wait")), lambda: done.append("then"))
    assert (own.tensor, own.received) == (None, 0)
    own.wait()
    own.wait()
    assert done == ["first", "a handle that can only wait", "then"]


def test_the_record_keeps_two_steps_and_is_bounded():
    recorder = Recorder(rank=3)
    for step in range(4):
        for unit in "ab":
            with recorder.span("forward", unit):
                pass
        assert [event["unit"] for event in recorder.of_step(step)] == ["a", "b"]
        recorder.next_step()
    assert [event.step for event in recorder.events] == [3, 3], "step 4 begins: it and step 3 are kept"
    for _ in range(MOST_EVENTS + 1):
        recorder.record("forward", "a", 0.0)
    assert len(recorder.events) == MOST_EVENTS


# --- one rank, and groups ---

def test_without_a_process_group():
    assert not dist.is_initialized()
    comm, layout = Comm(), Layout.build({"a": (5,)}, 1)
    row, got = torch.arange(5.0), []
    comm.all_gather(row, layout, "a").wait()
    comm.reduce_scatter(row, layout, "a", done=got.append).wait()
    comm.reduce_scatter(row, layout, "a", into=row, done=got.append).wait()
    assert got[0].tolist() == got[1].tolist() == [0, 1, 2, 3, 4] and got[0] is not row and got[1] is row
    assert comm.all_reduce(row, "max") is row and comm.all_reduce(row) is row and comm.broadcast(row, "a") is row
    assert comm.all_gather_object("x") == ["x"]
    fail_all("nobody hears it")
    assert (comm.rank, comm.world_size, comm.sent.total(), comm.padding, comm.metadata) == (0, 1, 0, 0, 0)


def side_by_side() -> dict:
    """Two groups of two, two Comms in each and two over all, with the same calls, each rank in its own order."""
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine, other = groups[rank // 2], groups[1 - rank // 2]
    found = {}
    try:
        Comm(other)
    except BadInput as error:
        found["stranger"] = str(error)
    comms = {"pair a": Comm(mine), "pair b": Comm(mine), "all a": Comm(), "all b": Comm(dist.group.WORLD)}
    started = {}
    for name in comms if rank % 2 else reversed(comms):
        comm, layout = comms[name], Layout.build({"a": (4,)}, comms[name].world_size)
        row = torch.zeros(4)
        row[layout.slice(comm.rank)] = 10 * list(comms).index(name) + rank
        started[name] = row, comm.all_gather(row, layout, "same")
    for name, (row, handle) in started.items():
        handle.wait()
        found[name] = row.tolist()
    found["ranks"] = comms["pair a"].rank, comms["all b"].rank
    found["sum"] = [comms[name].all_reduce(torch.tensor(rank)).item() for name in ("pair a", "all a")]
    found["objects"] = comms["pair b"].all_gather_object(rank)
    return found


def test_two_comms_side_by_side_in_subgroups(pool):
    for rank, found in enumerate(pool(4).run(side_by_side)):
        first = rank // 2 * 2
        assert found["stranger"] == f"rank {rank} is not in the process group: only its members may use it"
        assert found["pair a"] == [first, first, first + 1, first + 1]
        assert found["pair b"] == [10 + value for value in found["pair a"]]
        assert found["all a"] == [20, 21, 22, 23] and found["all b"] == [30, 31, 32, 33]
        assert found["ranks"] == (rank % 2, rank)
        assert found["sum"] == [2 * first + 1, 6] and found["objects"] == [first, first + 1]


def timeouts() -> list[float]:
    """Seconds that Comms wait: as their group does, or as they are told."""
    group = dist.new_group(timeout=timedelta(seconds=77))
    options = dist.group.WORLD._get_backend(torch.device("cpu")).options
    return [Comm(group).timeout.total_seconds(), Comm(group, timeout=3).timeout.total_seconds(),
            Comm().timeout == options._timeout]


def test_a_comm_waits_as_long_as_its_group(pool):
    assert pool(2).run(timeouts) == [[77, 3, True]] * 2
    assert Comm().timeout.total_seconds() > 0, "a world of one rank waits for nobody"


# --- the order of what ranks issue ---

def one_of_each() -> list:
    """What a Comm remembers of its calls, and whether another one's events are in the same record."""
    comm = Comm()
    other, layout = Comm(recorder=comm.recorder), Layout.build({"a": (6,)}, comm.world_size)
    for _ in range(2):
        comm.all_gather(torch.zeros(6), layout, "a").wait()
    other.reduce_scatter(torch.zeros(6, dtype=torch.bfloat16), layout, "b").wait()
    comm.all_reduce(torch.zeros(3), "max")
    comm.broadcast(torch.zeros(0), "c")
    comm.all_gather_object(1)
    events = [event.verb for event in comm.recorder.events if event.verb != "wait"]
    return [list(comm.issued), list(other.issued), events]


def test_a_comm_remembers_what_it_issued_in_order(pool):
    gather = ("all_gather", "a", 6, torch.float32)
    issued = [gather, gather, ("all_reduce_max", "", 3, torch.float32), ("broadcast", "c", 0, torch.float32),
              ("all_gather_object", "", 0, None)]
    assert pool(2).run(one_of_each) == [[issued, [("reduce_scatter", "b", 6, torch.bfloat16)],
                                         ["all_gather", "all_gather", "reduce_scatter"]]] * 2


def crossed(odd_unit: str, kept: list[int]) -> None:
    """Two gathers that gloo pairs up by their tags; rank 1 begins with `odd_unit`. Only ranks in `kept` take part."""
    group = dist.new_group(kept)
    if dist.get_rank() not in kept:
        return
    comm, layout = Comm(group), Layout.build({"a": (6,)}, len(kept))
    order = sorted("ab", key=lambda unit: unit != odd_unit) if comm.rank == 1 else "ab"
    for handle in [comm.all_gather(torch.zeros(6), layout, unit) for unit in order]:
        handle.wait()


def test_the_pool_asserts_one_order_on_all_ranks_of_a_group(pool):
    pool(3).run(crossed, "a", [0, 2])  # rank 1 of the world issues nothing, and is in no group
    with pytest.raises(AssertionError, match=r"ranks 0 and 2 issued different collectives in Comm \S+: number 1 is \("
                                             r"'all_gather', 'a', 6, torch.float32\) on rank 0 and .*'b'.* on rank 2"):
        pool(3).run(crossed, "b", [0, 2])
    pool(3).run(crossed, "a", [0, 1, 2])


def untouched() -> list[int]:
    """Keys in the store before and after some steps in which nothing reads a tensor's value or address."""
    comm, keys = Comm(), []
    layout = Layout.build({"a": (7,)}, comm.world_size)
    tensor, table = torch.zeros(layout.padded), torch.zeros(3, 2).t()

    def forbidden(self, *_):
        raise AssertionError("a tensor was read")

    given = {name: getattr(torch.Tensor, name) for name in ("item", "tolist", "data_ptr", "__bool__", "__float__")}
    for _ in range(2):
        dist.barrier()
        keys.append(comm.report.questions.num_keys())
        dist.barrier()
        for name in given:
            setattr(torch.Tensor, name, forbidden)
        try:
            comm.all_gather(tensor, layout, "a").wait()
            comm.reduce_scatter(tensor, layout, "a").wait()
            comm.all_reduce(table, "max")
            comm.all_reduce(tensor)
            comm.broadcast(table, "a")
        finally:
            for name, own in given.items():
                setattr(torch.Tensor, name, own)
    return keys


def test_a_step_reads_no_tensor_and_writes_nothing_to_the_store(pool):
    for before, after in pool(2).run(untouched):
        assert before == after


def test_the_backend_is_chosen_by_device_and_group():
    both, shared = "cpu:gloo,cuda:nccl", "cpu:gloo,cuda:gloo"
    assert [backends.choose(device, both).__name__ for device in ("cpu", "cuda")] == ["Gloo", "Nccl"]
    assert [backends.choose(device, shared).__name__ for device in ("cpu", "cuda")] == ["Gloo", "StagedGloo"]
    assert backends.choose("cpu", "").__name__ == "Gloo", "one rank without a process group"


# --- waits that take long ---

def soon(fn, *args):
    """`fn(*args)` on a rank that speaks up after a fifth of a second, and again and again."""
    names = "NOTICE_SECONDS", "REPEAT_SECONDS", "LOOK_SECONDS"
    before = [getattr(watch, name) for name in names]
    for name, seconds in zip(names, (0.2, 0.2, 0.05), strict=True):
        setattr(watch, name, seconds)
    try:
        return fn(*args)
    finally:
        for name, seconds in zip(names, before, strict=True):
            setattr(watch, name, seconds)


def waits_long(verb: str) -> tuple[list[str], str]:
    """Rank 1 computes while the others wait for it: what each says meanwhile, and how it ends."""
    comm = Comm(dist.new_group(), timeout=5)
    layout, tensor = Layout.build({"a": (6,)}, comm.world_size), torch.zeros(6)
    calls = {"all_gather": lambda: comm.all_gather(tensor, layout, "a").wait(),
             "all_reduce": lambda: comm.all_reduce(tensor), "broadcast": lambda: comm.broadcast(tensor, "a"),
             "all_gather_object": lambda: comm.all_gather_object(1),
             "all_to_all": lambda: comm.all_to_all(torch.zeros(3, 2), torch.empty(3, 2), "a").wait()}
    said, sys.stderr = sys.stderr, io.StringIO()
    try:
        calls[verb]()
        time.sleep(0.7 * (comm.rank == (0 if verb == "broadcast" else 1)))
        calls[verb]()
        return sys.stderr.getvalue().splitlines(), "completed"
    finally:
        sys.stderr = said


@pytest.mark.parametrize("verb", ["all_gather", "all_to_all", "all_reduce", "broadcast", "all_gather_object"])
def test_a_wait_says_what_it_waits_for_and_goes_on(spoiled, verb):
    found = spoiled[3].run(soon, waits_long, verb)
    late = 0 if verb == "broadcast" else 1
    assert [end for _, end in found] == ["completed"] * 3
    for rank, (lines, _) in enumerate(found):
        if rank == late:
            assert lines == []
            continue
        assert 2 <= len(lines) <= 3, "after a fifth of a second, and again"
        for line in lines:
            begun = rf"zerocourse: rank {rank} has waited 0\.\d+ s, since \d\d:\d\d:\d\d, for {verb}.* #2: "
            assert re.match(begun, line)
            assert re.search(rf"rank {late} is in no collective \(it completed 1, the last was {verb}.* #1\)", line)
            assert re.search(rf"rank {3 - late - rank} is in {verb}.* #2", line)


def speaks_before_it_fails() -> list[str]:
    """Two ranks in different collectives, a third that never comes: the notices, then the error."""
    comm, said = Comm(dist.new_group(), timeout=0.8), sys.stderr
    sys.stderr = io.StringIO()
    try:
        if comm.rank < 2:
            comm.broadcast(torch.zeros(2), "a") if comm.rank else comm.all_reduce(torch.zeros(1))
        time.sleep(2.5)
    except CollectiveError as error:
        return [*sys.stderr.getvalue().splitlines(), str(error)]
    finally:
        sys.stderr = said
    return []


def test_notices_and_error_tell_another_collective_from_none(spoiled):
    first, second, third = spoiled[3].run(soon, speaks_before_it_fails)
    assert not third and len(first) >= 3 and len(second) >= 3
    for line in first[:-1]:
        assert "; rank 2 is in no collective (it has completed none)" in line
        assert ": rank 1 is in broadcast of a (2 float32) #1;" in line
    for words in (first[-1], second[-1]):
        begins, _, rest = words.partition(": ")  # on a busy machine one of the two has given up before the other's time is over
        assert begins in ("a collective did not complete within 0.8 s", "a collective broke off")
        assert rest.startswith("rank 0 was in all_reduce_sum (1 float32) #1; rank 1 was in broadcast of a (2 float32) #1; rank 2 was in no "
                               "collective (")
        assert words.endswith(f". {desync.ORDER}")


def ends_its_loop_early(afterwards: str) -> str:
    """Rank 1 has one batch fewer than the others, and leaves the function in which its Comm was."""
    group = dist.new_group()

    def loop(batches):
        comm = Comm(group, timeout=0.5)
        for _ in range(batches):
            comm.all_reduce(torch.zeros(1))

    other = Comm(dist.new_group(), timeout=1.5)
    try:
        loop(3 - (dist.get_rank() == 1))
    except CollectiveError as error:
        return str(error)
    gc.collect()
    if afterwards == "another Comm":
        with contextlib.suppress(CollectiveError):
            other.all_gather_object("done")
    else:
        time.sleep(1)
    return ""


@pytest.mark.parametrize("afterwards", ["nothing", "another Comm"])
def test_a_loop_that_ended_earlier_is_not_called_another_order(spoiled, afterwards):
    words, nothing = spoiled[2].run(soon, ends_its_loop_early, afterwards)
    assert nothing == ""
    assert "did not complete within 0.5 s: rank 0 was in all_reduce_sum (1 float32) #3; rank 1 was in " in words
    if afterwards == "nothing":
        assert "was in no collective (it completed 2, the last was all_reduce_sum (1 float32) #2)" in words
        assert words.endswith("it may have ended its loop earlier, or still computes") and "order" not in words
    else:
        assert "rank 1 was in all_gather_object #1 of another Comm" in words


class Skipping(nn.Module):
    """Its middle block is left out where `skip` says so."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x, skip: bool):
        for number, block in enumerate(self.blocks):
            x = x if skip and number == 1 else x + torch.tanh(block(x))
        return x.square().mean()


def skips(stage: int) -> tuple[float, str]:
    """Rank 0 skips a block in the second step: after how many seconds which error."""
    model, _ = shard(Skipping(), stage=stage, comm=Comm(dist.new_group(), timeout=30))
    begun = time.monotonic()
    try:
        for step in range(2):
            model(torch.ones(2, 6), skip=step == 1 and dist.get_rank() == 0).backward()
            model.zero_grad()
    except CollectiveError as error:
        return time.monotonic() - begun, str(error)
    return 0.0, ""


def test_a_block_that_one_rank_skips_ends_a_step_of_stage_3_at_once_on_all_ranks(spoiled):
    for seconds, words in spoiled[3].run(skips, 3):
        assert seconds < 5, "about one second, of a time limit of 30"
        assert words == ("unit 'blocks.1' ran on rank 1 and was skipped on rank 0: at stage 3, which gathers it, every rank must run the "
                         "same units")


@pytest.mark.parametrize("stage", (0, 1, 2))
def test_a_block_that_one_rank_skips_is_trained_where_all_have_it(pool, stage):
    assert pool(3).run(skips, stage) == [(0.0, "")] * 3


def waits_in_another() -> tuple[float, str]:
    """Each rank waits in another Comm."""
    comms = [Comm(dist.new_group(), timeout=30) for _ in range(2)]
    for comm in comms:
        comm.all_reduce(torch.zeros(1))
    begun = time.monotonic()
    try:
        comms[dist.get_rank()].all_reduce(torch.zeros(1))
    except CollectiveError as error:
        return time.monotonic() - begun, str(error)
    return 0.0, ""


def test_ranks_that_wait_for_each_other_in_two_groups(spoiled):
    for seconds, words in spoiled[2].run(waits_in_another):
        assert seconds < 5 and words.startswith("a collective can never complete: rank ")
        assert all(f"rank {rank} was in all_reduce_sum (1 float32) #2" in words for rank in range(2)) and " of another Comm" in words


def hasty(fn, *args):
    """`fn(*args)` on a rank whose watcher looks for proofs all the time."""
    before = mutual_waits.PROVE_SECONDS, watch.WAITING_SECONDS
    mutual_waits.PROVE_SECONDS, watch.WAITING_SECONDS = 0.0, 0.001
    watch.start()
    try:
        return fn(*args)
    finally:
        mutual_waits.PROVE_SECONDS, watch.WAITING_SECONDS = before


def slow_and_in_order() -> int:
    """Ranks that pause by turns, with several collectives in flight, in two Comms; in the end each from a thread of its own,
    in an order of their own."""
    rank, layout = dist.get_rank(), Layout.build({"a": (5,)}, dist.get_world_size())
    comms, dice = [Comm(timeout=30), Comm(timeout=30)], random.Random(rank)

    def calls(comm: Comm, count: int, first: float = 0.0) -> None:
        time.sleep(first)
        for number in range(count):
            handles = [comm.all_gather(torch.zeros(layout.padded), layout, unit) for unit in ("a", f"b{number % 3}")]
            time.sleep(dice.choice((0, 0, 0.002, 0.01)))
            for handle in handles[:: dice.choice((1, -1))]:
                handle.wait()
            comm.all_reduce(torch.zeros(1))

    for number in range(30):
        calls(comms[number % 2], 1)
    threads = [threading.Thread(target=calls, args=(comm, 5, 0.05 * ((rank + number) % 2))) for number, comm in enumerate(comms)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(comm.progress.completed for comm in comms)


def test_slowness_proves_nothing(pool):
    for world_size in (2, 3):
        assert pool(world_size).run(hasty, slow_and_in_order) == [3 * (30 + 2 * 5)] * world_size


def makes_it_alone(others_have_one: bool) -> list[str]:
    """Rank 0 makes a Comm that no other rank makes; without any Comm, the others have nobody who could answer."""
    desync.COMPARE_SECONDS, said, group = 1, sys.stderr, dist.new_group()
    made = [Comm()] * others_have_one
    if dist.get_rank():
        time.sleep(2.5)
        return made[1:]
    sys.stderr = io.StringIO()
    try:
        Comm(group, timeout=0.5).all_reduce(torch.zeros(1))
    except CollectiveError as error:
        return [*sys.stderr.getvalue().splitlines(), str(error)]
    finally:
        sys.stderr = said


@pytest.mark.parametrize("others_have_one", [True, False])
def test_a_comm_on_one_rank_only_says_who_never_came(others_have_one):
    with Ranks(2, timeout=60, quiet=True) as ranks:
        lines, _ = ranks.run(soon, makes_it_alone, others_have_one)
    assert len(lines) >= (2 if others_have_one else 1), "notices and the error"
    for line in lines:
        assert line.endswith(" rank 1 has not made this Comm, which every rank of its group must make")


# --- ranks that disagree ---

def disagree(case: str, timeout: float) -> tuple[float, str, str]:
    """What this rank of a group of its own got: (seconds, kind of the error, its words)."""
    comm = Comm(dist.new_group(list(range(dist.get_world_size()))), timeout=timeout)
    odd, layout = comm.rank == 1, Layout.build({"a": (4 * comm.world_size,)}, comm.world_size)
    row = torch.zeros(layout.padded)
    shapes = {"a": (4 * comm.world_size - 2,), "b": (2,)}
    swapped = Layout.build(shapes, comm.world_size, {"a": int(odd), "b": int(not odd)})
    calls = {
        "unit": lambda: comm.all_gather(row, layout, "h.1" if odd else "h.0").wait(),
        "verb": lambda: (comm.reduce_scatter if odd else comm.all_gather)(row, layout, "h.0").wait(),
        "ahead": lambda: [comm.all_gather(row, layout, "h.0").wait() for _ in range(2 - odd)] + [comm.all_reduce(row)],
        "op": lambda: comm.all_reduce(row, "sum" if odd else "max"),
        "broadcast": lambda: (comm.broadcast(row, "bias" if odd else "weight") if comm.rank < 2
                              else comm.all_reduce(row)),
        "objects": lambda: comm.all_gather_object(1) if odd else comm.all_reduce(row),
        "dtype": lambda: comm.all_gather(row.int() if odd else row, layout, "h.0").wait(),
        "layout": lambda: comm.all_gather(row, swapped, "h.0").wait(),
    }
    begun = time.monotonic()
    try:
        calls[case]()
        return time.monotonic() - begun, "nothing", ""
    except Exception as error:
        return time.monotonic() - begun, type(error).__name__, str(error)


EVEN, ODD = {  # what ranks 0 (and 2) and rank 1 are said to be in
    "unit": "all_gather of h.0 ", "verb": "all_gather of h.0 ", "ahead": "all_gather of h.0 (8 float32) #2",
    "op": "all_reduce_max ", "broadcast": "broadcast of weight ", "objects": "all_reduce_sum ",
    "dtype": "all_gather of h.0 (8 float32)", "layout": "all_gather of h.0 ",
}, {
    "unit": "all_gather of h.1 ", "verb": "reduce_scatter of h.0 ", "ahead": "all_reduce_sum ", "op": "all_reduce_sum ",
    "broadcast": "broadcast of bias ", "objects": "all_gather_object ", "dtype": "all_gather of h.0 (8 int32)",
    "layout": "all_gather of h.0 ",
}


@pytest.fixture(scope="module")
def spoiled():
    """Ranks whose groups are broken on purpose: not those of other tests."""
    kept = {world_size: Ranks(world_size, timeout=60, quiet=True) for world_size in (2, 3)}
    yield kept
    for ranks in kept.values():
        ranks.close()


@pytest.mark.parametrize("world_size, case",
                         [*((2, case) for case in EVEN), (3, "unit"), (3, "verb"), (3, "broadcast")])
def test_13_a_collective_out_of_order_names_ranks_and_calls(spoiled, world_size, case):
    """On every rank, within the timeout, with equal sizes too. Trap 13."""
    timeout = 1 if case == "unit" else 0.5
    for seconds, kind, words in spoiled[world_size].run(disagree, case, timeout):
        assert kind == "CollectiveError", f"{kind}: {words}"
        assert seconds < timeout + 3, "as long as the timeout, and a little for the notes"
        assert f"rank 0 was in {EVEN[case]}" in words and f"rank 1 was in {ODD[case]}" in words, words
        assert ("layout" in words) == (case == "layout") and "\n" not in words
        assert ("same order" in words) == (case != "layout")


def absent(timeout: float) -> tuple[float, str]:
    """Rank 0 waits for the others, which do something else, and come later."""
    comm = Comm(dist.new_group(list(range(dist.get_world_size()))), timeout=timeout)
    begun, words = time.monotonic(), ""
    time.sleep(comm.rank * (timeout + 1))  # after rank 0 has waited for the call, and then for an answer
    try:
        comm.all_reduce(torch.zeros(1))
    except CollectiveError as error:
        words = str(error)
    return time.monotonic() - begun, words


def test_13_a_rank_that_never_came(spoiled):
    here, there = spoiled[2].run(soon, absent, 0.5)
    assert 0.5 <= here[0] < 3
    call = "all_reduce_sum (1 float32) #1"
    assert here[1] == (f"a collective did not complete within 0.5 s: rank 0 was in {call}; rank 1 was in no "
                       "collective (it has completed none): it may have ended its loop earlier, or still computes")
    assert there[0] < 5 and f"rank 0 was in {call}; rank 1 was in {call}" in there[1]


def leaves(waiting_in: str, leaving: list[int]) -> tuple[float, str]:
    """Some ranks leave with a reason while the others wait; seconds from then on, and what they heard."""
    comm, desync.HEARD_SECONDS = Comm(timeout=30), 20
    referred_to = dist.group.WORLD  # as by a traceback: the group is destroyed, and its connections stay
    layout = Layout.build({"a": (8,)}, comm.world_size)
    comm.all_gather_object("all are here")
    begun = time.monotonic()
    try:
        if comm.rank in leaving:
            time.sleep(0.5)
            fail_all(f"out of memory at {comm.rank} GiB")
            assert referred_to.size() == 3
            return time.monotonic() - begun, "left"
        {"all_gather": lambda: comm.all_gather(torch.zeros(layout.padded), layout, "h.0").wait(),
         "reduce_scatter": lambda: comm.reduce_scatter(torch.zeros(layout.padded), layout, "h.0").wait(),
         "all_gather_object": lambda: comm.all_gather_object(1),
         "all_reduce_sum": lambda: comm.all_reduce(torch.zeros(3))}[waiting_in]()
        return time.monotonic() - begun, "nothing"
    except CollectiveError as error:
        return time.monotonic() - begun, str(error)


def test_only_the_first_reason_to_leave_is_kept():
    """A rank that failed because another one left has nothing to add."""
    report = object.__new__(desync.DesyncReport)  # without a group
    report.rank, report.names, report.store = 1, ["rank 0", "rank 1"], dist.HashStore()
    report.tell("the disk is full")
    report.tell("rank 0 is gone")
    assert json.loads(report.store.get("left")) == [False, "rank 1: the disk is full"]


@pytest.mark.parametrize("waiting_in, leaving", [("all_gather", [0]), ("reduce_scatter", [1]), ("all_reduce_sum", [2]),
                                                 ("all_gather_object", [0]), ("all_reduce_sum", [0, 2])])
def test_a_rank_that_leaves_tells_the_others_why_at_once(waiting_in, leaving):
    with Ranks(3, timeout=60, quiet=True) as ranks:
        found = ranks.run(leaves, waiting_in, leaving)
    for rank, (seconds, words) in enumerate(found):
        assert seconds < 8, f"rank {rank}: the reason comes at once, not after a timeout"
        if rank in leaving:
            assert words == "left"
        else:
            assert words.startswith(f"rank {rank} stopped in {waiting_in}")
            reasons = [f"rank {who}: out of memory at {who} GiB" for who in leaving]
            assert any(words.endswith(f"because another rank left: {reason}") for reason in reasons)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_reason_arrives_although_the_rank_that_left_takes_the_store_with_it():
    def slow_to_look(rank):
        explain = desync.DesyncReport.explain
        desync.DesyncReport.explain = lambda *args: (time.sleep(0.5), explain(*args))[1]
        return leaves("all_reduce_sum", [0])

    found = forked(3, slow_to_look, own_store=False)
    assert found[0][1] == "left"
    for rank in (1, 2):
        assert found[rank][1].endswith("because another rank left: rank 0: out of memory at 0 GiB")


RAISES_ON_RANK_1 = """
import sys, torch, torch.distributed as dist
sys.excepthook = lambda kind, error, trace: print("the hook from before:", kind.__name__, error)
from zerocourse.comm import Comm, bootstrap
bootstrap.init()
comm = Comm()
comm.all_reduce(torch.zeros(1))
comm.all_reduce(torch.ones(1) / (1 // (1 - comm.rank)))
"""


def test_an_uncaught_exception_is_told_to_the_ranks_that_wait():
    """In a script under torchrun nobody but Python sees the exception."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    begun = time.monotonic()
    ranks = [subprocess.Popen([sys.executable, "-c", RAISES_ON_RANK_1], text=True, stdout=-1, stderr=-2, env={
                 **os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": str(Path(__file__).parents[2])})
             for rank in range(2)]
    try:
        said = [rank.communicate(timeout=50)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [1, 1] and time.monotonic() - begun < 50
    assert "the hook from before: ZeroDivisionError" in said[1]
    assert re.search(r"the hook from before: CollectiveError rank 0 stopped in all_reduce_sum \(1 float32\) #2, "
                     r"because another rank left: rank 1: ZeroDivisionError: \S+ division", said[0])


# --- ranks that die: forked from here, because a pool stops the others at once ---

def forked(world_size: int, fn, *args, own_store: bool = True) -> dict[int, object]:
    """Run `fn(rank, *args)` in processes of their own with a process group; what each that lived returned.

    own_store: this process keeps the group's store, as torchrun's agent does; else rank 0 does. A fork of a process
    with threads now and then inherits a lock that nobody will open: what never begins is begun anew, twice.
    """
    for _ in range(3):
        found, stuck = forked_once(world_size, fn, *args, own_store=own_store)
        if not stuck:
            return found
    raise AssertionError(f"ranks {stuck} were still there after 35 s, three times")


def forked_once(world_size: int, fn, *args, own_store: bool) -> tuple[dict[int, object], list[int]]:
    """What each rank returned, and who had to be ended."""
    fork = multiprocessing.get_context("fork")
    results = fork.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False) if own_store else None  # noqa: F841  # it lives until we return

    def main(rank):
        code = 1
        try:
            store = dist.TCPStore("127.0.0.1", port, is_master=not own_store and rank == 0, wait_for_workers=False)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
            results.put((rank, fn(rank, *args), None))
            code = 0
        except BaseException:
            results.put((rank, None, traceback.format_exc()))
        finally:
            os._exit(code)

    processes = [fork.Process(target=main, args=(rank,)) for rank in range(world_size)]
    for process in processes:
        process.start()
    until = time.monotonic() + 35
    for process in processes:
        process.join(max(0, until - time.monotonic()))
    stuck = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for process in processes:
        process.kill()
    found = {}
    while not results.empty():
        rank, found[rank], failure = results.get()
        assert not failure, f"rank {rank}: {failure}"
    return found, stuck


def dies(rank: int, who: int) -> tuple[float, str]:
    comm, desync.COMPARE_SECONDS = Comm(timeout=30), 1
    layout = Layout.build({"a": (1_000_000,)}, comm.world_size)
    comm.all_gather_object("all are here")
    begun = time.monotonic()
    if rank == who:
        time.sleep(0.3)  # the others have read that all are here
        comm.all_gather(torch.zeros(layout.padded), layout, "h.0")  # on its way, and nobody will ever complete it
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        comm.all_gather(torch.zeros(layout.padded), layout, "h.0").wait()
        comm.all_gather(torch.zeros(layout.padded), layout, "h.1").wait()
        return time.monotonic() - begun, "nothing"
    except CollectiveError as error:
        return time.monotonic() - begun, str(error)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("who, own_store", [(1, True), (0, True), (0, False)])
def test_a_rank_that_dies_is_missed_by_all_others(who, own_store):
    found = forked(3, dies, who, own_store=own_store)
    assert sorted(found) == [rank for rank in range(3) if rank != who]
    for seconds, words in found.values():
        assert seconds < 8, "long before the timeout of 30 s"
        silent = f"rank {who} did not answer: its process is gone"
        unknown = "the other ranks could not be asked, because the process that kept the store is gone"
        assert words.startswith("a collective broke off: ") and (silent if own_store else unknown) in words
        assert "of h." in words and "same order" not in words


def outlives_the_store(rank: int) -> str:
    """Rank 0 is done earlier, and takes the store along; what rank 1 has on stderr then, also from C++."""
    watch.LOOK_SECONDS = 60
    Comm().all_reduce(torch.zeros(1))
    time.sleep(0.3)
    if rank == 0:
        return ""
    with tempfile.TemporaryFile() as stderr:
        os.dup2(stderr.fileno(), 2)
        time.sleep(0.9)  # a process that ends is silent for some time before its connections close
        watch.start()
        time.sleep(0.2)
        stderr.seek(0)
        return stderr.read().decode()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_rank_that_is_done_first_leaves_no_noise_to_the_others():
    assert forked(2, outlives_the_store, own_store=False) == {0: "", 1: ""}


# --- what this machine does not have, by stand-ins ---

def hide_new_names() -> None:
    """torch 2.10 knows these collectives by their older names only."""
    for name in ("all_gather_single", "reduce_scatter_single"):
        if hasattr(dist, name):
            delattr(dist, name)


def as_on_nccl(rank: int, old_names: bool) -> tuple[list, dict]:
    """All of `collect_and_compare`, but for the sums of halves, on gloo's own collectives as if it were NCCL's."""
    if old_names:
        hide_new_names()
    used = {}
    for name in ("all_gather_single", "reduce_scatter_single", "all_gather_into_tensor", "reduce_scatter_tensor",
                 "batch_isend_irecv", "all_reduce", "broadcast", "all_to_all_single"):
        def counting(*args, _of=getattr(dist, name, None), _name=name, **kwargs):
            used[_name] = used.get(_name, 0) + 1
            tensors = [each.tensor for each in args[0]] if isinstance(args[0], list) else [each for each in args if isinstance(each, torch.Tensor)]
            assert {tensor.dtype for tensor in tensors} <= nccl.DTYPES, _name
            return _of(*args, **kwargs)

        if hasattr(dist, name):
            setattr(dist, name, counting)
    backends.choose = lambda device_type, configured: backends.Nccl
    comm, wrong = Comm(), []
    for name, layout in layouts(comm.world_size).items():
        used.clear()
        whole, got = torch.arange(layout.padded), []
        row, mine = torch.full_like(whole, -1), layout.slice(rank)
        row[mine] = whole[mine]
        comm.all_gather(row, layout, name).wait()
        for into in (None, "own slice"):
            terms = row_of(rank, layout, torch.int64)
            comm.reduce_scatter(terms, layout, name, None if into is None else terms[mine], done=got.append).wait()
        summed = expected_sum(layout, comm.world_size, torch.int64)[mine]
        if not (torch.equal(row, whole) and torch.equal(got[0], summed) and torch.equal(got[1], summed)):
            wrong.append((name, row, got))
        if name in ("even", "nearly"):
            wrong += [] if (("batch_isend_irecv" in used) == (name == "nearly")) else [(name, dict(used))]
    used.clear()
    values = comm.all_reduce(torch.tensor([rank, -rank]), "max").tolist(), comm.all_reduce(torch.tensor(rank)).item()
    wrong += [] if values == ([comm.world_size - 1, 0], 3) else [values]
    wrong += [] if comm.broadcast(torch.full((2, 2), rank), "b").sum().item() == 0 else ["broadcast"]
    comm.all_gather(torch.zeros(6), Layout.build({"a": (6,)}, 3), "z").wait()
    wrong += [] if exchange_rows()[0] else ["all_to_all"]
    counts = dict(used)
    return wrong + odd_dtypes(comm), counts


def odd_dtypes(comm: Comm) -> list:
    """NCCL does not have int16 nor complex numbers: their bytes travel, and they are added up nowhere."""
    layout, (to, source) = Layout.build({"a": (6,)}, 3), ((comm.rank + step) % 3 for step in (1, -1))
    wrong = []
    for dtype in (torch.int16, torch.complex64, torch.uint32):
        whole = torch.tensor([1, 300, 3, -4, 5, 6]).to(dtype)
        row, got = torch.zeros_like(whole), [torch.zeros_like(whole) for _ in range(2)]
        row[layout.slice(comm.rank)] = whole[layout.slice(comm.rank)]
        comm.all_gather(row, layout, "a").wait()
        comm.exchange({to: whole}, {source: got[0]}, "b").wait()
        comm.all_to_all(whole.view(3, 2), got[1].view(3, 2), "c").wait()
        sent = comm.broadcast(whole.clone() if comm.rank == 0 else torch.zeros_like(whole), "d")
        wrong += [dtype] * (not all(torch.equal(each, whole) for each in (row, got[0], sent)))
        wrong += [dtype] * (not torch.equal(got[1], whole.view(3, 2)[comm.rank].repeat(3)))
        for add in (lambda: comm.all_reduce(whole), lambda: comm.reduce_scatter(whole, layout, "e")):
            with pytest.raises(BadInput, match=f"NCCL cannot add up {dtype} .*: convert the tensor to one of bfloat16, "):
                add()
    return wrong


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("old_names", [False, True])
def test_the_path_of_nccl_with_both_names_of_its_collectives(old_names):
    gather = "all_gather_into_tensor" if old_names or not hasattr(dist, "all_gather_single") else "all_gather_single"
    found = forked(3, as_on_nccl, old_names)
    assert found == {rank: ([], {"all_reduce": 2, "broadcast": 1, gather: 1, "all_to_all_single": 2}) for rank in range(3)}


def as_on_a_shared_gpu(rank: int) -> list:
    """Every tensor goes through memory that is not its own, as from a GPU that ranks share."""
    backends.choose = lambda device_type, configured: backends.StagedGloo
    foreign, given = [], {"isend": dist.isend, "irecv": dist.irecv}

    def watched(verb):
        def call(tensor, *args, **kwargs):
            foreign.append(tensor.untyped_storage().data_ptr())
            return given[verb](tensor, *args, **kwargs)
        return call

    dist.isend, dist.irecv = watched("isend"), watched("irecv")
    wrong = collect_and_compare()
    comm = Comm()
    layout = layouts(comm.world_size)["even"]
    row, values = torch.zeros(layout.padded), torch.tensor([rank])
    foreign.clear()
    comm.all_gather(row, layout, "a").wait()
    comm.all_reduce(values)
    comm.broadcast(values, "values")
    own = {row.untyped_storage().data_ptr(), values.untyped_storage().data_ptr()}
    wrong += [] if foreign and not own & set(foreign) else ["it was sent from the tensor itself"]
    wrong += [] if exchange_rows()[0] else ["all_to_all"]
    return wrong + ([] if values.item() == 3 else [values])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_path_of_ranks_that_share_a_gpu():
    assert forked(3, as_on_a_shared_gpu) == {0: [], 1: [], 2: []}


def trains_under_old_names(rank: int) -> tuple[list, list]:
    """Import the package afresh without the newer names: two steps of stage 3, and of one model on the whole batch."""
    hide_new_names()
    for name in [name for name in sys.modules if name.partition(".")[0] == "zerocourse"]:
        del sys.modules[name]
    from zerocourse.models.gpt2 import build_model

    def losses(model, optimizer, rows):
        found = []
        for step in range(2):
            tokens = torch.arange(4 * 9).view(4, 9).mul(7 + step) % 256
            loss = model(tokens[rows, :-1], tokens[rows, 1:])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found

    def made():
        torch.manual_seed(0)
        model = build_model("gpt2-tiny", n_layer=2)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    return losses(*shard(*made(), stage=3), slice(2 * rank, 2 * rank + 2)), losses(*made(), slice(None))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_package_works_with_torch_2_10_names():
    found = forked(2, trains_under_old_names)
    mean = [(here + there) / 2 for here, there in zip(found[0][0], found[1][0])]
    assert mean == pytest.approx(found[0][1], rel=1e-5)


if __name__ == "__main__":
    measure_the_wire()
