"""Ranks that are kept alive: they answer fast, fail in words, and leave nothing behind."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch
import torch.distributed as dist

from zerocourse.comm.simulated import SimulatedComm
from zerocourse.errors import BadInput
from zerocourse.launch import LaunchInterrupted, LaunchTimeout, RankDied, RankError, Ranks, magics, progress, report
from zerocourse.launch import ranks as ranks_module
from zerocourse.launch.processes import jobs, parent, payload
from zerocourse.launch.processes.fork_server import fork_server
from zerocourse.launch.processes.listener import Lines, Listener
from zerocourse.launch.processes.position import Position, current_position, waiting_text
from zerocourse.launch.ranks import check_nproc, shared
from zerocourse.layout.rankmap import Layout

SCALE = 10  # a global that functions below use: it travels with them


def total(value):
    tensor = torch.full((2,), float(value * SCALE + dist.get_rank()))
    dist.all_reduce(tensor)
    return tensor


@pytest.mark.parametrize("nproc", [2, 3, 4])
def test_every_rank_returns(pool, nproc):
    results = pool(nproc).run(total, 1)
    expected = 10.0 * nproc + nproc * (nproc - 1) / 2
    assert [r.tolist() for r in results] == [[expected] * 2] * nproc


def test_a_kept_rank_answers_much_sooner_than_a_new_one():
    with Ranks(2) as ranks:
        began = time.perf_counter()
        ranks.run(total, 1)
        first = time.perf_counter() - began
        assert min(ranks.run(total, 1).seconds for _ in range(10)) < first / 2


def test_nested_functions_closures_and_lambdas_travel(pool):
    factor = 3

    def scaled(x, *, plus=0):
        return total(x).mul(factor).add(plus).tolist()

    assert pool(2).run(scaled, 1, plus=1) == [[64.0, 64.0]] * 2
    assert pool(2).run(lambda: dist.get_rank()) == [0, 1]


def test_functions_travel_as_they_are_now(pool, monkeypatch):
    assert pool(2).run(total, 0)[0][0] == 1
    monkeypatch.setitem(globals(), "SCALE", 100)
    assert pool(2).run(total, 1)[0][0] == 201


def test_output_records_and_lines(pool):
    shown = []

    def speak(rank_of_junk):
        report(step=3, loss=torch.tensor(0.5), grid=torch.eye(2), path=object)
        print("one", dist.get_rank())
        os.write(1, b"from C\n")
        if dist.get_rank() == rank_of_junk:
            os.write(1, b"\xff\xfe\x00 junk\n")
        print(" 10%\r 20%\r100%")
        print("no newline", end="")

    ranks = pool(2)
    ranks.echo, before = shown.append, ranks.echo
    try:
        results = ranks.run(speak, 1)
    finally:
        ranks.echo = before
    assert [line for rank, line in results.lines if rank == 0] == ["one 0", "from C", "100%", "no newline"]
    assert "[1] one 1" in shown and "[1] no newline" in shown and len(shown) == 9
    assert any("junk" in line for rank, line in results.lines if rank == 1)
    assert sorted(rank for rank, _ in results.records) == [0, 1]
    assert results.records[0][1] | {"path": ""} == {"step": 3, "loss": 0.5, "grid": [[1, 0], [0, 1]], "path": ""}


def test_very_long_lines_come_in_pieces(pool):
    def shout():
        print("x" * 3_000_000)

    ranks = pool(2)
    ranks.quiet = True
    try:
        lines = ranks.run(shout).lines
    finally:
        ranks.quiet = False
    for rank in (0, 1):
        pieces = [text for r, text in lines if r == rank]
        assert len(pieces) > 1 and "".join(pieces) == "x" * 3_000_000


def test_lines_are_cut_and_kept_whole():
    lines = Lines(longest=10)
    assert lines.feed(b"ab") == [] and lines.feed(b"c\nde") == [b"abc"]
    assert lines.feed(b"") == [b"de"] and lines.feed(b"") == []
    assert lines.feed(b"0123456789ab") == [b"0123456789ab"]
    assert Lines().feed(b"x" * 100) == []


def test_big_values_come_back(pool):
    def big():
        return {"tensor": torch.arange(5_000_000), "rank": dist.get_rank()}

    results = pool(2).run(big)
    assert torch.equal(results[1]["tensor"], torch.arange(5_000_000)) and results[1]["rank"] == 1


def inner(x):
    return 1 / x


def test_the_failing_rank_speaks(pool):
    def fails():
        if dist.get_rank() == 1:
            inner(0)
        dist.barrier()

    with pytest.raises(RankError, match="rank 1: ZeroDivisionError: division by zero") as caught:
        pool(2).run(fails)
    error = caught.value
    assert error.rank == 1 and error.kind == "ZeroDivisionError"
    assert "inner(0)" in error.traceback and "return 1 / x" in error.traceback
    assert "zerocourse/" not in error.traceback and "boot.py" not in error.traceback
    drawn = "\n".join(error._render_traceback_())
    assert "rank 1 failed" in drawn and "return 1 / x" in drawn and "zerocourse/" not in drawn
    assert pool(2).run(total, 1)[0][0] == 21  # started afresh: nobody is stuck in that barrier


def test_causes_of_an_exception_are_shown_without_the_launcher(pool):
    def fails():
        try:
            inner(0)
        except ZeroDivisionError as error:
            raise KeyError("wrapped") from error

    with pytest.raises(RankError) as caught:
        pool(2).run(fails)
    assert "direct cause" in caught.value.traceback and "zerocourse/" not in caught.value.traceback
    assert [f.rank for f in caught.value.failures] == [0, 1]  # alike: the lowest rank speaks


def test_a_rank_that_is_killed(pool):
    def die(how):
        if dist.get_rank() == 1:
            if how == "kill" and os.fork() == 0:  # a child, such as a data-loader worker, must not hide the death
                time.sleep(1000)
            os.kill(os.getpid(), signal.SIGKILL) if how == "kill" else os._exit(how)
        dist.barrier()

    with pytest.raises(RankDied, match="rank 1 .*SIGKILL") as caught:
        pool(2).run(die, "kill")
    assert caught.value.exit_code == -signal.SIGKILL
    with pytest.raises(RankDied, match="rank 1 .*exit code 3"):
        pool(2).run(die, 3)
    assert pool(2).run(total, 1)[0][0] == 21


def test_a_rank_that_died_between_two_calls(pool):
    pool(2).run(total, 1)
    os.kill(pool(2).pids[1], signal.SIGKILL)
    time.sleep(0.1)
    assert pool(2).run(total, 1)[0][0] == 21


def test_a_timeout_says_who_waits_and_where(pool):
    def stuck():
        if dist.get_rank() == 0:
            time.sleep(60)
        dist.barrier()

    with pytest.raises(LaunchTimeout) as caught:
        pool(2).run(stuck, timeout=0.5)
    waiting = caught.value.waiting
    assert re.fullmatch(r"at .*test_ranks.py:\d+ in stuck: time.sleep\(60\)", waiting[0])
    assert re.fullmatch(r"waiting in barrier, .*test_ranks.py:\d+ in stuck: dist.barrier\(\)", waiting[1])
    assert caught.value.returned == {}


class Block(torch.nn.Module):
    """A linear layer that does on rank 1 what `on_rank_1` says."""

    def __init__(self, on_rank_1=""):
        super().__init__()
        self.inner, self.on_rank_1 = torch.nn.Linear(4, 4), on_rank_1

    def forward(self, x):
        y = self.inner(x)
        if dist.get_rank() == 1 and self.on_rank_1 == "forward":
            raise ValueError("in forward")
        if dist.get_rank() == 1 and self.on_rank_1 == "backward":
            y.register_hook(raise_in_backward)
        return y


def raise_in_backward(grad):
    raise ValueError("in backward")


class Blocks(torch.nn.Module):
    def __init__(self, on_rank_1):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block(on_rank_1), Block()])
        self.last = 2 if dist.get_rank() == 1 and on_rank_1 == "return" else 3

    def forward(self, x):
        for block in self.blocks[:self.last]:
            x = block(x)
        return x


def train(on_rank_1):
    """A step of stage 3, in which rank 1 returns early, or raises."""
    import zerocourse
    model = Blocks(on_rank_1)
    model, optimizer = zerocourse.shard(model, torch.optim.SGD(model.parameters(), lr=0.1), stage=3, prefetch=0)
    y = model(torch.ones(2, 4))
    if on_rank_1 == "return" and dist.get_rank() == 1:
        time.sleep(0.2)
        return
    y.sum().backward()
    optimizer.step()


def test_a_rank_that_returns_while_another_one_waits(pool, monkeypatch):
    monkeypatch.setattr(jobs, "NOTICE_SECONDS", 0.2)
    ranks, said = pool(2), []
    monkeypatch.setattr(ranks, "echo", said.append)
    with pytest.raises(LaunchTimeout) as caught:
        ranks.run(train, "return", timeout=3)  # on a busy machine the notice comes late
    sentence = (r"rank 1 returned after [0-2]\.\d s; rank 0 still waits in all_gather of blocks\.2, "
                r".*test_ranks\.py:\d+ in forward: x = block\(x\)")
    assert re.fullmatch(f"stopped after 3 s: {sentence}", str(caught.value))
    assert len(said) == 1 and re.fullmatch(rf"\({sentence}\)", said[0])  # said once, while it waited
    assert list(caught.value.returned) == [1] and list(caught.value.waiting) == [0]


def test_a_cell_that_only_one_rank_finishes():
    with Ranks(2, quiet=True) as ranks, pytest.raises(LaunchTimeout, match="rank 1 finished after 0.0 s; rank 0 still "
                                                      "waits in all_reduce, <cell>:2 in <module>: dist.all_reduce"):
        ranks.exec("if rank == 0:\n    dist.all_reduce(torch.ones(1))", name="<cell>", timeout=0.5)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_rank_that_raises_while_another_one_waits(pool, where):
    began = time.monotonic()
    with pytest.raises(RankError, match=f"^rank 1: ValueError: in {where}") as caught:
        pool(2).run(train, where, timeout=30)
    assert f'raise ValueError("in {where}")' in caught.value.traceback and time.monotonic() - began < 5


class SlowToLoad:
    def __reduce__(self):
        return time.sleep, (60,)


def test_what_comes_before_the_function_is_called_starting(pool):
    with pytest.raises(LaunchTimeout, match="^stopped after 0.5 s: ranks 0 and 1 are still starting$") as caught:
        pool(2).run(total, SlowToLoad(), timeout=0.5)
    assert caught.value.waiting == {0: "starting", 1: "starting"}


@pytest.mark.skipif(sys.platform != "linux", reason="the C library is loaded by its name on Linux")
def test_a_rank_that_cannot_answer_is_located_all_the_same():
    def hold_the_lock():
        ctypes.PyDLL(None).sleep(60)  # PyDLL keeps the interpreter's lock, so that no other thread runs

    with Ranks(1, quiet=True) as ranks, pytest.raises(LaunchTimeout, match=r"rank 0 is still at .* in hold_the_lock"):
        ranks.run(hold_the_lock, timeout=0.3)


def test_what_is_said_of_many_ranks():
    gather = Position("train.py", 3, "step", "all_gather of blocks.1")
    positions = {0: gather, 1: gather, 4: Position(), 5: Position("eval.py", 8, "test")}
    assert waiting_text({3: 2.0, 2: 1.0}, positions, "finished") == (
        "rank 2 finished after 1.0 s; rank 3 finished after 2.0 s; ranks 0 and 1 still wait in all_gather of blocks.1, "
        "train.py:3 in step; rank 4 is still running; rank 5 is still at eval.py:8 in test")


def test_ranks_out_of_step_are_started_afresh(pool):
    def one_more():
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1), async_op=True)
        return os.getpid()

    before = pool(2).run(one_more)
    assert pool(2).run(total, 1)[0][0] == 21  # with the old ranks this would pair the wrong collectives
    assert set(before).isdisjoint(pool(2).pids.values())


def test_each_call_finds_ranks_as_new(pool):
    def draw():
        groups = len(dist.distributed_c10d._world.pg_map)
        dist.new_group([0, 1])
        torch.set_default_dtype(torch.float64)
        return torch.rand(3).tolist(), groups, os.getpid()

    first, second = pool(2).run(draw), pool(2).run(draw)
    assert first == second and first[0][1] == 1


def test_a_call_that_takes_the_process_group_down(pool):
    pool(2).run(dist.destroy_process_group)
    assert pool(2).run(total, 1)[0][0] == 21


class Late:
    """A wire over which nothing arrives before something is put into `arrives`; also its clock."""

    def __init__(self):
        self.clock, self.arrives = self, SimpleQueue()
        self.until = self.arrives.get  # waits without a frame of this file, which would be the caller's own

    def __call__(self) -> float:
        return 0.0

    def send(self, *_) -> float:
        return 1.0


def test_the_collective_in_which_another_thread_waits_is_what_the_main_thread_waits_for():
    """On a GPU autograd runs its hooks, and so the stages' collectives, in a thread of its own."""
    wire = Late()
    handle = SimulatedComm(0, 2, wire=wire).all_gather(torch.zeros(4), Layout.build({"a": (4,)}, 2), "blocks.2")
    assert current_position().collective == ""
    thread, until = threading.Thread(target=handle.wait), time.monotonic() + 10
    thread.start()
    while not (position := current_position()).collective and time.monotonic() < until:
        time.sleep(0.01)
    wire.arrives.put(None)
    thread.join()
    assert position.collective == "all_gather of blocks.2"
    assert position.file == __file__ and "current_position()" in position.place, "the main thread's line"


