"""NCCL's rules, by a backend over gloo that keeps them: each of them is kept (`test_strict_training` trains by them)."""

import contextlib
import io
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from strict_nccl import nccls_rules

from zerocourse.comm import Comm
from zerocourse.comm.backends import first_call
from zerocourse.comm.waits import progress
from zerocourse.errors import BadInput, CollectiveError
from zerocourse.launch import RankError
from zerocourse.launch.processes.serving import _collective_calls
from zerocourse.layout.rankmap import Layout
from zerocourse.parallel.pipeline.ties import Ties
from zerocourse.zero.buffers.groups import Groups
from zerocourse.zero.passes.agreement import agree

# -- the rules -------------------------------------------------------------------------------------------------------


def in_turns(seconds: float = 10) -> None:
    """Even ranks send first."""
    comm = Comm(timeout=seconds)
    peer, got = comm.rank ^ 1, torch.empty(2)
    for verb in ("send", "recv") if comm.rank % 2 == 0 else ("recv", "send"):
        comm.send(torch.ones(2), peer, "a").wait() if verb == "send" else comm.recv(got, peer, "a").wait()
    assert got.tolist() == [1, 1]


def all_send_first() -> None:
    comm = Comm()
    comm.send(torch.ones(2), comm.rank ^ 1, "a")
    comm.recv(torch.empty(2), comm.rank ^ 1, "a").wait()


def test_messages_run_in_the_order_of_issue(strict_pool):
    strict_pool(2).run(in_turns)
    with pytest.raises(RankError, match="within 1 s: rank 0 was in recv of a from rank 1 .* rank 1 was in recv of a from rank 0"):
        strict_pool(2, seconds=1).run(all_send_first)


def add_up() -> list:
    """Every rank with every other: what copies of a tied weight do."""
    comm = Comm()
    own = torch.full((3,), comm.rank + 1.0)
    return Ties.sum(SimpleNamespace(comm=comm), own, "wte", list(range(comm.world_size))).tolist() + [dict(comm.sent)]


@pytest.mark.parametrize("world_size", (2, 3))
def test_messages_of_one_exchange_do_not_wait_for_each_other(strict_pool, world_size):
    for found in strict_pool(world_size, seconds=2).run(add_up):
        assert found == [sum(range(world_size + 1))] * 3 + [{"send": 12 * (world_size - 1)}]


def from_the_first_to_the_second() -> list:
    comm, row = Comm(), torch.arange(3.0)
    if comm.rank < 2:
        (comm.send(row, 1, "a") if comm.rank == 0 else comm.recv(row.zero_(), 0, "a")).wait()
    return [row.tolist(), comm.metadata, Comm().metadata, list(comm.issued)]


def test_a_message_is_never_the_first_call_of_a_group(strict_pool, pool):
    """The first Comm of a group adds up one number, four bytes to each peer."""
    assert strict_pool(3).run(from_the_first_to_the_second) == [[[0, 1, 2], 8, 0, [("all_reduce_sum", "", 1, torch.float32)]]] * 3
    assert pool(3).run(from_the_first_to_the_second) == [[[0, 1, 2], 0, 0, []]] * 3, "nothing on a CPU"


def comes_late() -> None:
    first_call.NOTICE_SECONDS = 0.2
    if dist.get_rank() == 1:
        time.sleep(2)
    else:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                Comm(timeout=0.8)
            except CollectiveError as error:
                raise CollectiveError(f"{error}; {said.getvalue()}") from None


def test_a_first_call_that_does_not_end_says_what_helps(strict_pool):
    with pytest.raises(RankError) as caught:
        strict_pool(2).run(comes_late)
    first = "the first call over NCCL of the ranks [0, 1] has not ended after"
    helps = "every rank of the group must make its Comm at the same time; where all have, their GPUs cannot copy to each other directly"
    assert f"CollectiveError: {first} 0.72 s: {helps}" in str(caught.value) and f"zerocourse: {first} 0.2 s: {helps}" in str(caught.value)


def uneven_messages() -> list:
    """Of a broadcast the first rank has more messages than the others, and of these the last one has none."""
    comm = Comm()
    comm.broadcast(torch.ones(2), "b")
    if comm.rank < 2:
        comm.exchange(*(({1 - comm.rank: torch.ones(2)}, {}, "a") if comm.rank else ({}, {1 - comm.rank: torch.ones(2)}, "a"))).wait()
    return [_collective_calls(), dist.get_backend_config()]


