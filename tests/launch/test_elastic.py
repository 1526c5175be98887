"""Elastic restarts: ranks and nodes are really killed, and the run goes on as if nothing had happened."""

import csv
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from test_comm import forked

from tools import hurt
from zerocourse.comm import Comm
from zerocourse.comm.attempt import agree_on_attempt
from zerocourse.comm.waits import failure
from zerocourse.commands.earlier_run import of_earlier_attempt
from zerocourse.commands.train_command import outcome, resolve
from zerocourse.engine import initialize
from zerocourse.engine.checkpoint.folders import checkpoint_folder as folders
from zerocourse.engine.config import Config
from zerocourse.engine.train import TrainSettings, train
from zerocourse.errors import BadInput, CollectiveError
from zerocourse.launch import RankError, Results, launch, report
from zerocourse.launch.launcher import FRESH_STORE
from zerocourse.launch.processes.cleanup import RUN_VARIABLE, find_processes
from zerocourse.launch.processes.listener import free_port
from zerocourse.models.gpt2 import CONFIGS

ROOT = Path(__file__).parents[2]
BATCH = {"train_batch_size": 12, "train_micro_batch_size_per_gpu": 3, "zero_optimization": {"stage": 3},
         "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}  # the accumulation follows the number of ranks
STEPS = 9


def settings(folder: Path | None) -> TrainSettings:
    """Of a run that writes a checkpoint after each step."""
    return TrainSettings(BATCH, CONFIGS["gpt2-tiny"], ROOT / "README.md", STEPS, tokens=8, checkpoints=folder,
                         save_every=1, may_restart=folder is not None)


@pytest.fixture(scope="module")
def unhurt(pool) -> list[float]:
    """The losses of a run of two ranks that nobody hurts."""
    return [row["loss"] for row in pool(2).run(train, settings(None))[0]["rows"]]


def exchange_and_return() -> list:
    """The last thing that both do. Rank 1 reads slowly, and rank 0, whose process may keep the store, does not."""
    comm = Comm()
    if comm.rank == 1:
        read = comm.report._get
        comm.report._get = lambda key: time.sleep(0.4) or read(key)
    return comm.all_gather_object(comm.rank)


def test_the_store_stays_until_all_have_read():
    assert list(launch(exchange_and_return, nproc=2, quiet=True, timeout=60, env=FRESH_STORE)) == [[0, 1]] * 2


# one node

@pytest.mark.timeout(300)
def test_killed_in_a_step_and_in_a_save_it_goes_on():
    """`python -m tools.hurt` does the same fifty times."""
    results, wrong = hurt.trial(["step", "save"], timeout=250)
    assert not wrong
    for attempt in results.attempts[:-1]:
        assert re.fullmatch(r"rank [01] died( \(SIGKILL\))?", attempt.ended)


def fail(number: int) -> None:
    report(number=number)
    print("hello")
    raise ValueError("not today")


def test_when_the_restarts_are_used_up(capfd):
    with pytest.raises(RankError) as caught:
        launch(fail, 3, nproc=1, max_restarts=1, init=False, timeout=110)
    assert (caught.value.attempts, caught.value.kind, caught.value.message) == (2, "ValueError", "not today")
    assert str(caught.value) == "rank 0: ValueError: not today (in attempt 2, with max_restarts=1)"
    said = capfd.readouterr().out.splitlines()
    again = "(attempt 2: rank 0 raised ValueError: not today, so torchrun has started the ranks again)"
    assert said == ["[0] hello", again, "[0, attempt 2] hello"]


def refuse() -> None:
    raise BadInput("the model does not fit")


def test_bad_input_is_not_tried_again():
    with pytest.raises(RankError, match="^rank 0: BadInput: the model does not fit \\(in attempt 1, with max_restarts=9\\)"):
        launch(refuse, nproc=1, max_restarts=9, init=False, quiet=True, timeout=60)


@pytest.mark.parametrize("options, words", [
    ({"max_restarts": -1}, "max_restarts is -1; it is how often"), ({"max_restarts": True}, "max_restarts is True"),
    ({"nnodes": "2:1"}, "nnodes is '2:1'; it is the number of machines, or 'MIN:MAX'"),
    ({"nnodes": "two"}, "nnodes is"), ({"nnodes": 0}, "nnodes is 0"), ({"nnodes": "1:2"}, "for nnodes=1:2 it is 'host:port' of node 0"),
    ({"nnodes": "1:2", "node_rank": 2, "rdzv_endpoint": "h:1"}, "node_rank=2 is not one of the 2 nodes")])
def test_bad_input_needs_no_process(options, words):
    with pytest.raises(BadInput, match=re.escape(words)):
        launch(fail, 3, **options)


def killed_in_save(rank: int, folder: str) -> tuple[str, float]:
    """Rank 1 is killed when it has written its pieces, and not said so. What rank 0 hears, after how many seconds."""
    engine = initialize(model=torch.nn.Linear(3, 3), config=BATCH)[0]
    engine.save_checkpoint(folder, tag="good")
    for comm in failure.living:
        comm.backends = "cpu:gloo,cuda:nccl"  # so it is where ranks have GPUs: what the ranks tell each other goes over gloo
    if rank == 1:
        folders.write_whole = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        engine.save_checkpoint(folder, tag="torn")
    except CollectiveError as error:
        return str(error), time.monotonic() - began
    return "nothing", 0


def load(folder: str) -> str:
    engine = initialize(model=torch.nn.Linear(3, 3), config=BATCH)[0]
    return engine.load_checkpoint(folder)[0]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_when_one_rank_is_killed_in_a_save_the_other_hears_it_and_the_last_checkpoint_loads(pool, tmp_path):
    words, seconds = forked(2, killed_in_save, str(tmp_path))[0]
    assert re.match(r"a collective broke off: rank 0 was in all_gather_object #\d+; rank 1 did not answer: its process "
                    "is gone", words)
    assert seconds < 30  # not after the half hour that a collective may take
    assert pool(1).run(load, str(tmp_path)) == [str(tmp_path / "good")]


# the ranks of an attempt

def test_ranks_agree_on_an_attempt_whatever_earlier_ones_left():
    """Attempts of 3, 2 and 3 ranks in one store, in which each finds a question of a rank that is gone, and answers it first."""
    store, names = dist.HashStore(), []
    for number, ranks in enumerate((3, 2, 3)):
        store.set("question of 1", f"asked {number}")
        with ThreadPoolExecutor(ranks) as threads:
            found = [threads.submit(agree_on_attempt, store, 0, ranks, 10)]
            store.wait([f"answer to asked {number}"], timedelta(seconds=10))
            found += [threads.submit(agree_on_attempt, store, rank, ranks, 10) for rank in range(1, ranks)]
            [name] = {each.result() for each in found}
        names.append(name)
    assert len(set(names)) == 3


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_does_not_come_is_named(rank):
    with pytest.raises(CollectiveError, match=f"rank {rank} has waited 0.1 s at the start for rank {1 - rank} of 2;"):
        agree_on_attempt(dist.HashStore(), rank, 2, 0.1)


# zerocourse train

def test_the_command_under_torchrun_goes_on_by_itself(tmp_path, unhurt):
    """It is killed after its third step, and started again by torchrun, without --resume."""
    (tmp_path / "ds.json").write_text(json.dumps(BATCH))
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2",
               "-m", "zerocourse", "train", "--config", "ds.json", "--data", str(ROOT / "README.md"), "--tokens", "8",
               "--steps", str(STEPS), "--save-every", "1"]
    run = subprocess.Popen(command, cwd=tmp_path, text=True, stdout=-1, stderr=-2,
                           env=os.environ | {RUN_VARIABLE: mark, "PYTHONPATH": str(ROOT)})
    checkpoints = tmp_path / "output" / "checkpoints"
    wait_for(checkpoints / "global_step1")
    victim = next(pid for pid in find_processes(mark) if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes())
    wait_for(checkpoints / "global_step3")
    os.kill(victim, signal.SIGKILL)
    said = run.communicate(timeout=100)[0]
    assert run.returncode == 0 and "resumed after step" in said, said
    with (tmp_path / "output" / "deepspeed_metrics" / "training_metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [*range(1, STEPS + 1)]
    assert [float(row["loss"]) for row in rows] == unhurt


@pytest.fixture(scope="module")
def earlier(pool, tmp_path_factory) -> Path:
    """A folder with a checkpoint of the run "mine"."""
    folder = tmp_path_factory.mktemp("earlier")
    pool(1).run(train, replace(settings(folder), steps=1, run="mine"))
    return folder


@pytest.mark.parametrize("run, max_restarts, own", [("mine", 0, True), ("other", 3, False), ("", 0, False)])
def test_only_its_own_checkpoint_is_gone_on_from_unasked(monkeypatch, earlier, run, max_restarts, own):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", run)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", str(max_restarts))
    client = of_earlier_attempt(Namespace(checkpoints=earlier))
    assert client["batch"] == [12, 3] and client["step"] == 1 if own else client is None


