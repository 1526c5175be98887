"""What a GPU does is timed by the GPU, or not claimed: its events are made up here, of a GPU that lags behind its host."""

import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

import zerocourse
from zerocourse.comm import device_clock
from zerocourse.comm.device_clock import DeviceClock, clock_of, finished
from zerocourse.comm.events import Recorder
from zerocourse.comm.handle import CollectiveHandle
from zerocourse.comm.simulated import SimulatedComm
from zerocourse.course.show import timelines
from zerocourse.errors import BadInput
from zerocourse.measure import perfetto
from zerocourse.measure.intervals import computing, waiting
from zerocourse.offload import HostLink

GPU = torch.device("cuda", 1)


class Stream:
    """The stream of a GPU that computes. `work` is issued in no time, and done one after the other.

    at: milliseconds of everything issued so far.   reached: how far the host knows the GPU to have come.
    """

    def __init__(self):
        self.at, self.reached, self.waits, self.made = 0.0, -1.0, 0, 0

    def work(self, milliseconds: float) -> None:
        self.at += milliseconds

    def make(self) -> "FakeEvent":
        self.made += 1
        return FakeEvent()

    @property
    def clock(self) -> DeviceClock:
        return DeviceClock(self.make, lambda: self)


class FakeEvent:
    def record(self, stream: Stream) -> None:
        self.stream, self.at = stream, stream.at

    def synchronize(self) -> None:
        self.stream.waits += 1
        self.stream.reached = max(self.stream.reached, self.at)

    def elapsed_time(self, later: "FakeEvent") -> float:
        if max(self.at, later.at) > self.stream.reached:
            raise RuntimeError("Both events must be recorded, and over, before calculating elapsed time")
        return later.at - self.at


@pytest.fixture
def stream(monkeypatch):
    """That of a GPU which every recorder finds."""
    stream = Stream()
    monkeypatch.setattr("zerocourse.comm.events.clock_of", lambda device: stream.clock)
    return stream


def spans(events: list[dict]) -> dict[tuple[str, str], float]:
    """Milliseconds by verb and unit."""
    return {(event["verb"], event["unit"]): round((event["end"] - event["start"]) * 1e3, 6) for event in events}


def test_nothing_waits_for_the_gpu_before_seconds_are_asked_for(stream):
    recorder = Recorder()
    recorder.time_on(GPU)
    for unit in ("h.0", "h.1"):
        with recorder.span("forward", unit):
            stream.work(7)
    assert stream.waits == 0 and stream.reached < 0
    before = time.perf_counter()
    events = recorder.of_step(0)
    assert spans(events) == {("forward", "h.0"): 7, ("forward", "h.1"): 7}
    assert events[0]["end"] == pytest.approx(events[1]["start"], abs=1e-9)
    assert before <= events[1]["end"] <= time.perf_counter(), "on the clock that ranks of a machine share"
    made = stream.made
    assert recorder.of_step(0) == events and stream.made == made + 1, "who asks again gets the same"


def comm_on(stream: Stream, milliseconds: float):
    """A Comm as the handle sees it, on NCCL: `complete` returns at once, and the stream stands still."""
    recorder = Recorder()
    return SimpleNamespace(recorder=recorder, complete=lambda works, call, tensor: stream.work(milliseconds))


def test_what_a_collective_leaves_exposed_is_what_the_stream_waits(stream):
    comm = comm_on(stream, 5)
    tensor = SimpleNamespace(device=GPU)
    handle = CollectiveHandle(comm, "all_gather", "h.0", 8, "all_gather of h.0 #1", tensor, [object()], lambda: None)
    stream.work(3)  # of the unit before, which hides a part
    handle.wait()
    events = comm.recorder.of_step(0)
    assert spans(events) == {("wait", "h.0"): 5, ("all_gather", "h.0"): 8}
    assert not any("host_time" in event for event in events)
    (wait,) = waiting(events, 0)
    assert round((wait.end - wait.start) * 1e3, 6) == 5