def test_ranks_that_keep_step_have_made_as_many_calls(strict_pool, monkeypatch):
    """torch's count of a group that has NCCL beside gloo is NCCL's alone."""
    found = strict_pool(3).run(uneven_messages)
    assert found == found[:1] * 3 and "nccl" in found[0][1]
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cpu:gloo,cuda:nccl")
    monkeypatch.setattr(progress, "collectives", {})
    monkeypatch.setattr(progress, "messages", {})
    group = FakeGroup()
    for calls in (1, 2):
        progress.collectives[group], progress.messages[group] = calls, 100
        assert progress.calls_of(group) == calls, "its messages are not taken from a count in which they are not"
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "gloo")
    progress.messages[group] = 2
    assert progress.calls_of(group) == 5


class FakeGroup:
    def _get_sequence_number_for_group(self) -> int:
        return 7


def break_rules() -> list:
    """Whatever is wrong at once or at the wait."""
    comm, layout = Comm(), Layout.build({"a": (4,)}, 2)
    row = torch.arange(4.0)
    gather = comm.all_gather(row, layout, "a")
    before, _, gathered = row.tolist(), gather.wait(), row.tolist()
    summed = []
    comm.reduce_scatter(row, layout, "a", done=summed.append).wait()
    changed, freed = comm.reduce_scatter(row, layout, "b"), comm.all_gather(torch.arange(4.0), layout, "c")
    row += 1
    freed.tensor.untyped_storage().resize_(0)
    for handle, words in ((changed, "changed before"), (freed, "freed before")):
        with pytest.raises(AssertionError, match=words):
            handle.wait()
    with pytest.raises(BadInput, match="NCCL cannot add up torch.int16"):
        comm.all_reduce(torch.ones(2, dtype=torch.int16))
    assert comm.broadcast(torch.full((2,), 300 + comm.rank, dtype=torch.int16), "b").tolist() == [300, 300]
    with pytest.raises(ValueError, match="contiguous"):
        comm.all_to_all(torch.ones(2, 2).T, torch.ones(2, 2), "t")
    return before, gathered, summed[0].tolist()


def nobody_waits() -> None:
    with pytest.raises(AssertionError, match=r"nobody waited for all_gather of a \(2 float32\) #1"), nccls_rules(10):
        Comm().all_gather(torch.zeros(2), Layout.build({"a": (2,)}, 2), "a")


def test_results_must_be_waited_for_and_what_is_sent_must_stay(strict_pool, pool):
    found = strict_pool(2).run(break_rules)
    assert str(found[0]) == "([0.0, 1.0, nan, nan], [0.0, 1.0, 2.0, 3.0], [0.0, 2.0])"
    assert str(found[1]) == "([nan, nan, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0], [4.0, 6.0])"
    pool(2).run(nobody_waits)


# -- what the package does about them ---------------------------------------------------------------------------------

def alone() -> list:
    comm, got = Comm(), torch.zeros(1, 2)
    comm.all_to_all(torch.ones(1, 2), got, "a").wait()
    return [comm.world_size, got.tolist()]


def test_a_rank_without_peers_has_its_results_at_once(strict_pool):
    assert strict_pool(1).run(alone) == [[1, [[1.0, 1.0]]]]


def own_nccl() -> list:
    """Where a script has made one of the two groups of hybrid sharding with NCCL alone, the flags of both must be on the GPU."""
    devices = []

    class Watched(Comm):
        def on_any_rank(self, flags, device):
            devices.append(device.type)
            return flags

    for kinds in (("cpu:gloo,cuda:nccl", "nccl"), ("cpu:gloo,cuda:nccl",) * 2, ("nccl", "gloo")):
        shards, replicas = comms = Watched(), Watched()
        for comm, kind in zip(comms, kinds):
            vars(comm)["backends"] = kind  # as an attribute, its name would make cloudpickle send torch.backends along
        stage = SimpleNamespace(flats=[], units=[], passes=[], extras=[], comm=shards, device=torch.device("meta"),
                                groups=Groups(shards, replicas), options=SimpleNamespace(agreement=True))
        agree(stage)
    return devices


def test_a_group_of_nccl_alone_gets_no_flags_from_the_host(pool):
    assert pool(2).run(own_nccl) == [["meta", "meta", "cpu", "cpu", "meta", "meta"]] * 2
