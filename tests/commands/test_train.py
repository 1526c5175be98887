"""`zerocourse train`: what it writes, that a resumed run is the unbroken one, and that no sample is lost or seen twice."""

import csv
import json
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zerocourse.cli import main
from zerocourse.commands import train_command
from zerocourse.data.sampler import ShardSampler
from zerocourse.data.text import TextDataset
from zerocourse.data.tokens import TokenStream, open_tokens
from zerocourse.engine.checkpoint.folders import checkpoint_folder as folders
from zerocourse.engine.config import Config
from zerocourse.engine.train import BYTES, COLUMNS, TrainSettings, train
from zerocourse.errors import BadInput
from zerocourse.formulas.states import FP32, model_states
from zerocourse.models.gpt2 import CONFIGS

TEXT = Path(__file__).parents[2] / "README.md"
CONFIG = {"train_batch_size": 12, "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto",
          "zero_optimization": {"stage": 2},
          "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "weight_decay": "auto"}},
          "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto", "warmup_num_steps": 4}}}
FILES = {"training_metrics.csv", "training_curves.png", "summary.json", "deepspeed_config_auto.json"}


# the stream

def dataset(samples: int) -> TextDataset:
    return TextDataset(np.arange(samples + 1, dtype=np.uint16), 1)  # sample i is ([i], [i + 1])


def step_of(streams: list) -> list[int]:
    """The samples of the next step, of all ranks together."""
    return [number for stream in streams for number in next(stream)]


def ranks_of(samples: int, ranks: int, accumulation: int, batch: int, state: dict | None = None) -> list[TokenStream]:
    streams = [TokenStream(dataset(samples), rank, ranks, batch // ranks // accumulation, accumulation, seed=5)
               for rank in range(ranks)]
    for stream in streams:
        if state is not None:
            stream.load_state_dict(state)
    return streams


@settings(max_examples=60, deadline=None)
@given(shape=st.tuples(st.sampled_from((1, 2, 3)), st.sampled_from((1, 2))),
       then=st.tuples(st.sampled_from((1, 2, 3, 4, 6)), st.sampled_from((1, 2))),
       batch=st.sampled_from((24, 48)), samples=st.integers(48, 200), cut=st.integers(0, 12))
def test_no_sample_is_lost_or_seen_twice(shape, then, batch, samples, cut):
    """Over some epochs, cut anywhere and continued by other ranks: the steps are those of one unbroken rank."""
    alone = list(islice(ranks_of(samples, 1, 1, batch)[0].indices(), 20))
    before = ranks_of(samples, *shape, batch)
    running = [stream.indices() for stream in before]
    steps = [step_of(running) for _ in range(cut)]
    states = [stream.state_dict() for stream in before]
    assert all(state == states[0] for state in states)
    running = [stream.indices() for stream in ranks_of(samples, *then, batch, states[0])]
    steps += [step_of(running) for _ in range(20 - cut)]
    assert steps == alone
    per_epoch = samples // batch
    for first in range(0, 20, per_epoch):
        seen = [number for step in steps[first:first + per_epoch] for number in step]
        assert len(seen) == len(set(seen)) and (len(seen) > samples - batch or first + per_epoch > 20)


def test_a_step_is_divided_into_micro_batches():
    stream = TokenStream(dataset(30), rank=1, world_size=2, micro_batch=3, accumulation=2, seed=5)
    numbers = next(iter(ShardSampler(30, 1, 2, 6, seed=5)))
    (x, y), (x2, _) = next(iter(stream))
    assert x.tolist() == [[number] for number in numbers[:3]] and torch.equal(y, x + 1)
    assert x2.flatten().tolist() == numbers[3:]


def test_another_text_is_not_continued():
    state = TokenStream(dataset(30)).state_dict()
    with pytest.raises(BadInput, match="saved with length = 30, and this one has 31"):
        TokenStream(dataset(31)).load_state_dict(state)


class Splits(dict):
    """Like `datasets.DatasetDict`."""


@pytest.mark.parametrize("saved, tokens", [
    ({"text": ["ab", "c"]}, [97, 98, 10, 99]), ({"label": [1], "input_ids": [[1, 400], [2]]}, [1, 400, 2]),
    ({"input_ids": [[1], [70000]]}, "tokens from 1 to 70000"), ({"label": [1]}, "the columns label"),
    ({"text": []}, "is empty"), (Splits(train={"text": ["a"]}), [97]), (Splits(test={"text": ["a"]}), "the splits test")])
def test_a_hugging_face_dataset(tmp_path, monkeypatch, saved, tokens):
    (tmp_path / "dataset_info.json").write_text("{}")

    class Table(dict):
        column_names = property(list)

    def load_from_disk(folder):
        assert folder == str(tmp_path)
        return Splits({name: Table(of) for name, of in saved.items()}) if isinstance(saved, Splits) else Table(saved)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_from_disk=load_from_disk, DatasetDict=Splits))
    if isinstance(tokens, str):
        with pytest.raises(BadInput, match=tokens):
            open_tokens(tmp_path)
    else:
        assert open_tokens(tmp_path).tolist() == tokens