def test_calls_follow_the_callers_folder(pool, tmp_path, monkeypatch):
    pool(2).run(os.getcwd)
    monkeypatch.chdir(tmp_path)
    assert pool(2).run(os.getcwd) == [str(tmp_path)] * 2


def test_functions_are_packed_from_several_threads_at_once():
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda _: payload.pack(total), range(200)))) == 1


def test_what_cannot_be_sent_is_named(pool):
    lock = threading.Lock()

    def closes():
        return lock

    with pytest.raises(BadInput, match=r"closes cannot be sent.*outer variable 'lock'.*_thread.lock"):
        pool(2).run(closes)
    with pytest.raises(BadInput, match=r"the global 'LOCK'"):
        pool(2).run(uses_lock_deep_down)
    with pytest.raises(BadInput, match="argument 0"):
        pool(2).run(total, lock)
    with pytest.raises(RankError, match="returned cannot be sent back"):
        pool(2).run(threading.Lock)


LOCK = threading.Lock()


def uses_lock():
    return LOCK


def uses_lock_deep_down():
    return [uses_lock() for _ in range(1)]


def test_cells_keep_variables_through_an_exception():
    with Ranks(2, echo=lambda line: None) as ranks:
        ranks.exec("x = torch.ones(2) * rank\ndist.all_reduce(x)")
        first = dict(ranks.pids)
        with pytest.raises(RankError, match="NameError") as caught:
            ranks.exec("y = 1\nnope")
        assert "line 2" in caught.value.traceback and "nope" in caught.value.traceback
        results = ranks.exec("def f():\n    return world_size\nx.tolist(), y, f()")
        assert results == [([1.0, 1.0], 1, 2)] * 2 and ranks.pids == first
        assert [text for _, text in results.lines] == ["([1.0, 1.0], 1, 2)"] * 2
        assert ranks.exec("import threading\nthreading.Lock()") == [None, None]  # printed; it cannot travel
        assert ranks.exec("x = 5") == [None, None]
        with pytest.raises(RankError, match="SyntaxError"):
            ranks.exec("for")


