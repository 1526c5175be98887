"""Launches under a real torchrun: what comes back, how failures read, and that no process is ever left."""

import os
import queue
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import types
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from zerocourse.errors import BadInput
from zerocourse.launch import LaunchError, LaunchTimeout, RankDied, RankError, Ranks, launch, progress, progress_bar, report
from zerocourse.launch.processes import jobs, parent
from zerocourse.launch.processes.listener import free_port

ROOT = str(Path(__file__).parents[2])
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def write(folder, name, text):
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def work(x, y=0):
    tensor = torch.full((3,), x + float(dist.get_rank()))
    dist.all_reduce(tensor)
    for step in range(1, 4):
        report(step=step, loss=tensor[0] / step)
        progress(step, 3, loss=0.5)
    print("[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1")  # as torch 2.10 does
    print("sum", tensor[0].item())
    os.write(2, b"\xff no newline")
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID", "EXTRA")
    env = {name: os.environ.get(name) for name in names}
    return {"env": env, "tensor": tensor, "y": y, "big": torch.ones(5_000_000)}


def test_a_function(capfd, monkeypatch):
    monkeypatch.setattr(progress_bar, "is_watched", lambda: True)  # it is no terminal
    shown, before = [], set(parent.current_parent().folder.iterdir())
    results = launch(work, 1, y=2, env={"EXTRA": 7, "OMP_NUM_THREADS": 1}, only=1, echo=shown.append, timeout=60)
    assert len(results) == 2 and [r["y"] for r in results] == [2, 2]
    for rank, result in enumerate(results):
        env = result["env"]
        assert env["RANK"] == env["LOCAL_RANK"] == str(rank) and env["WORLD_SIZE"] == env["LOCAL_WORLD_SIZE"] == "2"
        assert env["EXTRA"] == "7" and env["OMP_NUM_THREADS"] == "1" and env["TORCHELASTIC_RUN_ID"]
        assert result["tensor"].tolist() == [3.0] * 3 and int(result["big"].sum()) == 5_000_000
    records = [record for rank, record in results.records if rank == 0]
    assert records == [{"step": step, "loss": 3.0 / step} for step in (1, 2, 3)]
    assert shown == ["[1] sum 3.0", "[1] \ufffd no newline"]
    assert (0, "sum 3.0") in results.lines and results.seconds > 0
    assert "3/3" in capfd.readouterr().err  # the progress bar
    assert set(parent.current_parent().folder.iterdir()) == before  # values of any size leave no file


def test_a_script_and_a_module(tmp_path):
    (tmp_path / "pkg").mkdir()
    text = """
        import atexit, os, sys, time
        print(os.environ["RANK"], __name__, sys.argv[1:], os.path.basename(sys.path[0]), os.getcwd())
        atexit.register(print, "bye")
        if sys.argv[1] == "1" and os.environ["RANK"] == "0":
            os._exit(0)
        time.sleep(1.5 * int(sys.argv[1]))  # longer than a rank gets after another has died
        sys.exit(0)
        """
    script = write(tmp_path / "pkg", "mod.py", text)
    with ThreadPoolExecutor() as threads:
        as_script = threads.submit(launch, script, argv=[0, "--lr", 0.1], cwd=tmp_path, quiet=True, timeout=60)
        as_module = threads.submit(launch, "pkg.mod", argv=[1], cwd=tmp_path, quiet=True, timeout=60)
    results = as_script.result()
    for rank in (0, 1):
        lines = [line for r, line in results.lines if r == rank]
        assert lines == [f"{rank} __main__ ['0', '--lr', '0.1'] pkg {tmp_path}", "bye"]
    assert results == [None, None]
    lines = [line for r, line in as_module.result().lines if r == 1]
    assert lines == [f"1 __main__ ['1'] {tmp_path.name} {tmp_path}", "bye"]


DIES = """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun waits half a minute for such a peer
    if os.environ["RANK"] == "1":
        exec(sys.argv[1])
    time.sleep(100)
    """


@pytest.mark.parametrize("how, error, says", [
    ("os.kill(os.getpid(), 9)", RankDied, "rank 1 .*SIGKILL"),
    ("sys.exit('no data')", RankError, "rank 1: SystemExit: no data")])
def test_a_script_that_dies(tmp_path, survivors, how, error, says):
    mark = uuid.uuid4().hex
    started = time.monotonic()
    with pytest.raises(error, match=says):
        launch(write(tmp_path, "dies.py", DIES), argv=[how], env={"TEST_MARK": mark}, timeout=60)
    assert survivors(mark, 0) == [] and time.monotonic() - started < 20


