"""On an accelerator: nothing of the host is mixed into what the device computes, and in a step nothing is read from it.

`fake_device` trains on one that torch lets us make up, so this needs no GPU. It is skipped where torch cannot do that any
more, because the function is not one of torch's public ones.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("torch.utils.backend_registration")
from torch.utils import backend_registration

if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this torch lets nobody make up a device in Python", allow_module_level=True)

import fake_device

from zerocourse.commands import tour_command, train_command
from zerocourse.measure import ledger
from zerocourse.measure.watched_step import watched_step

# What a step may wait for, by the beginning of a case's name: in which file, and how often at most.
MAY_WAIT = {
    "engine, fp16": {"engine/updates/half_precision.py": 1},  # did a gradient overflow on any rank?
    "engine, bf16": {"engine/updates/half_precision.py": 1},
    "engine, half, offload": {"engine/updates/half_precision.py": 1},
    "pipeline": {"parallel/pipeline/pipeline.py": 1},  # the loss, which `step` returns as a number
}
LIMIT_SECONDS = 400  # all cases together take 25 s of a core, and the first test waits for them


pytestmark = pytest.mark.timeout(LIMIT_SECONDS)


@pytest.fixture(scope="module")
def found():
    """By case: what `fake_device` saw, in a process of its own, because nothing takes back a device."""
    done = subprocess.run([sys.executable, str(Path(fake_device.__file__))], capture_output=True, text=True, timeout=LIMIT_SECONDS - 20)
    assert done.returncode == 0, done.stderr[-2000:]
    return {each.pop("case"): each for each in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("case", fake_device.CASES)
def test_nothing_of_the_host_meets_the_device(found, case):
    assert found[case]["error"] is None


TRAINED = [case for case in fake_device.CASES if case not in (
    "ledger", "evaluation, generating, whole state", "a batch on the host", "tour")]


@pytest.mark.parametrize("case", TRAINED)
def test_a_step_reads_nothing_from_the_device(found, case):
    reads: dict[str, int] = {}
    for line, times in found[case]["reads"].items():
        file = line.partition(":")[0]
        reads[file] = reads.get(file, 0) + times
    allowed = next((files for name, files in MAY_WAIT.items() if case.startswith(name)), {})
    assert all(times <= allowed.get(file, 0) for file, times in reads.items()), found[case]["reads"]


@pytest.mark.parametrize("case", TRAINED)
def test_backward_hooks_run_in_the_thread_of_the_device(found, case):
    assert found[case]["threads"] == 2


def test_the_ledger_counts_what_is_on_the_device_and_not_the_batches_of_the_host(found):
    seen = found["ledger"]["seen"]
    assert seen["None"] == seen[fake_device.DEVICE] < seen["cpu"]
    assert seen["cpu"] >= seen["batch"]


def test_masters_and_states_are_where_they_should_be(found):
    for case, seen in ((case, found[case]["seen"]) for case in TRAINED):
        if case.startswith("stage"):
            assert set(seen) == {fake_device.DEVICE}, case
        elif case.startswith("offload"):
            where = {"cpu", fake_device.DEVICE} if "part" in case else {"cpu"}
            assert set(seen) == where | {"down", "up"}, case
    assert found["engine, fp32"]["seen"] == [fake_device.DEVICE, 2]


def test_a_batch_on_the_host_is_said_in_one_sentence(found):
    sentence = "BadInput: the batch is on cpu and the model on fakegpu:0: call .to(engine.device)"
    assert found["a batch on the host"]["seen"] == {
        "both": sentence, "by name": sentence, "no tensor": None,
        "another mistake": "TypeError: GPT.forward() got an unexpected keyword argument 'labels'"}


def test_the_tour_moves_its_batches_and_the_one_process(found):
    assert found["tour"]["seen"] == dict.fromkeys(("single", "zero3"), fake_device.DEVICE)


def test_reports_have_the_peak_of_the_gpu_s_allocator(monkeypatch):
    """Of which there is none here: one is made up, for a model on the CPU."""
    monkeypatch.setattr(ledger, "allocator_peak", lambda device: 7_000_000_000)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters())
    with ledger.Ledger(model, optimizer) as counted:
        got = watched_step(counted, optimizer, None, lambda: model(torch.zeros(2, 8)).sum().backward() or optimizer.step())
    assert got["device_peak_bytes"] == 7_000_000_000
    of_ranks = [got | {"sent_bytes": 0, "padding_bytes": 0, "metadata_bytes": 0, "losses": [1.0], "step_seconds": 0.1}]
    assert tour_command.summarise(of_ranks)["device_peak_bytes"] == [7_000_000_000]
    summary = {"total_bytes": [1], "peak_bytes": [2], "sent_bytes": [3], "device_peak_bytes": [7_000_000_000]}
    assert "its GPU's allocator had 7.00 GB in use at most" in train_command.held(summary)[0]
    assert "allocator" not in train_command.held({name: summary[name] for name in list(summary)[:3]})[0]


def test_without_a_gpu_no_report_has_its_peak():
    model = torch.nn.Linear(8, 8)
    with ledger.Ledger(model) as counted:
        assert counted.device is None and counted.device_peak is None
