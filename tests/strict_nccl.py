"""NCCL's rules on CPU tensors, over gloo: what hangs on NCCL hangs here, and what would be wrong there is wrong here.

    strict_pool(2).run(fn, *args)        # as `pool`, see conftest.py
    with nccls_rules(seconds=1): ...     # on a rank

A rule, and how a break of it shows:

    order        what the ranks of a group issue runs one after the other, in the order of issue, in all its Comms together. A
                 send ends when its peer receives. Ranks that both send first, or receive first, wait for each other: CollectiveError
                 when the time is up
    waiting      results are NaN (in whole numbers 85) until they are waited for; what nobody waits for is an AssertionError
    memory       what is sent must be there, and be what it was, when it is waited for: AssertionError
    first call   that of a group must be by all its ranks, because they make the communicator in it: AssertionError
    tensors      contiguous: ValueError. Those of a dtype that NCCL does not have travel as bytes, as there

NCCL stops a GPU's stream where these waits stop the host. Whatever a rank issues later would wait behind it there, too, so as
long as a rank computes on one stream the same programs hang. NCCL lets small sends end early; this does not.

Every tensor here plays one on a GPU. `HOST` names the calls of a Comm whose tensors would be on the CPU even so.
"""

import functools
import queue
import threading
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from datetime import timedelta
from typing import ClassVar

import torch
import torch.distributed as dist

from zerocourse.comm import Comm, backends
from zerocourse.comm import group as group_module
from zerocourse.comm.backends import first_call
from zerocourse.comm.backends.gloo import Gloo, Transfer
from zerocourse.comm.backends.nccl import carried, check_adds_up, equal_slices
from zerocourse.comm.waits import progress
from zerocourse.layout.rankmap import Layout

SECONDS = 10.0  # until what hangs is ended; tests in which it is meant to hang take one
HOST = ("_meet", "on_any_rank")


class Job:
    """Something that was issued.   reads, writes: the tensors; `run` returns the function that writes the results."""

    def __init__(self, name: str, run: Callable[[], Callable[[], None]], reads: Iterable[torch.Tensor]):
        self.name, self.run, self.reads = name, run, [(tensor, tensor.clone()) for tensor in reads]
        self.over, self.error, self.publish = threading.Event(), None, None


class Lane:
    """The stream of a group's communicator. `open`: what was issued and not yet waited for, in order."""

    def __init__(self):
        self.open: list[Job] = []
        self.has_begun, self.at = False, "nothing"
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def issue(self, job: Job) -> None:
        self.open.append(job)
        self.jobs.put(job)

    def work(self) -> None:
        while (job := self.jobs.get()) is not None:
            self.at = job.name
            try:
                job.publish = job.run()
            except BaseException as error:  # it is raised where the job is waited for
                job.error = error
            job.over.set()
            del job  # with its tensors, while the lane is idle

    def end(self) -> None:
        self.jobs.put(None)
        self.thread.join(0.1)


