"""Elastic restarts: ranks and nodes are really killed, and the run goes on as if nothing had happened."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist

from zerocourse.engine.train import TrainSettings, train
from zerocourse.launch import RankDied, launch, report
from zerocourse.launch.processes.listener import free_port
from zerocourse.models.gpt2 import CONFIGS

ROOT = Path(__file__).parents[1]
BATCH = {"train_batch_size": 12, "train_micro_batch_size_per_gpu": 3, "zero_optimization": {"stage": 3},
         "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}  # the accumulation follows the number of ranks
STEPS = 9


def settings(folder: Path | None) -> TrainSettings:
    """Of a run that writes a checkpoint after each step."""
    return TrainSettings(BATCH, CONFIGS["gpt2-tiny"], ROOT / "README.md", STEPS, tokens=8, checkpoints=folder, save_every=1,
                         may_restart=folder is not None)


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def unhurt(pool) -> list[float]:
    """The losses of a run of two ranks that nobody hurts."""
    return [row["loss"] for row in pool(2).run(train, settings(None))[0]["rows"]]


# two nodes

def on_node(folder: Path, name: str) -> dict:
    """Node "other" stops after step 3 for the test to kill it; after step 6 the one that is left waits for it."""
    def tell(row: dict) -> None:
        report(step=row["step"], loss=row["loss"], ranks=dist.get_world_size())
        if name == "other" and row["step"] == 3:
            (folder / "kill me").touch()
            time.sleep(600)
        if dist.get_world_size() == 1 and row["step"] == 6:
            (folder / "alone").touch()
            time.sleep(600)

    (folder / f"{name} {os.getpid()}").touch()
    return train(settings(folder / "checkpoints"), tell)


def node(folder: Path, name: str, port: int):
    return launch(on_node, folder, name, nproc=1, nnodes="1:2", node_rank=int(name != "first"), max_restarts=3,
                  rdzv_endpoint=f"127.0.0.1:{port}", timeout=110)


def wait_for(file: Path, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not file.exists():
        assert time.monotonic() < until, file.name
        time.sleep(0.05)


def test_a_node_is_killed_and_another_comes(tmp_path, unhurt):
    port = free_port()
    code = f"import sys; sys.path[:0] = {[str(ROOT), str(ROOT / 'tests')]}; from pathlib import Path; import test_elastic; " \
           f"test_elastic.node(Path({str(tmp_path)!r}), 'other', {port})"
    with ThreadPoolExecutor() as threads:
        first = threads.submit(node, tmp_path, "first", port)
        other = subprocess.Popen([sys.executable, "-c", code])
        wait_for(tmp_path / "kill me")
        other.kill()  # its ranks and its torchrun are ended by their cleanup, as the loss of a machine would
        other.wait()
        wait_for(tmp_path / "alone")
        back = node(tmp_path, "back", port)
        here = first.result()
    for a in here.attempts: print(a)
    print(back.attempts)
    assert [row["loss"] for row in here[0]["rows"]] == pytest.approx(unhurt, abs=1e-6)