def test_a_hugging_face_dataset_without_its_package(tmp_path, monkeypatch):
    (tmp_path / "dataset_dict.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BadInput, match="needs the package datasets"):
        open_tokens(tmp_path)


# a run

def settings_for(ranks: int, steps: int, folder: Path | None, accumulation: int = 1, **changes) -> TrainSettings:
    known = {"optimizer.params.lr": 1e-3, "optimizer.params.betas": [0.9, 0.999], "optimizer.params.weight_decay": 0.0,
             "gradient_clipping": 1.0, "scheduler.params.warmup_max_lr": 1e-3}
    config = Config.load(CONFIG | {"gradient_accumulation_steps": accumulation}, ranks, known)
    return TrainSettings(config.as_dict(), CONFIGS["gpt2-tiny"], TEXT, steps, tokens=8, checkpoints=folder,
                         **{"save_every": 3} | changes)


@pytest.fixture(scope="module")
def unbroken(pool):
    return pool(2).run(train, settings_for(2, 6, None, accumulation=2))


def cut(pool, folder: Path, ranks: int, **changes) -> list[dict]:
    return pool(ranks).run(train, settings_for(ranks, 3, folder, **changes))


def losses_of(got: dict) -> list[float]:
    return [row["loss"] for row in got["rows"]]


@pytest.mark.parametrize("first, second, accumulation", [(3, 2, 3), (2, 1, 4)])
def test_a_run_resumed_by_other_ranks_is_the_unbroken_one(pool, tmp_path, unbroken, first, second, accumulation):
    cut(pool, tmp_path, first)
    resumed = pool(second).run(train, settings_for(second, 6, tmp_path, accumulation, resume=True))
    for got in resumed:
        assert got["resumed_from"] == 3
        assert losses_of(got) == pytest.approx(losses_of(unbroken[0]), abs=1e-6)
        for row, wanted in zip(got["rows"], unbroken[0]["rows"], strict=True):
            assert all(row[name] == wanted[name] for name in ("step", "epoch", "samples", "learning_rate"))


@pytest.mark.parametrize("keep", (1, 2))
def test_only_the_last_checkpoints_stay(pool, tmp_path, keep):
    """Also after a removal that was killed; and what the user named otherwise is never removed."""
    cut(pool, tmp_path, 2, keep=keep, save_every=1)  # steps 1 to 3
    assert folders.all_in(tmp_path) == ["global_step2", "global_step3"][-keep:] and folders.latest(tmp_path) == "global_step3"
    for name in ("mine", "global_step1"):
        shutil.copytree(tmp_path / "global_step3", tmp_path / name)
    (tmp_path / "global_step0.partial").mkdir()  # what a removal or a save that was killed leaves
    (tmp_path / "global_step1").rename(tmp_path / "global_step1.partial")  # killed before the index was gone
    resumed = pool(2).run(train, settings_for(2, 5, tmp_path, keep=keep, save_every=1, resume=True))[0]
    left = ["global_step4", "global_step5"][-keep:]
    assert folders.all_in(tmp_path) == ["mine", *left] and folders.latest(tmp_path) == left[-1]
    assert {each.name for each in tmp_path.iterdir()} == {"latest", "mine", *left}
    assert resumed["resumed_from"] == 3 and len(resumed["rows"]) == 5


def test_the_checkpoint_that_latest_names_is_never_removed(tmp_path):
    for number in range(4):
        (tmp_path / f"global_step{number}").mkdir()
        (tmp_path / f"global_step{number}" / "index.json").write_text("{}")
    folders.set_latest(tmp_path, "global_step1")
    folders.keep_last(tmp_path, 1)
    assert sorted(folders.all_in(tmp_path)) == ["global_step1", "global_step3"]


def first_weight(seed: int) -> float:
    from zerocourse.engine import initialize
    from zerocourse.init.deferred import deferred_init
    with deferred_init():
        model = torch.nn.Linear(2, 2)
    engine = initialize(model=model, config={"train_batch_size": 1}, seed=seed)[0]
    return engine.state_dict()["weight"][0, 0].item()


def test_the_seed_chooses_the_parameters(pool):
    assert pool(1).run(first_weight, 0) == pool(1).run(first_weight, 0) != pool(1).run(first_weight, 1)


def test_the_seed_chooses_the_run(pool, unbroken):
    one, other = (losses_of(pool(2).run(train, settings_for(2, 2, None, seed=seed))[0]) for seed in (0, 1))
    assert one == pytest.approx(losses_of(unbroken[0])[:2], abs=1e-6)
    assert abs(one[0] - other[0]) > 1e-3


def test_the_bytes_of_a_rank(unbroken):
    wanted = model_states(CONFIGS["gpt2-tiny"].params, 2, 2, FP32)
    for got in unbroken:
        assert {name: got[name] for name in BYTES[:3]} == {
            "parameters_bytes": wanted.parameters_bytes, "gradients_bytes": wanted.gradients_bytes,
            "optimizer_bytes": wanted.optimizer_bytes}
        assert got["total_bytes"] == wanted.total_bytes < got["peak_bytes"]


# the command

@pytest.fixture
def desk(tmp_path, monkeypatch):
    """The working folder, with a config."""
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text(json.dumps(CONFIG))
    return tmp_path


COMMAND = ["train", "--config", "ds.json", "--data", str(TEXT), "--tokens", "8", "--json"]


def test_the_command_resumes_and_writes_its_four_files(pool, desk, capfd, unbroken):
    """Three steps on three ranks of the pool, and three more on two ranks that it launches."""
    cut(pool, desk / "output" / "checkpoints", 3)
    assert main([*COMMAND, "--nproc", "2", "--steps", "6", "--resume"]) == 0
    said = capfd.readouterr()
    assert said.out.count("\n") == 1 and "\r" not in said.err, "no bar goes into a pipe"
    summary, out = json.loads(said.out), desk / "output" / "deepspeed_metrics"
    assert {each.name for each in out.iterdir()} == FILES
    assert json.loads((out / "summary.json").read_text()) == summary
    assert summary["losses"] == pytest.approx(losses_of(unbroken[0]), abs=1e-6)
    for name, value in {"ok": True, "model": "gpt2-tiny", "params": CONFIGS["gpt2-tiny"].params, "stage": 2, "ranks": 2,
                        "train_batch_size": 12, "steps": 6, "samples": 72, "resumed_from": 3}.items():
        assert summary[name] == value, name
    assert all(len(summary[name]) == 2 and all(isinstance(each, int) for each in summary[name]) for name in BYTES)
    assert (desk / summary["checkpoint"] / "index.json").is_file()

    with (out / "training_metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS and [row["step"] for row in rows] == list("123456")
    assert [float(row["loss"]) for row in rows] == summary["losses"]

    config = json.loads((out / "deepspeed_config_auto.json").read_text())
    assert Config.load(config, 2).as_dict() == config and '"auto"' not in json.dumps(config)
    assert config["train_micro_batch_size_per_gpu"] == 6 and config["optimizer"]["params"]["lr"] == 1e-3
    assert (out / "training_curves.png").read_bytes().startswith(b"\x89PNG")


def test_under_torchrun_one_rank_speaks(desk):
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m",
                           "zerocourse", *COMMAND, "--steps", "2"], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ranks"] == 2
    assert {each.name for each in Path("output/deepspeed_metrics").iterdir()} == FILES


BAD = [
    ("--config no.json", "the config no.json cannot be read: No such file"),
    ("--data no.txt", "There is no no.txt"),
    ("--data ds.json --tokens 128", "samples make no batch of world_size x micro_batch"),
    ("--model gpt3", "There is no model 'gpt3'"),
    ("--tokens 129", "--tokens is 129: gpt2-tiny reads at most 128 tokens"),
    ("--nproc 5", "train_batch_size 12 is not divisible by 1 × 5"),
    ("--nproc 5000", "--nproc is 5000: it can be at most"),
    ("--steps 0", "--steps is 0: it must be an integer of at least 1"),
    ("--lr 0", "--lr is '0': it must be a positive number"),
    ("--lr nan", "--lr is 'nan': it must be a positive number"),
    ("--micro-batch 5", "train_batch_size 12 is not divisible by 5 × 2"),
    ("--config fixed.json --micro-batch 5", "--micro-batch would change nothing: fixed.json has"),
    ("--config fixed.json --lr 1", "--lr would change nothing: fixed.json has optimizer.params.lr = 0.5"),
    ("--out ds.json", "--out is ds.json, where nothing can be written"),
    ("--checkpoints ds.json/c", "--checkpoints is ds.json/c, where nothing can be written"),
    ("--resume", "--resume has nothing to continue: there is no checkpoint in output/checkpoints"),
    ("--checkpoints old", "which has global_step3 of an earlier run: continue it with --resume, or name another"),
    ("--checkpoints old --resume --steps 3", "--steps is 3, and old/global_step3 has made them already"),
    ("--checkpoints old --resume --seed 4", "The sampler was saved with seed = 0, and this one has 4"),
    ("--checkpoints old --resume --data ds.json --tokens 4", "The sampler was saved with length ="),
    ("--checkpoints theirs --resume", "theirs/mine is not of zerocourse train"),
]


@pytest.fixture(scope="module")
def old(pool, tmp_path_factory):
    """A folder with a checkpoint of a run, and one with an engine's own."""
    def other(folder: str) -> None:
        from zerocourse.engine import initialize
        engine = initialize(model=torch.nn.Linear(2, 2), config={"train_batch_size": 1})[0]
        engine.save_checkpoint(folder, tag="mine")

    folder = tmp_path_factory.mktemp("runs")
    cut(pool, folder / "old", 1)
    pool(1).run(other, str(folder / "theirs"))
    return folder


@pytest.mark.parametrize("line, words", BAD, ids=[line for line, _ in BAD])
def test_bad_input_is_one_sentence_and_nothing_is_written(desk, capsys, monkeypatch, old, line, words):
    fixed = CONFIG | {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.5}},
                      "scheduler": None}
    Path("fixed.json").write_text(json.dumps(fixed))
    for name in ("old", "theirs"):
        Path(name).symlink_to(old / name)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    before = sorted(desk.rglob("*"))
    assert main([*COMMAND, *line.split()]) == 2
    said = capsys.readouterr()
    assert words in said.err and said.err.count("\n") == 1 and not said.out
    assert sorted(desk.rglob("*")) == before


