"""What a GPU's tensors become on their way to ranks and back, and whose GPU a thread and a rank use; on a CPU, with stand-ins."""

import threading
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import nn
from worlds import Stack

from zerocourse import save_checkpoint, shard
from zerocourse.comm import bootstrap
from zerocourse.launch.processes import payload, serving

FAR = torch.device("meta")  # as the device of the rank that gets the call


@pytest.fixture
def far(monkeypatch):
    """`far(tensor)`: from now on it, and whatever shares its memory, counts as on an accelerator; what `cpu()` returns does not."""
    addresses = set()

    def on_accelerator(obj) -> bool:
        return isinstance(obj, torch.Tensor) and obj.untyped_storage().data_ptr() in addresses

    def make(tensor: torch.Tensor) -> torch.Tensor:
        addresses.add(tensor.untyped_storage().data_ptr())
        return tensor

    monkeypatch.setattr(payload, "_is_on_accelerator", on_accelerator)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: tensor.detach().clone())
    return make


def given(*values, **named):
    return values, named


def test_tensors_of_a_call_arrive_on_the_ranks_own_device(far, monkeypatch):
    model = nn.Linear(3, 2)
    far(model.weight)  # and the bias stays
    learned = far(torch.ones(2, requires_grad=True))
    nested = {"deep": [(far(torch.arange(3.0)), SimpleNamespace(each=far(torch.zeros(1, dtype=torch.bfloat16))))]}
    captured = far(torch.ones(5))
    blob = payload.pack(lambda: captured, (model, learned, torch.ones(2)), {"nested": nested})
    monkeypatch.setattr(bootstrap, "device", lambda: FAR)
    fn, (model, learned, near), named = payload.unpack(blob)
    assert type(model.weight) is nn.Parameter and model.weight.device == FAR and model.weight.requires_grad
    assert model.bias.device.type == near.device.type == "cpu" and model.bias.requires_grad
    assert learned.device == FAR and learned.requires_grad and learned.is_leaf
    first, space = named["nested"]["deep"][0]
    assert (first.device, first.shape, space.each.device, space.each.dtype) == (FAR, (3,), FAR, torch.bfloat16)
    assert fn().device == FAR
    monkeypatch.setattr(bootstrap, "device", lambda: torch.device("cpu"))
    assert payload.unpack(blob)[2]["nested"]["deep"][0][0].tolist() == [0, 1, 2]


def test_what_a_rank_returns_is_on_the_cpu_whatever_it_lies_in(far, tmp_path):
    model = nn.Linear(3, 2)
    far(model.weight)
    found = {"deep": [(far(torch.arange(3.0)), model.weight)], "space": SimpleNamespace(each=far(torch.ones(2)))}
    with mock.patch.object(payload, "_on_own_device", side_effect=AssertionError("a result asks for a device")):
        payload.save(found, tmp_path / "value")
        again = payload.load(tmp_path / "value")
    assert again["deep"][0][0].tolist() == [0, 1, 2] and again["deep"][0][1].equal(model.weight.detach())
    assert again["space"].each.tolist() == [1, 1]


@pytest.mark.parametrize("initialised", (False, True))
def test_a_rank_that_is_kept_alive_gives_a_gpus_memory_back(initialised):
    with mock.patch.object(torch.cuda, "is_initialized", lambda: initialised), mock.patch.object(torch.cuda, "empty_cache") as empty, \
         mock.patch.object(serving, "process_group", lambda: None), mock.patch.multiple("sys", stdout=mock.DEFAULT, stderr=mock.DEFAULT):
        serving._forget()
    assert empty.call_count == initialised


def test_a_save_in_the_background_selects_its_device_first(tmp_path):
    model, optimizer = shard(Stack(), stage=0)
    selected = []

    def select(device) -> None:
        assert not (tmp_path / "one.partial").exists() or not list((tmp_path / "one.partial").glob("*.json"))  # nothing is written yet
        selected.append((device, threading.current_thread().name))

    with mock.patch.object(torch.cuda, "set_device", select):
        save_checkpoint(model, optimizer, tmp_path / "zero", asynchronous=True).wait()
        assert selected == []  # on a CPU there is nothing to select
        with mock.patch("zerocourse.engine.checkpoint.saving.Saving.in_background", autospec=True) as begin:
            saving = save_checkpoint(model, optimizer, tmp_path / "one", asynchronous=True)
        begin.assert_called_once()
        saving.device = torch.device("cuda", 1)
        saving.thread = threading.Thread(target=saving.try_all, name="saving one")
        saving.thread.start()
        saving.wait()
    assert selected == [(torch.device("cuda", 1), "saving one")]
