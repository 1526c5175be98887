"""Kills ranks of an elastic run at random moments, and says whether it went on as if nothing had happened.

    python -m tools.hurt --restarts 20 --saves 30        # takes some 4 seconds per kill on a quiet machine

Two runs of two ranks under torchrun, with a checkpoint after every step. In the first a rank is killed (SIGKILL) at a
random moment of its training, again and again; in the second at a random moment of a save. After each kill torchrun
starts both ranks again, and they must go on from the last step that was saved: at most the step of the kill is made
twice. The losses of all steps must be those of a run that nobody hurt, bit for bit. Exit status 1 if they are not.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch

from zerocourse.engine.checkpoint.folders import checkpoint_folder as folders
from zerocourse.engine.engine import Engine
from zerocourse.engine.train import TrainSettings, train
from zerocourse.launch import launch, report
from zerocourse.launch.processes.jobs import Results
from zerocourse.launch.ranks import Ranks
from zerocourse.models.gpt2 import CONFIGS

CONFIG = {"train_batch_size": 4, "zero_optimization": {"stage": 2},
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
TEXT = Path(__file__).parents[1] / "README.md"


def settings(kills: int, folder: Path | None) -> TrainSettings:
    """An attempt makes one step at least, and up to three before it is killed."""
    return TrainSettings(CONFIG, CONFIGS["gpt2-tiny"], TEXT, 3 * kills + 3, tokens=8, checkpoints=folder, save_every=1,
                         may_restart=folder is not None)


def kill_after(seconds: float) -> int:
    """Start a process that kills this one after so many seconds, whatever this one does then. Returns its id."""
    parent, killer = os.getpid(), os.fork()
    if killer == 0:
        time.sleep(seconds)
        os.kill(parent, signal.SIGKILL)
        os._exit(0)
    return killer


def hurt(run: TrainSettings, plan: list[str]) -> list[float]:
    """In a rank: train, and have one of the two ranks killed in each attempt for which `plan` says where: "step" or
    "save". Returns the losses.

    It is killed after the second step of the attempt began, at a random moment of the time that the first step took;
    or in a save after the first, at a random moment of the time that the save before took.
    """
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    rng, began, took = random.Random(attempt), [], None
    victim = rng.randrange(2) == int(os.environ["RANK"])
    where = plan[attempt] if victim and attempt < len(plan) else None
    report(resumed=int((folders.latest(run.checkpoints) or "0").removeprefix("global_step")))

    def backward(*args) -> torch.Tensor:  # there is one per step
        began.append(time.monotonic())
        if where == "step" and len(began) == 2:
            kill_after(rng.uniform(0, began[1] - began[0]))
        return engine_backward(*args)

    def save(*args, **kwargs) -> bool:
        nonlocal took
        killer, begun = kill_after(rng.uniform(0, took)) if where == "save" and took else None, time.monotonic()
        result = engine_save(*args, **kwargs)
        took = time.monotonic() - begun
        if killer:  # this save was faster than the one before, so the next one is the one to be killed in
            os.kill(killer, signal.SIGKILL)
            os.waitpid(killer, 0)
        return result

    engine_backward, engine_save = Engine.backward, Engine.save_checkpoint
    Engine.backward, Engine.save_checkpoint = backward, save
    return [row["loss"] for row in train(run, lambda row: report(step=row["step"]))["rows"]]


def trial(plan: list[str], timeout: float | None = None) -> tuple[Results, list[str]]:
    """A run with kills as `plan` has them, and what is wrong with it, in sentences."""
    kills = len(plan)
    with tempfile.TemporaryDirectory() as folder:
        run = settings(kills, Path(folder, "checkpoints"))
        results = launch(hurt, run, plan, nproc=2, max_restarts=kills, quiet=True, timeout=timeout)
    with Ranks(2) as ranks:
        unhurt = [row["loss"] for row in ranks.run(train, settings(kills, None))[0]["rows"]]
    wrong = [f"rank {rank}: the losses are not those of the unhurt run" for rank in range(2) if results[rank] != unhurt]
    if len(results.attempts) != kills + 1:
        wrong.append(f"there were {len(results.attempts) - 1} restarts, not {kills}")
    last = 0
    for attempt in results.attempts:
        records = [record for _, record in attempt.records]
        resumed = {record["resumed"] for record in records if "resumed" in record}
        if not resumed <= {last, max(0, last - 1)}:
            wrong.append(f"attempt {attempt.number} went on after step {resumed}, and step {last} had been made")
        last = max((record["step"] for record in records if "step" in record), default=last)
    return results, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--restarts", type=int, default=20, metavar="N", help="kills in mid-run (default 20)")
    parser.add_argument("--saves", type=int, default=30, metavar="N", help="kills within a save (default 30)")
    args, failed = parser.parse_args(), False
    for kills, where in ((args.restarts, "step"), (args.saves, "save")):
        if kills:
            results, wrong = trial([where] * kills)
            failed |= bool(wrong)
            print(f"{kills} kills in a {where}: {len(results.attempts) - 1} restarts in {results.seconds:.0f} s; "
                  + ("; ".join(wrong) or "the losses are those of the unhurt run, bit for bit"), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