def test_a_death_is_told_before_what_it_does_to_others():
    def die():
        if dist.get_rank() == 1:
            os._exit(3)
        dist.barrier()

    with pytest.raises(RankDied, match="rank 1 .*exit code 3"):
        launch(die, quiet=True, timeout=60)


def gather_and_reduce(on_rank_1):
    """Rank 0 waits for rank 1 in an all_gather of the forward, or in an all_reduce of the backward."""
    from zerocourse.comm import Comm
    from zerocourse.layout.rankmap import Layout

    def reduce_or_raise(grad):
        if dist.get_rank() == 1:
            raise ValueError("in backward")
        dist.all_reduce(grad)

    comm, row = Comm(), torch.ones(4, requires_grad=True)
    if dist.get_rank() == 1 and on_rank_1 == "returns":
        return
    comm.all_gather(row.detach(), Layout.build({"weight": (4,)}, 2), "blocks.2").wait()
    loss = row.sum()
    row.register_hook(reduce_or_raise)
    loss.backward()


@pytest.mark.alone  # how soon the ranks are gone
def test_one_rank_returns_or_raises_while_the_other_waits():
    def run(on_rank_1):
        with pytest.raises(RankError) as caught:
            launch(gather_and_reduce, on_rank_1, quiet=True, timeout=60)
        return caught.value

    with ThreadPoolExecutor(2) as threads:
        returns, raises = threads.map(run, ("returns", "raises"))
    assert str(raises) == "rank 1: ValueError: in backward" and 'raise ValueError("in backward")' in raises.traceback
    cause, _, sentence = str(returns).partition("\n")
    assert re.fullmatch(r"rank 1 returned after 0\.\d s; rank 0 still waited in all_gather of blocks\.2, "
                        r".*test_launch\.py:\d+ in gather_and_reduce: comm\.all_gather.*", cause)
    assert sentence.startswith("rank 0: CollectiveError: ") and list(returns.returned) == [1]
    drawn = returns._render_traceback_()
    assert cause in drawn[0] and 'comm.all_gather' in drawn[1]


def test_ranks_that_are_still_starting():
    with pytest.raises(LaunchTimeout, match="^stopped after 0.5 s: ranks 0 and 1 are still starting$"):
        launch(time.sleep, 60, timeout=0.5)


class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        time.sleep(0.01)
        return index


def test_a_timeout_says_where_and_leaves_nothing(survivors, monkeypatch, tmp_path):
    def stuck():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        loader = iter(torch.utils.data.DataLoader(Items(), num_workers=2))
        next(loader)
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        print("go")
        if dist.get_rank() == 0:
            time.sleep(1000)
        dist.barrier()

    heard = []
    clock = types.SimpleNamespace(monotonic=lambda: time.monotonic() + (1000 if len(heard) == 2 else 0))
    monkeypatch.setattr("zerocourse.launch.launcher.time", clock)  # time is up when both ranks are stuck
    mark = uuid.uuid4().hex
    with pytest.raises(LaunchTimeout) as caught:
        launch(stuck, env={"TEST_MARK": mark, "TMPDIR": str(tmp_path)}, timeout=900,
               echo=lambda line: (time.sleep(0.3), heard.append(line)))
    assert survivors(mark, 0) == []
    assert list(tmp_path.iterdir()) == []  # neither torchrun's folder for logs nor multiprocessing's for sockets
    assert "time.sleep(1000)" in caught.value.waiting[0]
    assert caught.value.waiting[1].startswith("waiting in barrier") and "dist.barrier()" in caught.value.waiting[1]


def test_bad_input_needs_no_process(tmp_path):
    for wrong, says in [("no/such/script.py", "no script"), ("no_such_module", "no module"), (3, "target is 3")]:
        with pytest.raises(BadInput, match=says):
            launch(wrong)
    script = write(tmp_path, "s.py", "")
    for wrong, says in [({"nproc": 0}, "nproc is 0"), ({"nproc": 9999}, "oversubscribe=True"), ({"lr": 1}, "argv="),
                        ({"nnodes": 2}, "rdzv_endpoint"),
                        ({"nnodes": 2, "node_rank": 2, "rdzv_endpoint": "a:1"}, "node_rank=2")]:
        with pytest.raises(BadInput, match=says):
            launch(script, **wrong)
    with pytest.raises(BadInput, match="argv goes to scripts"):
        launch(work, argv=[1])


def test_torchrun_itself_failing_is_said(tmp_path):
    with pytest.raises(LaunchError, match="torchrun ended with exit code"):
        launch(write(tmp_path, "s.py", ""), env={"PYTHONPATH": write_broken_torch(tmp_path)}, timeout=60)


