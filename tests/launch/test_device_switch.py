"""The switch: ZEROCOURSE_DEVICE says where ranks compute, and over what they communicate there. The GPUs are made up."""

import importlib
import os
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from tools.notebooks import FIRST_CELL
from zerocourse import Ranks, shard
from zerocourse.cli import main
from zerocourse.comm import bootstrap
from zerocourse.course.checks import lab
from zerocourse.engine.bridge import __main__ as bridge
from zerocourse.engine.bridge import stand_in
from zerocourse.errors import BadInput
from zerocourse.init.deferred import deferred_init
from zerocourse.launch import launch, magics
from zerocourse.launch.machine import report
from zerocourse.launch.processes import parent
from zerocourse.launch.ranks import shared


@pytest.fixture
def machine(monkeypatch):
    """`machine(gpus)`: torch sees as many GPUs, each with an identity of its own, and has NCCL."""
    def has(gpus: int, uuid=lambda device: f"GPU-{device.index}") -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=uuid(device)))
        monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    return has


def backends(devices: list[torch.device], asked: str | None = None) -> list[str]:
    """What ranks with these devices agree on, each in a thread of its name."""
    store, agreed = dist.HashStore(), {}

    def rank(number: int) -> None:
        agreed[number] = bootstrap.agree_on_backend(store, number, len(devices), devices[number], asked)

    threads = [threading.Thread(target=rank, args=(number,), name=f"rank {number}") for number in range(len(devices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    return [agreed[number] for number in range(len(devices))]


@pytest.mark.parametrize("place", ["cpu", "cuda", "auto", None])
@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("gpus", [0, 1, 2, 8])
def test_where_ranks_compute_and_over_what_they_talk(gpus, ranks, place, machine, monkeypatch):
    machine(gpus)
    monkeypatch.delenv("ZEROCOURSE_DEVICE")
    if place is not None:
        monkeypatch.setenv("ZEROCOURSE_DEVICE", place)
    devices = []
    for rank in range(ranks):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        if place == "cuda" and not gpus:
            with pytest.raises(BadInput, match="ZEROCOURSE_DEVICE is cuda, and torch finds no GPU here.*: set it to cpu or auto"):
                bootstrap.device()
            return
        devices.append(bootstrap.device())
    on_gpu = gpus > 0 and place != "cpu"
    assert devices == [torch.device("cuda", rank % gpus) if on_gpu else torch.device("cpu") for rank in range(ranks)]
    assert backends(devices) == ["cpu:gloo,cuda:nccl" if on_gpu and gpus >= ranks else "gloo"] * ranks
    assert backends(devices, "gloo") == ["gloo"] * ranks


def test_ranks_that_see_one_gpu_each_talk_over_nccl_if_it_is_not_the_same(machine):
    """As SLURM's --gpus-per-task=1 starts them: each rank sees one GPU, as number 0."""
    first = [torch.device("cuda", 0)] * 4
    machine(1, uuid=lambda device: threading.current_thread().name)
    assert backends(first) == ["cpu:gloo,cuda:nccl"] * 4
    machine(1, uuid=lambda device: f"GPU-{int(threading.current_thread().name[-1]) % 3}")
    assert backends(first) == ["gloo"] * 4


def test_ranks_with_and_without_a_gpu_agree_too(machine):
    machine(4)
    gpus = [torch.device("cuda", index) for index in range(3)]
    assert backends([*gpus, torch.device("cpu")]) == backends([torch.device("cpu"), *gpus]) == ["gloo"] * 4


def test_who_asks_for_nccl_where_ranks_share_a_gpu_is_told(machine):
    machine(1)
    with pytest.warns(UserWarning, match="the backend is 'nccl', and 2 ranks use 1 GPUs: they communicate over gloo"):
        assert backends([torch.device("cuda", 0)] * 2, "nccl") == ["gloo"] * 2


def test_another_word_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("ZEROCOURSE_DEVICE", "gpu")
    sentence = "ZEROCOURSE_DEVICE is 'gpu': it must be cpu, cuda or auto"
    with pytest.raises(BadInput, match=sentence):
        bootstrap.init()
    assert main(["tour"]) == 2 and capsys.readouterr().err == f"zerocourse tour: {sentence}\n"
    for start in (lambda: Ranks(2, device="gpu"), lambda: launch(print, device="gpu")):
        with pytest.raises(BadInput, match="device is 'gpu': it must be cpu, cuda or auto"):
            start()
    assert (bootstrap.SWITCH, bootstrap.PLACES) == (parent.SWITCH, parent.PLACES)


def test_without_a_launcher_the_gpu_that_the_script_has_selected_counts(machine, monkeypatch):
    machine(4)
    monkeypatch.setenv("ZEROCOURSE_DEVICE", "auto")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert bootstrap.device() == torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    assert bootstrap.device() == torch.device("cuda", 2)


def test_a_model_on_meta_goes_to_the_device_of_the_switch(monkeypatch):
    asked = []
    sharding = importlib.import_module("zerocourse.zero.shard")
    monkeypatch.setattr(sharding, "bootstrap", SimpleNamespace(device=lambda: asked.append(True) or torch.device("cpu")))
    with deferred_init():
        model = torch.nn.Linear(3, 2)
    shard(model, stage=3)
    assert asked == [True]
    shard(torch.nn.Linear(3, 2), stage=3)  # it is somewhere already
    assert asked == [True]


# Who sets it, and who has the last word ---------------------------------------------------------------------------------

def test_ranks_inherit_it_and_a_keyword_has_the_last_word(monkeypatch):
    def place():
        return os.environ["ZEROCOURSE_DEVICE"]

    monkeypatch.setenv("ZEROCOURSE_DEVICE", "auto")
    for how, want in (({}, "auto"), ({"fork": False}, "auto"), ({"device": "cpu"}, "cpu"), ({"device": "cpu", "fork": False}, "cpu")):
        with Ranks(1, init=False, **how) as ranks:
            assert ranks.run(place) == [want]
    assert launch(place, nproc=1, init=False) == ["auto"] and launch(place, nproc=1, init=False, device="cpu") == ["cpu"]


def test_shared_ranks_compute_where_the_environment_says_now(monkeypatch):
    monkeypatch.setenv("ZEROCOURSE_DEVICE", "cpu")
    on_cpu = shared(2)
    assert on_cpu is shared(2, "cpu")
    monkeypatch.setenv("ZEROCOURSE_DEVICE", "auto")
    assert on_cpu is not shared(2) and shared(2).env == {"ZEROCOURSE_DEVICE": "auto"}


def test_answers_are_checked_on_the_cpu_whatever_is_set(monkeypatch):
    monkeypatch.setenv("ZEROCOURSE_DEVICE", "cuda")
    assert lab.new_ranks(2).env["ZEROCOURSE_DEVICE"] == "cpu"


@pytest.mark.parametrize("said, counts", [(None, "cpu"), ("auto", "auto"), ("cuda", "cuda")])
def test_a_chapter_computes_on_the_cpu_unless_one_says_otherwise(said, counts, monkeypatch):
    monkeypatch.delenv("ZEROCOURSE_DEVICE")
    if said:
        monkeypatch.setenv("ZEROCOURSE_DEVICE", said)
    exec(FIRST_CELL.partition("if importlib")[0])
    assert os.environ["ZEROCOURSE_DEVICE"] == counts


@pytest.mark.parametrize("command, said, option, counts", [
    ("tour", None, [], "cpu"), ("tour", "auto", [], "auto"), ("tour", "auto", ["--device", "cpu"], "cpu"),
    ("train", None, [], "auto"), ("train", "cpu", [], "cpu"), ("train", "auto", ["--device", "cpu"], "cpu")])
def test_a_command_computes_where_its_option_or_the_user_says(command, said, option, counts, monkeypatch, capsys):
    monkeypatch.delenv("ZEROCOURSE_DEVICE")
    if said:
        monkeypatch.setenv("ZEROCOURSE_DEVICE", said)
    needed = ["--config", "missing.json", "--data", "missing.txt"] if command == "train" else ["--data", "missing.txt"]
    assert main([command, *needed, *option]) == 2  # after it was set
    assert os.environ["ZEROCOURSE_DEVICE"] == counts
    monkeypatch.setenv("ZEROCOURSE_DEVICE", "cpu")


SCRIPT = "import os\nprint('sees', os.environ.get('CUDA_VISIBLE_DEVICES'))"


@pytest.mark.parametrize("place, sees", [("cpu", ""), ("auto", "5")])
def test_a_trainers_script_sees_no_gpu_where_ranks_compute_on_the_cpu(place, sees, monkeypatch, tmp_path, capsys):
    """accelerate would move the batches to one, because it does not know the switch."""
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.setattr(sys, "argv", ["bridge", str(tmp_path / "script.py")])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    monkeypatch.setenv("ZEROCOURSE_DEVICE", place)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(bridge, "install", lambda: None)
    bridge.main()
    assert capsys.readouterr().out == f"sees {sees}\n"


@pytest.mark.parametrize("group, thought, known", [("gloo", None, "gloo"), ("gloo", "nccl", "gloo"), ("cpu:gloo,cuda:nccl", "nccl", "nccl")])
def test_accelerate_gets_to_know_over_what_ranks_talk_that_share_a_gpu(group, thought, known, monkeypatch):
    state = {"backend": thought}
    monkeypatch.setitem(sys.modules, "accelerate.state", SimpleNamespace(PartialState=SimpleNamespace(_shared_state=state)))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda: group)
    assert stand_in.is_initialized() and state == {"backend": known}


@pytest.mark.parametrize("gpus, capability, place, says", [
    (0, None, "auto", "good: two ranks run on the CPU and talk over gloo"),
    (0, None, "cuda", "ZEROCOURSE_DEVICE is cuda, and torch finds no GPU here"),
    (2, (8, 0), "cpu", "good: two ranks run on the CPU and talk over gloo (so says ZEROCOURSE_DEVICE=cpu)"),
    (1, (8, 0), "auto", "good: two ranks share the GPU and talk over gloo"),
    (2, (8, 0), "cuda", "good: two ranks take a GPU each and talk over NCCL"),
    (2, (7, 5), "cuda", "good: two ranks take a GPU each and talk over NCCL; it has no bf16, so train in fp16 or fp32"),
])
def test_what_the_first_chapter_promises_of_a_machine(gpus, capability, place, says, machine, monkeypatch):
    machine(gpus)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a card")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setenv("ZEROCOURSE_DEVICE", place)
    verdict = next(row["verdict"] for row in report() if row["what"] == "processors")
    assert verdict == says or place == "cuda" and not gpus and verdict.startswith(says)


def test_a_notebook_says_in_a_line_where_it_computes_if_there_is_a_gpu(monkeypatch, tmp_path):
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(magics, "DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert not magics.has_gpu()
    (tmp_path / "nvidia0").touch()
    assert magics.has_gpu()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not magics.has_gpu()
    said = [magics.where_it_computes(place) for place in ("cpu", "cuda", "auto")]
    assert "on the CPU" in said[0] and "ZEROCOURSE_DEVICE=cuda" in said[0] and "ZEROCOURSE_DEVICE is auto" in said[2]
    assert not any("\n" in line for line in said)