@pytest.mark.parametrize("config, given, ranks, want", [
    ({"train_micro_batch_size_per_gpu": 3}, (), 1, (12, 3, 4)),
    ({"train_micro_batch_size_per_gpu": 3}, (), 4, (12, 3, 1)),
    ({"train_batch_size": 12, "gradient_accumulation_steps": 2}, (), 1, (12, 3, 4)), ({}, (), 6, (12, 1, 2)),
    ({"train_micro_batch_size_per_gpu": 3}, (), 3, "12 is not divisible by 3 × 3"),
    ({}, (), 5, "12 is not divisible by"),
    ({"train_micro_batch_size_per_gpu": "auto"}, ("--micro-batch",), 6, "12 is not divisible by 3 × 6")])
def test_the_batch_stays_and_the_accumulation_follows(tmp_path, config, given, ranks, want):
    """An earlier attempt had steps of 12 samples, in micro-batches of 3."""
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(config | {"optimizer": BATCH["optimizer"]}))
    args = Namespace(config=file, given=given, lr=1e-3, micro_batch=3, steps=9)
    if isinstance(want, str):
        with pytest.raises(BadInput, match=want):
            resolve(args, ranks, [12, 3])
    else:
        got = resolve(args, ranks, [12, 3])
        assert (got.train_batch_size, got.train_micro_batch_size_per_gpu, got.gradient_accumulation_steps) == want