def test_cells_that_get_stuck_cost_the_variables():
    said = []
    with Ranks(2, echo=said.append) as ranks:
        ranks.exec("x = 1")
        with pytest.raises(RankError, match="rank 1: ValueError"):
            ranks.exec("if rank == 1:\n    raise ValueError\ndist.barrier()")
        with pytest.raises(RankError, match="NameError"):
            ranks.exec("x")
    assert any("variables of earlier cells are gone" in line for line in said)


def ended(pid: int) -> bool:
    """Whether a process is over within a second; it may be a zombie, or just on its way out."""
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_idle_ranks_leave_and_come_back(monkeypatch):
    said = []
    monkeypatch.setattr(ranks_module, "GRACE_SECONDS", 0.2)
    with Ranks(2, idle=0.3, echo=said.append, timeout=60) as ranks:
        ranks.run(os.getpid)
        first = ranks.pids
        assert all(map(ended, first.values())) and said == []
        assert ranks.run(dist.get_world_size) == [2, 2] and not set(first.values()) & set(ranks.pids.values())


def test_idle_ranks_are_not_used_again():
    """Also before they have left: one might leave while it is given work."""
    with Ranks(1, idle=0.05, timeout=60) as ranks:
        ranks.run(os.getpid)
        first = ranks.pids
        time.sleep(0.1)
        ranks.run(os.getpid)
        assert ranks.pids != first