class StrictNccl(Gloo):
    """What `backends.Nccl` does, on CPU tensors."""

    lanes: ClassVar[dict[str, Lane]] = {}  # by the name of the group

    def __init__(self, group: dist.ProcessGroup | None, rank: int, world_size: int, name: str):
        super().__init__(group, rank, world_size, name)
        self.inner = Gloo(group, rank, world_size, f"strict {name}")
        group_name = (group or dist.group.WORLD).group_name
        self.lane = self.lanes[group_name] = self.lanes.get(group_name) or Lane()

    def all_gather(self, tensor: torch.Tensor, layout: Layout, call: str) -> Transfer:
        if not equal_slices(layout):
            return super().all_gather(tensor, layout, call)
        parts = {rank: tensor[layout.slice(rank)] for rank in range(self.world_size)}
        row, mine = torch.empty_like(tensor), parts.pop(self.rank)
        row[layout.slice(self.rank)].copy_(mine)
        arrived = {part: row[layout.slice(rank)] for rank, part in parts.items()}
        return self.issue(call, lambda: self.inner.all_gather(row, layout, call), [mine], arrived)

    def reduce_scatter(self, tensor: torch.Tensor, layout: Layout, into: torch.Tensor | None, call: str) -> Transfer:
        if not equal_slices(layout):
            return super().reduce_scatter(tensor, layout, into, call)
        check_adds_up(tensor.dtype, call)
        terms, (summed, arrived) = tensor.clone(), (torch.empty_like(tensor[layout.slice(self.rank)]) for _ in range(2))
        works, _ = self.issue(call, lambda: self.inner.reduce_scatter(terms, layout, arrived, call), [tensor], {summed: arrived})
        return Transfer(works, lambda: summed if into is None else into.copy_(summed))

    def received_bytes(self, tensor: torch.Tensor, layout: Layout) -> int:
        return tensor[layout.slice(self.rank)].nbytes if equal_slices(layout) else super().received_bytes(tensor, layout)

    def all_to_all(self, rows: torch.Tensor, into: torch.Tensor, call: str) -> Transfer:
        rows, into = carried(rows), carried(into)
        arrived = torch.empty_like(into)
        return self.issue(call, lambda: self.inner.all_to_all(rows, arrived, call), [rows], {into: arrived})

    def all_reduce(self, flat: torch.Tensor, op: str, call: str) -> Transfer:
        check_adds_up(flat.dtype, call)
        reduced = flat.clone()
        return self.issue(call, lambda: self.inner.all_reduce(reduced, op, call), [], {flat: reduced})

    def broadcast(self, flat: torch.Tensor, call: str) -> Transfer:
        flat = carried(flat)
        values = flat.clone()
        reads, writes = ([], {flat: values}) if self.rank else ([flat], {})
        return self.issue(call, lambda: self.inner.broadcast(values, call), reads, writes)

    def exchange(self, call: str, sends: dict[int, torch.Tensor], receives: dict[int, torch.Tensor],
                 names: dict[tuple[int, int], str] | None = None) -> Transfer:
        """One batch: its messages run at the same time, and it ends when all of them have."""
        call = call if names is None else " and ".join(names.values())
        if not any(tensor.numel() for tensor in (*sends.values(), *receives.values())):
            return Transfer([], lambda: None)
        assert self.lane.has_begun or {*sends, *receives} == {*self.peers}, (
            f"{call} is the first call of its group, and not of all its ranks: under NCCL they make the communicator in it")
        sends, receives = ({peer: carried(tensor) for peer, tensor in given.items()} for given in (sends, receives))
        arrived = {peer: torch.empty_like(tensor) for peer, tensor in receives.items()}
        return self.issue(call, lambda: self.inner.exchange(call, sends, arrived, names), sends.values(),
                          {tensor: arrived[peer] for peer, tensor in receives.items()})

    # -- how it is done -----------------------------------------------------------------------------------------------

    def issue(self, name: str, start: Callable[[], Transfer], reads: Iterable[torch.Tensor],
              writes: dict[torch.Tensor, torch.Tensor]) -> Transfer:
        """Run `start` when its turn comes.   writes: what has a result, with the memory in which it arrives."""
        for tensor in (*reads, *writes):
            if not tensor.is_contiguous():
                raise ValueError(f"NCCL takes contiguous tensors only: {name}")
        self.lane.has_begun = True
        for tensor in writes:
            unknown(tensor)

        def run() -> Callable[[], None]:
            works, finish = start()
            for work in works:
                work.wait()
            finish()

            def publish() -> None:
                for tensor, arrived in writes.items():
                    tensor.data.copy_(arrived)  # `data` has a version of its own: NCCL changes none either
            return publish

        job = Job(name, run, reads)
        self.lane.issue(job)
        return Transfer([job], lambda: None)

    def wait(self, works: list[Job], timeout: timedelta) -> None:
        for job in works:
            if not job.over.wait(timeout.total_seconds()):
                raise RuntimeError(f"{job.name} timed out, because the stream stands at {self.lane.at}")
            self.lane.open.remove(job)
            if job.error is not None:
                raise job.error
            for tensor, issued in job.reads:
                assert not tensor.numel() or tensor.untyped_storage().nbytes(), f"{job.name}: what it sends was freed before the wait"
                assert torch.equal(as_bytes(tensor), as_bytes(issued)), f"{job.name}: what it sends was changed before the wait"
            job.publish()


def unknown(tensor: torch.Tensor) -> None:
    """Fill a tensor with what nobody takes for a result."""
    tensor.data.fill_(True if tensor.dtype is torch.bool else float("nan") if tensor.is_floating_point() else 85)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)  # in which NaN equals itself


def on_the_host(method: Callable) -> Callable:
    """A method of `Comm` whose tensors go over gloo."""
    @functools.wraps(method)
    def call(comm: Comm, *args):
        by_device, comm._by_device = comm._by_device, {"cpu": Gloo(comm.group, comm.rank, comm.world_size, comm._name)}
        try:
            return method(comm, *args)
        finally:
            comm._by_device = by_device

    return call


@contextmanager
def nccls_rules(seconds: float = SECONDS):
    """Inside the block, the Comms that are made in this process follow NCCL's rules. Waits without a time limit end after `seconds`."""
    changes = [(backends, "choose", lambda *_: StrictNccl), (dist, "get_backend_config", lambda group=None: "cpu:gloo,cuda:nccl"),
               (group_module, "group_timeout", lambda group: timedelta(seconds=seconds)),
               *((Comm, name, on_the_host(getattr(Comm, name))) for name in HOST)]
    given = [(where, name, getattr(where, name)) for where, name, _ in changes]
    world = dist.group.WORLD
    counted = world._get_sequence_number_for_group() - progress.messages.get(world, 0)
    StrictNccl.lanes.clear()
    first_call.made.clear()
    for where, name, value in changes:
        setattr(where, name, value)
    try:
        yield
        left = [job.name for lane in StrictNccl.lanes.values() for job in lane.open]
        assert not left, f"nobody waited for {', '.join(left)}"
    finally:
        for where, name, value in given:
            setattr(where, name, value)
        first_call.made.clear()
        for lane in StrictNccl.lanes.values():
            lane.end()
        progress.messages[world] = world._get_sequence_number_for_group() - counted  # gloo's here are more than those that were noted


def run_strictly(seconds: float, fn: Callable, *args, **kwargs):
    with nccls_rules(seconds):
        return fn(*args, **kwargs)


class StrictRanks:
    """Ranks that run functions under NCCL's rules."""

    def __init__(self, ranks, seconds: float = SECONDS):
        self.ranks, self.seconds = ranks, seconds

    def run(self, fn: Callable, *args, **kwargs):
        return self.ranks.run(run_strictly, self.seconds, fn, *args, **kwargs)