def test_a_stage_s_units_are_timed_by_the_gpu_as_well(stream):
    comm = SimulatedComm(0, 2, "nccl")
    comm.recorder.time_on(GPU)
    comm.complete = lambda works, call, tensor: stream.work(2)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    blocks = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])
    model.blocks = blocks
    for block in blocks:
        block.register_forward_hook(lambda *_: stream.work(11))
    model.forward = lambda x: blocks[1](blocks[0](x))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    zerocourse.shard(model, optimizer, 3, comm=comm)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    events = comm.recorder.of_step(1)
    assert all(isinstance(event[edge], float) for event in events for edge in ("start", "end"))
    forwards = {each.what: round((each.end - each.start) * 1e3, 6) for each in computing(events, 0) if each.verb == "forward"}
    assert forwards.keys() == {"blocks.0", "blocks.1"} and min(forwards.values()) >= 11
    timelines.timeline(events)
    perfetto.trace(events)


def test_a_copy_lasts_as_long_as_it_ran_on_its_stream_and_not_until_somebody_waited_for_it(stream):
    link = HostLink()
    link.is_apart = lambda device: True
    link.recorder.apart, link.recorder.clock = True, stream.clock
    link.cuda = SimpleNamespace(Stream=lambda device: SimpleNamespace(wait_stream=lambda other: None), stream=lambda stream: nullcontext(),
                                current_stream=lambda device: SimpleNamespace(wait_event=lambda event: None),
                                Event=lambda: SimpleNamespace(record=lambda on: stream.work(6), query=lambda: True, synchronize=lambda: None))
    transfer = link.up(torch.zeros(4), torch.ones(4), "h.0")
    stream.work(50)  # of whatever comes next
    transfer.wait()
    (event,) = link.recorder.of_step(0)
    assert event["verb"] == "up" and round((event["end"] - event["start"]) * 1e3, 6) == 6 and "host_time" not in event


def test_what_the_host_timed_of_a_gpu_is_marked_and_not_drawn(monkeypatch):
    monkeypatch.setattr("zerocourse.comm.events.clock_of", lambda device: None)  # a device without such events
    recorder = Recorder()
    recorder.time_on(torch.device("xpu"))
    with recorder.span("forward", "h.0"):
        pass
    recorder.record("read", "h.0", recorder.clock())  # which the host does itself
    forward, read = recorder.of_step(0)
    assert forward["host_time"] is True and "host_time" not in read
    for draw in (timelines.timeline, lambda events: timelines.compare({"a step": events}), perfetto.trace):
        with pytest.raises(BadInput, match="forward of h.0 ran on a GPU, and its times are those at which the host issued it"):
            draw([forward, read])


def test_a_span_that_began_before_the_gpu_was_known_is_marked(stream):
    recorder = Recorder()
    start = recorder.clock()
    recorder.time_on(GPU)
    recorder.record("forward", "h.0", start)
    assert recorder.of_step(0)[0]["host_time"] is True


def test_on_the_cpu_and_in_a_simulation_all_is_as_it_was():
    recorder = Recorder()
    recorder.time_on(torch.device("cpu"))
    assert recorder.clock is time.perf_counter
    with recorder.span("forward", "h.0"):
        pass
    assert "host_time" not in recorder.of_step(0)[0]
    recorder.clock = simulated = lambda: 1.0
    recorder.time_on(GPU)
    assert recorder.clock is simulated and not recorder.apart


def test_on_a_gpu_events_have_times_and_stand_on_the_stream_of_its_device(monkeypatch):
    made, asked, stream = [], [], Stream()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", lambda **options: made.append(options) or FakeEvent())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: asked.append(device) or stream)
    clock = clock_of(GPU)
    moment = clock()
    stream.work(4)
    (seconds,) = clock.seconds([moment])
    assert time.perf_counter() - seconds == pytest.approx(0.004, abs=0.002)
    assert made == [{"enable_timing": True}] * 2 and asked == [GPU] * 2


def test_without_a_gpu_there_is_no_clock_of_one():
    assert torch.cuda.is_available() or clock_of(GPU) is None
    assert clock_of(torch.device("cpu")) is None


def test_who_times_work_from_outside_first_lets_the_gpu_finish(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    assert device_clock.finished("cpu") <= time.perf_counter() and not waited
    finished(GPU)
    assert waited == [GPU]