def test_ranks_that_hold_variables_stay(monkeypatch):
    monkeypatch.setattr(ranks_module, "GRACE_SECONDS", 0.0)
    with Ranks(1, idle=0.1, timeout=60) as ranks:
        ranks.exec("x = 5")
        time.sleep(0.5)
        assert ranks.exec("x") == [5]


def test_interrupting_stops_the_ranks_and_the_next_use_starts_them(survivors, tmp_path):
    mark = uuid.uuid4().hex
    with Ranks(2, env={"TEST_MARK": mark}) as ranks:
        ranks.run(total, 1)

        def stuck():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.system("sleep 100 &")
            if (pid := os.fork()) == 0:  # such a process has no mark of its own, only its rank's session
                time.sleep(100)
            (tmp_path / f"child{dist.get_rank()}").write_text(str(pid))
            if dist.get_rank() == 0:
                dist.barrier()
            time.sleep(100)

        threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
        started = time.monotonic()
        with pytest.raises(LaunchInterrupted):
            ranks.run(stuck)
        assert time.monotonic() - started < 3 and ranks.pids == {}
        assert survivors(mark, 0.2) == []
        assert len(list(tmp_path.iterdir())) == 2
        for child in tmp_path.iterdir():
            assert ended(int(child.read_text()))
        assert ranks.run(total, 1)[0][0] == 21


