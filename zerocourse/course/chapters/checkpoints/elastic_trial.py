"""Runs that are really killed under torchrun's elastic agent, and what every rank saw of it.

    python -m zerocourse.course.chapters.checkpoints.elastic_trial      # records the run of two machines anew, of which one goes and comes
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch.distributed as dist

from ....engine.checkpoint.folders import checkpoint_folder as folders
from ....engine.train import TrainSettings, train
from ....launch.launcher import launch
from ....launch.processes.attempts import Attempt
from ....launch.processes.listener import free_port
from ....launch.worker import report
from ....measure.recorded import Recorded
from ....models.gpt2 import GPTConfig
from .resumes import TEXT

MODEL = GPTConfig(2, 2, 32, block_size=32, vocab_size=256)
CONFIG = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3},
          "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}  # the accumulation follows from the number of ranks
STEPS, SAVE_EVERY, KILLED_IN, ALONE_UNTIL = 18, 3, 8, 14  # steps


def settings(folder: Path | None) -> TrainSettings:
    """Of one run, which goes on if there is a checkpoint. folder: of its checkpoints; None: it writes none."""
    return TrainSettings(CONFIG, MODEL, TEXT, STEPS, checkpoints=folder, save_every=SAVE_EVERY,
                         resume=folder is not None and folders.latest(folder) is not None)


def losses(folder: Path | None = None) -> list[float]:
    """The losses of a run that nobody hurts. Collective."""
    return [row["loss"] for row in train(settings(folder))["rows"]]


def told(row: dict) -> None:
    """Tell the parent about a step: its number, its loss, and which process on how many ranks has made it."""
    report(step=row["step"], loss=row["loss"], ranks=dist.get_world_size(), pid=os.getpid(), agent=os.getppid(),
           at=time.time())


def once(folder: Path, what: str) -> bool:
    """Whether this is the first time that somebody asks for it, in all attempts."""
    try:
        (folder / what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def killed_once(folder: Path) -> list[float]:
    """On a rank: the run, in whose step KILLED_IN rank 1 is ended by SIGKILL, once. Returns all losses. Collective."""
    def tell(row: dict) -> None:
        told(row)
        if row["step"] == KILLED_IN and dist.get_rank() == 1 and once(folder, "killed"):
            os.kill(os.getpid(), signal.SIGKILL)  # no handler runs, nothing is flushed, nobody is told

    return [row["loss"] for row in train(settings(folder / "checkpoints"), tell)["rows"]]


# Two machines, which here are two agents on one machine with a rank each -----------------------------------------------

def on_machine(folder: Path, name: str) -> list[float]:
    """On a rank: machine "second" stops in step KILLED_IN and is then lost; "first" goes on alone up to ALONE_UNTIL."""
    def tell(row: dict) -> None:
        told(row)
        if name == "second" and row["step"] == KILLED_IN:
            (folder / "lose me").touch()
            time.sleep(600)
        if dist.get_world_size() == 1 and row["step"] == ALONE_UNTIL:
            (folder / "alone").touch()
            time.sleep(600)  # until the other machine is back, which ends this attempt

    if dist.get_world_size() == 1 and not (folder / "lose me").exists():
        time.sleep(600)  # the agents have not met yet: an attempt of both follows
    return [row["loss"] for row in train(settings(folder / "checkpoints"), tell)["rows"]]


def machine(folder: Path, name: str, port: int):
    return launch(on_machine, folder, name, nproc=1, nnodes="1:2", node_rank=int(name != "first"), max_restarts=3,
                  rdzv_endpoint=f"127.0.0.1:{port}", timeout=400, quiet=True, progress=False)


def wait_for(file: Path, seconds: float = 200) -> None:
    until = time.monotonic() + seconds
    while not file.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{file.name} has not come within {seconds} s")
        time.sleep(0.05)


def two_machines(folder: Path) -> list[dict]:
    """The run of two machines, of which the second is lost and comes back. Returns its attempts, as `as_data`."""
    port = free_port()
    code = (f"from pathlib import Path; from {__name__ if __name__ != '__main__' else __spec__.name} import machine; "
            f"machine(Path({str(folder)!r}), 'second', {port})")
    with ThreadPoolExecutor() as threads:
        first = threads.submit(machine, folder, "first", port)
        second = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[4])
        try:
            wait_for(folder / "lose me")
        finally:
            second.kill()  # its agent and its rank end with it, as when a machine loses its power
            second.wait()
        wait_for(folder / "alone")
        back = machine(folder, "back", port)
        here = first.result()
    both = [*here.attempts, *back.attempts]
    begun = min(row["at"] for attempt in both for _, row in attempt.records)
    return as_data(here.attempts, begun)


def as_data(attempts: Sequence[Attempt], begun: float | None = None) -> list[dict]:
    """What the ranks that are here told in each attempt that made a step: `ended`, and `rows`, whose times are in
    seconds since `begun`, or since the first row."""
    begun = begun or min(row["at"] for attempt in attempts for _, row in attempt.records)
    return [{"ended": attempt.ended, "rows": [row | {"rank": rank, "at": round(row["at"] - begun, 3)}
                                              for rank, row in attempt.records]} for attempt in attempts if attempt.records]


def in_a_new_folder() -> list[dict]:
    with tempfile.TemporaryDirectory() as where:
        return two_machines(Path(where))


recorded = Recorded(__file__, "recorded_restarts", in_a_new_folder)
"""The attempts of the run of two machines that was recorded, as the first machine saw them."""


if __name__ == "__main__":
    recorded.renew()