def write_broken_torch(folder):
    (folder / "torch").mkdir()
    write(folder / "torch", "__init__.py", "raise ImportError('broken')")
    return folder


def test_long_folders_for_temporary_files(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    own = parent.Parent()
    monkeypatch.setattr(jobs, "current_parent", lambda: own)
    script = write(tmp_path, "s.py", "print('hello')")
    assert launch(script, nproc=1, quiet=True, timeout=60).lines == [(0, "hello")]
    own.close()
    assert list(long.iterdir()) == []


def test_two_nodes():
    port = free_port()

    def node(rank):
        return launch(work, 1, nproc=1, nnodes=2, node_rank=rank, rdzv_endpoint=f"127.0.0.1:{port}", quiet=True,
                      progress=False, timeout=100)

    with ThreadPoolExecutor() as threads:
        both = list(threads.map(node, (0, 1)))
    assert sorted(int(r[0]["env"]["RANK"]) for r in both) == [0, 1]
    assert all(len(r) == 1 and r[0]["tensor"].tolist() == [3.0] * 3 for r in both)


# A real kernel ---------------------------------------------------------------------------------------------------

STUCK = """
    import os, signal, subprocess, time, torch.distributed as dist, torch.utils.data as data

    class Items(data.Dataset):
        def __len__(self): return 10**6
        def __getitem__(self, index): time.sleep(0.01); return index

    if os.environ["RANK"] == "1":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    loader = iter(data.DataLoader(Items(), num_workers=2))
    next(loader)
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    dist.init_process_group("gloo")
    print("go")
    dist.barrier() if dist.get_rank() == 0 else time.sleep(1000)
    """


class Kernel:
    """A Jupyter kernel whose processes all carry `mark`."""

    def __init__(self, folder):
        from jupyter_client.manager import KernelManager

        self.mark, self.folder = uuid.uuid4().hex, folder
        write(folder, "stuck.py", STUCK)
        self.manager = KernelManager(kernel_name="python3")
        env = {**os.environ, "TEST_MARK": self.mark, "PYTHONPATH": ROOT, "JUPYTER_PATH": ""}
        self.manager.start_kernel(cwd=str(folder), env=env, stderr=subprocess.DEVNULL)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.run("from zerocourse.launch import launch\nfrom zerocourse.launch.magics import load_ipython_extension\n"
                 "load_ipython_extension(get_ipython())")

    def run(self, code, until=None, count=1, seconds=60):
        """Run a cell and return its text and errors; or return as soon as `until` was printed `count` times."""
        self.request, self.text, self.error = self.client.execute(code), "", None
        return self.follow(until, count, seconds)

    def follow(self, until=None, count=1, seconds=60):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                message = self.client.get_iopub_msg(timeout=0.2)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != self.request:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                self.text += content["text"]
            if message["msg_type"] == "error":
                self.error = content
                self.text += "\n".join(content["traceback"])
            idle = message["msg_type"] == "status" and content["execution_state"] == "idle"
            if idle or (until and self.text.count(until) >= count):
                return self.text
        raise AssertionError(f"the kernel did not come back in {seconds} s; it said {self.text!r}")

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(tmp_path):
    kernel = Kernel(tmp_path)
    yield kernel
    kernel.close()


def test_a_cell_that_takes_long_says_so_to_who_sits_there(kernel):
    """The line appears, goes on, and is empty at the end; a program that executes the notebook gets none."""
    kernel.run("from zerocourse.launch import working_line\nworking_line.AFTER_SECONDS = working_line.EVERY_SECONDS = 0.2\nimport time")
    for program in (False, True):
        lines, request = [], kernel.client.execute("time.sleep(0.7)", allow_stdin=not program)
        while True:
            message = kernel.client.get_iopub_msg(timeout=30)
            if message["parent_header"].get("msg_id") == request:
                if message["msg_type"] in ("display_data", "update_display_data"):
                    lines.append(message["content"]["data"]["text/plain"])
                if message["content"].get("execution_state") == "idle":
                    break
        assert lines[-1:] == ([] if program else [""])
        assert len(lines) >= 3 * (not program) and all(line.startswith("working … ") for line in lines[:-1]), lines


def test_an_error_names_the_cell_also_when_it_runs_again(kernel):
    """With another cell between, which is the last that is new."""
    for number in (2, 4):  # the first was the extension's
        said = kernel.run("%%ranks --nproc 1\n1 / 0")
        kernel.run("'between'")
        assert f"Cell In[{number}], line 2" in said, said


@pytest.mark.alone  # how soon the ranks are gone
@linux
def test_interrupting_a_cell(kernel, survivors):
    """A collective without its peer, data loaders, a rank that ignores signals, processes of its own: all are ended."""
    launches = {"torchrun": f"launch('stuck.py', env={{'LAUNCH_MARK': '{kernel.mark}'}})"}
    launches["kept ranks"] = ("%%ranks\nimport os\nprint('go')\nos.environ['LAUNCH_MARK'] = '" + kernel.mark + "'\n"
                              "os.system('sleep 1000 &')\nif rank == 0: dist.barrier()\nwhile True: pass")
    for name, code in launches.items():
        kernel.run(code, until="go", count=2)
        time.sleep(0.2)
        started = time.monotonic()
        kernel.manager.interrupt_kernel()
        kernel.follow()
        assert time.monotonic() - started < 2, name
        assert kernel.error["ename"] == "LaunchInterrupted", name
        assert survivors(f"LAUNCH_MARK={kernel.mark}", 0) == [], name


@pytest.mark.alone  # how soon the ranks are gone
@linux
def test_killing_the_kernel(kernel, survivors):
    """SIGKILL, while a torchrun and ranks that are kept alive are stuck: nothing is left after two seconds."""
    module = "zerocourse.launch.processes.parent"
    folder = Path(kernel.run(f"from {module} import current_parent\nprint(current_parent().folder)").strip())
    kernel.run("import threading\nfrom zerocourse.launch.ranks import Ranks\n"
               "threading.Thread(target=launch, args=('stuck.py',)).start()\n"
               "def stuck():\n    import time\n    print('go')\n    time.sleep(1000)\n"
               "Ranks(2).run(stuck)", until="go", count=4)
    assert len(survivors(kernel.mark, 0)) > 3 + 2 * 2 + 2 + 3  # torchrun and its ranks, what they started, kept ranks
    assert folder.exists()
    os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)
    assert survivors(kernel.mark, 2) == []
    time.sleep(0.1)
    assert not folder.exists()