def test_ranks_end_with_what_they_started(survivors, tmp_path):
    """A rank of ours that launches ranks itself, and is killed: the inner ones go too."""
    mark = uuid.uuid4().hex

    def nest():
        (tmp_path / os.environ["RANK"]).write_text(str(parent.current_parent().folder))
        inside = Ranks(1, init=False, fork=os.environ["RANK"] == "0")  # with a fork server of its own, and without one
        inside.run(lambda: subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)
        if os.environ["RANK"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)

    with Ranks(2, env={"TEST_MARK": mark}, init=False) as ranks, pytest.raises(RankDied):
        ranks.run(nest, timeout=60)
    assert survivors(mark, 0.5) == []
    assert not any(os.path.exists(file.read_text()) for file in tmp_path.iterdir())


def test_without_forking():
    with Ranks(2, fork=False) as ranks:
        assert ranks.run(total, 1)[0][0] == 21


def test_connections_without_the_token_are_closed(tmp_path):
    import json
    import socket

    events = []
    listener = Listener(tmp_path, *[lambda *event: events.append(event)] * 4)
    for token in ("wrong", listener.token):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(listener.address)
        hello = {"rank": 0, "local_rank": 0, "pid": 1, "token": token, "use": "events"}
        sock.sendall(json.dumps(hello).encode() + b'\n{"event": "ready"}\n')
        for _ in range(3):
            listener.poll(0.1)
        assert len(events) == (0 if token == "wrong" else 2)
    listener.close()