def test_a_run_that_had_made_its_last_step_only_writes_its_files(pool, tmp_path):
    run = replace(settings(tmp_path), steps=1)
    first, again = (pool(1).run(train, run)[0] for _ in range(2))
    assert again["rows"] == first["rows"] and again["resumed_from"] == 1 and again["total_bytes"] is None
    args = Namespace(out=tmp_path / "out", model="gpt2-tiny", checkpoints=tmp_path)
    said = outcome(args, replace(run, config=Config.load(BATCH, 1).as_dict()), [again])
    assert said.ok and said.data["peak_bytes"] == [None] and "a rank held" not in said.text


# two nodes

def on_node(folder: Path, name: str) -> dict:
    """Node "other" stops after step 3 for the test to kill it; after step 6 the one that is left waits for another.

    On a busy machine one node may come so late that the other begins alone: that one waits for it at its first step.
    """
    def tell(row: dict) -> None:
        report(step=row["step"], loss=row["loss"], ranks=dist.get_world_size())
        is_alone = dist.get_world_size() == 1
        if is_alone and not (folder / "ready to die").exists():
            time.sleep(600)
        if name == "other" and row["step"] == 3:
            (folder / "ready to die").touch()
            time.sleep(600)
        if is_alone and row["step"] >= 6:
            (folder / "alone").touch()
            time.sleep(600)

    (folder / f"{name} {os.getpid()}").touch()
    return train(settings(folder / "checkpoints"), tell)


def node(folder: Path, name: str, port: int) -> Results:
    return launch(on_node, folder, name, nproc=1, nnodes="1:2", node_rank=int(name != "first"), max_restarts=3,
                  rdzv_endpoint=f"127.0.0.1:{port}", timeout=270, quiet=True)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_for(file: Path) -> None:
    until = time.monotonic() + 100
    while not file.exists():
        assert time.monotonic() < until, f"{file.name} is not there"
        time.sleep(0.05)


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_node_is_killed_and_another_comes(tmp_path, unhurt):
    """From 2 ranks to 1, and to 2 again. A node that is gone takes its torchrun with it, so nobody says that it is."""
    port = free_port()
    other = multiprocessing.get_context("fork").Process(target=node, args=(tmp_path, "other", port))
    other.start()
    with ThreadPoolExecutor() as threads:
        first = threads.submit(node, tmp_path, "first", port)
        wait_for(tmp_path / "ready to die")
        # Torchrun goes first: if it outlived its rank by a moment, it would come back and say that the nodes changed.
        rank = max(tmp_path.glob("other *"), key=lambda file: file.stat().st_mtime).name.split()[1]
        os.kill(parent_of(int(rank)), signal.SIGKILL)
        other.kill()  # its cleanup ends its rank with SIGKILL
        wait_for(tmp_path / "alone")
        back = node(tmp_path, "back", port)
        stayed = first.result()
    other.join()
    for result in (stayed, back):
        assert [row["loss"] for row in result[0]["rows"]] == pytest.approx(unhurt, abs=1e-6)
    why = [attempt.ended for attempt in stayed.attempts[:-1]]
    assert why.count("a rank of another node failed") == 1
    assert set(why) == {"a rank of another node failed", "the number of nodes changed"}, why
    left = stayed.attempts[why.index("a rank of another node failed") + 1]
    alone = [record["step"] for _, record in left.records if record["ranks"] == 1]
    assert alone[-1] == 6 and {record["ranks"] for _, record in back.records} == {2}
    for name in ("other", "first", "back"):
        for file in tmp_path.glob(f"{name} *"):
            assert not Path(f"/proc/{file.name.split()[1]}").exists(), f"a rank of {name} is left"