def test_a_checkpoint_of_another_model_is_one_sentence(desk, capsys, monkeypatch, pool, old):
    """The ranks find this one, so it comes from them."""
    Path("old").symlink_to(old / "old")
    monkeypatch.setattr(train_command, "check_machine", lambda *_: None)
    monkeypatch.setattr("zerocourse.launch.launcher.launch", lambda run, settings, **_: pool(1).run(run, settings))
    assert main([*COMMAND, "--nproc", "1", "--model", "gpt2-mini", "--checkpoints", "old", "--resume"]) == 2
    assert "'wte.weight' is (256, 64) there, and (256, 128) in the model" in capsys.readouterr().err


def test_a_model_that_does_not_fit_is_refused(desk, capsys, monkeypatch):
    monkeypatch.setattr("zerocourse.commands.estimates.available_bytes", lambda: 200 << 20)
    assert main(COMMAND) == 2
    assert "and this machine has" in capsys.readouterr().err


def test_a_config_without_an_optimizer_gets_adamw(desk):
    Path("ds.json").write_text(json.dumps({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}))
    args = train_command_args("--lr", "0.02", "--micro-batch", "3")
    config = train_command.resolve(args, 2)
    assert (config.optimizer.type, config.optimizer.params.lr, config.train_batch_size) == ("AdamW", 0.02, 6)


def train_command_args(*words: str):
    from zerocourse.cli import build_parser
    return build_parser().parse_args([*COMMAND, *words])


def test_a_loss_that_is_nan_is_a_failure_and_no_bad_json(desk):
    row = dict(zip(COLUMNS, (1, 0, 12, float("nan"), 1e-3, float("nan"), 0.1, 100.0)))
    got = {"rows": [row], "resumed_from": None, "device": "cpu"} | dict.fromkeys(BYTES, 8)
    outcome = train_command.outcome(train_command_args(), settings_for(1, 1, desk), [got])
    assert not outcome.ok and outcome.data["losses"] == [None] and "no number any more" in outcome.text
    json.loads(Path("output/deepspeed_metrics/summary.json").read_text(), parse_constant=pytest.fail)