def test_who_failed_first():
    """The order in which ends and errors are seen is chance within a moment; what is told must not be."""
    job = jobs.Job(3)
    fails = {"event": "error", "time": 2.0, "kind": "RuntimeError", "message": "closed by peer", "traceback": "",
             "position": {}}
    try:
        job._event(0, dict(fails))
        job._disconnected(1)  # seen after what it did to rank 0
        job.exits.codes, job.exits.first_failed = lambda: {1: -signal.SIGKILL}, lambda: 0
        assert job.rank_died().rank == 1 and job.rank_died().exit_code == -signal.SIGKILL
        job.exits.codes = lambda: {1: -signal.SIGTERM}  # torchrun ended it because rank 0 had failed
        assert job.rank_died() is None
        job._event(2, fails | {"time": 1.0})
        assert [f.rank for f in job.failed()] == [0, 2]  # alike: the lowest rank speaks
        job._event(1, fails | {"time": 1.5, "kind": "ValueError"})
        assert [f.rank for f in job.failed()] == [2, 1, 0]  # not alike: in order of time
    finally:
        job.close()


@pytest.mark.parametrize("error", (None, OSError("no more processes")))
def test_a_notebook_gets_ready_for_ranks_while_its_reader_reads(monkeypatch, error):
    """The extension starts the fork server and waits for nothing; where none can be started the magics are there all the same."""
    started, known = [], []

    def start():
        started.append(True)
        if error:
            raise error

    class Shell:
        def register_magic_function(self, magic, kind):
            known.append(magic.__name__)

        class events:
            register = staticmethod(lambda event, function: known.append(event))

    monkeypatch.setattr(magics, "start_fork_server", start)
    magics.load_ipython_extension(Shell())
    assert started == [True] and known == ["torchrun", "ranks", "pre_run_cell", "post_run_cell"]


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux only")
def test_a_process_number_that_comes_again(monkeypatch):
    """The code of a rank that ended under the same number long ago is not the new rank's."""
    server = fork_server(parent.QUIET | os.environ)
    receive = server._receive

    def receive_late():
        answer = receive()
        server.codes |= dict.fromkeys((answer or {}).get("pids", ()), -signal.SIGKILL)
        return answer

    monkeypatch.setattr(server, "_receive", receive_late)
    with Ranks(2, quiet=True) as ranks:
        assert ranks.run(total, 1)[1].tolist() == [21.0] * 2


def test_nproc_is_checked():
    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(BadInput, match="nproc is"):
            Ranks(wrong)
    with pytest.raises(BadInput, match="oversubscribe=True"):
        Ranks(10_000)
    check_nproc(10_000, oversubscribe=True)


def test_one_pool_for_everybody():
    assert shared(2) is shared(2)


def test_the_process_group_of_a_single_process():
    def alone():
        from zerocourse.comm.bootstrap import device, init
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name)
        init()
        first = dist.group.WORLD
        init(timeout_seconds=5)  # a group that is up is used as it is
        return dist.get_world_size(), dist.get_backend_config(dist.group.WORLD), dist.group.WORLD is first, device().type

    with Ranks(1, init=False) as ranks:
        expected = ("cpu:gloo,cuda:nccl", "cuda") if torch.cuda.is_available() else ("cpu:gloo,cuda:gloo", "cpu")
        assert ranks.run(alone) == [(1, expected[0], True, expected[1])]


def test_reports_outside_a_launch_do_nothing():
    report(step=1)
    progress(1, 2)


def test_other_processes_import_the_same_package(monkeypatch):
    root = str(Path(parent.__file__).parents[3])
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if os.path.abspath(entry) != root])
    assert parent.import_path()[-1] == root and os.path.isfile(os.path.join(root, "zerocourse", "__init__.py"))


def test_a_rank_imports_nothing_that_only_the_launching_process_needs():
    code = "import sys, zerocourse.launch.rank_process; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()
    assert "zerocourse.launch.rank_process" in loaded
    assert not {"torch", "cloudpickle", "zerocourse.launch.launcher", "zerocourse.launch.processes.jobs"} & {*loaded}
    from zerocourse import launch
    assert all(getattr(launch, name) for name in launch.__all__)
