"""One save at a time under one name, one training at a time in one folder: the last good checkpoint survives, nobody waits."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from test_checkpoints import prepared, train_on

from zerocourse import load_checkpoint, save_checkpoint
from zerocourse.cli import main
from zerocourse.engine.checkpoint import saving as saves
from zerocourse.engine.checkpoint.content import Content
from zerocourse.engine.checkpoint.folders import checkpoint_folder as folders
from zerocourse.engine.checkpoint.folders.folder_lock import FolderLock
from zerocourse.engine.checkpoint.saving import CheckpointError
from zerocourse.engine.train import TrainSettings, train
from zerocourse.errors import BadInput
from zerocourse.models.gpt2 import CONFIGS

HOLDS = """
import fcntl, os, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print(f"process {os.getpid()} on a host", " since noon", "a run", sep="\\n", end="", file=file, flush=True)
print("taken", flush=True)
time.sleep(600)
"""  # as `FolderLock` does, without importing torch


@contextmanager
def another_process(file: Path):
    """A process that holds the lock `file`, killed by SIGKILL at the end. Yields its pid."""
    child = subprocess.Popen([sys.executable, "-c", HOLDS, str(file)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "taken\n"
        yield child.pid
    finally:
        child.kill()
        child.wait()


def refused(folder: str) -> str:
    model, optimizer = prepared()
    with pytest.raises(CheckpointError) as caught:
        save_checkpoint(model, optimizer, f"{folder}/c")
    train_on(model, optimizer, 1)
    return str(caught.value)


def saved(folder: str) -> None:
    save_checkpoint(*prepared(), f"{folder}/c", extra="good")


def loaded(folder: str) -> object:
    return load_checkpoint(*prepared(), f"{folder}/c")


def test_the_second_of_two_saves_under_one_name_is_one_sentence_on_every_rank(pool, tmp_path):
    pool(2).run(saved, str(tmp_path))
    with another_process(tmp_path / "c.lock") as pid:
        (tmp_path / "c.partial").mkdir()  # what the other is writing
        first, second = pool(2).run(refused, str(tmp_path))
        assert first == second and f"was not saved: rank 0: process {pid} on " in first
        assert "is saving under this name since" in first and "save under another one, or when it is done" in first
        assert (tmp_path / "c.partial").is_dir() and pool(1).run(loaded, str(tmp_path)) == ["good"]
    assert (tmp_path / "c.lock").exists(), "it was killed"
    pool(2).run(saved, str(tmp_path))
    assert [each.name for each in tmp_path.iterdir()] == ["c"]


def test_a_lock_is_held_from_the_beginning_of_a_save_to_its_end_and_no_longer(tmp_path):
    model, optimizer = prepared(1)
    write, tried = Content.write, []

    def try_meanwhile(content, where):
        with pytest.raises(BadInput, match=f"process {os.getpid()} on .* is saving under this name since") as caught:
            folders.lock_of(tmp_path / "c").take()
        tried.append(str(caught.value))
        return write(content, where)

    with mock.patch.object(Content, "write", try_meanwhile):
        save_checkpoint(model, optimizer, tmp_path / "c")
        save_checkpoint(model, optimizer, tmp_path / "c", asynchronous=True).wait()
    with mock.patch.object(Content, "write", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        save_checkpoint(model, optimizer, tmp_path / "c")
    save_checkpoint(model, optimizer, tmp_path / "c")
    assert len(tried) == 2 and [each.name for each in tmp_path.iterdir()] == ["c"]


def test_where_there_are_no_locks_one_saves_without(tmp_path, monkeypatch):
    import fcntl

    monkeypatch.setattr(fcntl, "flock", mock.Mock(side_effect=OSError(38, "Function not implemented")))
    save_checkpoint(*prepared(1), tmp_path / "c")
    assert [each.name for each in tmp_path.iterdir()] == ["c"]


def test_a_lock_of_an_earlier_attempt_of_this_run_is_waited_for_and_no_other(tmp_path):
    with another_process(tmp_path / "lock") as pid:
        for run, least in (("another run", 0), ("a run", 0.2)):
            began = time.monotonic()
            with pytest.raises(BadInput, match=f"process {pid} on"):
                FolderLock(tmp_path / "lock", "", "", run).take(0.2)
            assert time.monotonic() - began >= least
        os.kill(pid, signal.SIGKILL)
        FolderLock(tmp_path / "lock", "", "", "a run").take(60)


def folder_removed(folder: str, asynchronous: bool) -> str:
    """Somebody removes what two ranks are writing, when rank 0 has written and rank 1 has not."""
    model, optimizer = prepared()
    write, name_of = Content.write, Path(folder, "c.partial")

    def slow(content, where):
        if content.rank:
            while name_of.exists():
                time.sleep(0.01)
            return write(content, where)
        part = write(content, where)
        shutil.rmtree(name_of)
        return part

    with mock.patch.object(Content, "write", slow), pytest.raises(CheckpointError) as caught:
        save_checkpoint(model, optimizer, f"{folder}/c", asynchronous=asynchronous).wait()
    return str(caught.value)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_nobody_waits_for_what_was_removed(pool, tmp_path, asynchronous):
    first, second = pool(2).run(folder_removed, str(tmp_path), asynchronous)
    assert first == second and "was not saved: rank" in first
    assert not asynchronous or "somebody has removed" in first
    assert not list(tmp_path.iterdir())


def disk_of_its_own(folder: str) -> str:
    """Rank 1 writes its note where rank 0 does not look."""
    model, optimizer = prepared()
    saves.SEEN_SECONDS = 0.2
    real = folders.write_whole
    with (mock.patch.object(folders, "write_whole", lambda file, text: real(file.with_name(f"else_{file.name}") if
                                                                           model.zero.comm.rank else file, text)),
          pytest.raises(CheckpointError) as caught):
        save_checkpoint(model, optimizer, f"{folder}/c")
    saves.SEEN_SECONDS = 60.0
    return str(caught.value)


def test_a_wait_for_a_rank_that_does_not_write_ends_and_names_it(pool, tmp_path):
    for said in pool(2).run(disk_of_its_own, str(tmp_path)):
        assert "rank 0: rank 1 has not written its part within 0 s (do all ranks see this disk?)" in said
    assert not list(tmp_path.iterdir())


def test_a_conversion_that_fails_leaves_nothing(tmp_path, capsys):
    theirs = Path(__file__).parent / "deepspeed_checkpoints" / "stage1_fp32" / "step3"
    with mock.patch.object(Content, "write", side_effect=OSError(28, "No space left on device")):
        assert main(["checkpoint", "convert", str(theirs), str(tmp_path / "c"), "--to", "zerocourse"]) == 2
    assert "No space left" in capsys.readouterr().err and not list(tmp_path.iterdir())


def trains(folder: str) -> str:
    settings = TrainSettings({"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}, CONFIGS["gpt2-tiny"],
                             __file__, 1, tokens=4, checkpoints=folder, resume=True)
    with pytest.raises(BadInput) as caught:
        train(settings)
    return str(caught.value)


def test_a_second_training_in_one_folder_is_refused_on_every_rank(pool, tmp_path):
    with another_process(tmp_path / "train.lock") as pid:
        first, second = pool(2).run(trains, str(tmp_path))
    assert first == second and f"process {pid} on" in first and "trains with the checkpoints of this folder since" in first