@linux
def test_functions_of_cells(kernel):
    kernel.run("def half(x):\n    return x / 0")
    kernel.run("def f(x):\n    import torch\n    if torch.distributed.get_rank() == 1:\n        half(x)\n    return x")
    text = kernel.run("launch(f, 1)")
    assert kernel.error["ename"] == "RankError"
    assert "rank 1 failed" in text and "return x / 0" in text and "half(x)" in text
    assert "Cell In[2], line 2, in half" in text and "Cell In[3], line 4, in f" in text
    assert "zerocourse" not in text and "ipykernel" not in text
    text = kernel.run("%%torchrun --nproc 2 --only 1 --lr 3\n"
                      "import sys, os\nprint(sys.argv[1:])\n1 / (int(os.environ['RANK']) - 1)")
    assert "[1] ['--lr', '3']" in text and "[0] [" not in text and "Cell In[5], line 4" in text
    text = kernel.run("%%ranks --nproc 2\nx = rank\nx / 0")
    assert "Cell In[6], line 3" in text and "zerocourse" not in text
    assert "[1] 1" in kernel.run("%%ranks\nx")
    assert "UsageError" in kernel.run("%%ranks --nope\nx")


def test_the_example_of_the_readme(tmp_path):
    (text,) = re.findall(r"```python\n(# train_mine.*?)```", (Path(ROOT) / "docs/your_own_code.md").read_text(), re.DOTALL)
    script = write(tmp_path, "train_mine.py", text)

    def run():
        runpy.run_path(str(script))

    with Ranks(2, init=False, quiet=True) as ranks:  # they have what torchrun gives a script, and start much sooner
        lines = ranks.run(run).lines
    losses = dict(re.fullmatch(r"(rank \d, step \d): ([\d.]+)", line).groups() for _, line in lines)
    assert len(losses) == 20
    assert all(float(losses[f"rank {rank}, step 9"]) < float(losses[f"rank {rank}, step 0"]) for rank in range(2))


class Odd(Exception):
    def __str__(self):
        raise KeyError("no str")


def odd() -> None:
    raise Odd


def without_stdout() -> int:
    sys.stdout = None
    return 7


def test_an_error_without_words_and_a_function_that_takes_stdout_away(capfd):
    with Ranks(1, init=False) as ranks:
        with pytest.raises(RankError, match=r"^rank 0: Odd: \(its __str__ raises KeyError\)") as caught:
            ranks.run(odd)
        assert "in odd" in caught.value.traceback
        assert list(ranks.run(without_stdout)) == [7]
        assert list(ranks.run(print, "it is there again")) == [None]
    assert "[0] it is there again" in capfd.readouterr().out
