"""What a step of half precision costs a GPU: torch's fused update, and no pass over the weights beside it."""

from collections import Counter
from importlib import import_module
from unittest import mock

import pytest
import torch
import worlds
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from worlds import STAGES, Stack

import zerocourse
from zerocourse import shard
from zerocourse.errors import BadInput
from zerocourse.offload import HostOffload
from zerocourse.zero.passes.written import checksum

BF16 = torch.bfloat16


def stack(stage: int, dtype: torch.dtype | None = BF16, optimizer=worlds.adamw, **options):
    model = Stack()
    return shard(model, optimizer(model.parameters()), stage, param_dtype=dtype, **options)


def backward(model, step: int = 0) -> None:
    dtype = model.zero.flats[0].dtype
    model(worlds.rows(step, 0, model.zero.comm.rank).to(dtype)).float().square().mean().backward()


# -- torch's fast update ---------------------------------------------------------------------------------------------

def as_torch_sees_them() -> list:
    """By stage and dtype: the classes of what AdamW steps, and which of its ways it takes where "cpu" has all of them."""
    adam, found = import_module("torch.optim.adam"), []  # torch.optim hides the name
    own = adam._default_to_fused_or_foreach

    def look(params, *args, **kwargs):
        found[-1].append(({type(param) for param in params}, own(params, *args, **kwargs)))
        return False, False

    with mock.patch.object(adam, "_default_to_fused_or_foreach", look), \
         mock.patch.object(import_module("torch.optim.optimizer"), "_get_foreach_kernels_supported_devices", lambda: ["cpu"]):
        for stage in STAGES:
            for dtype in (None, BF16):
                found.append([])
                model, optimizer = stack(stage, dtype)
                for step in range(2):
                    backward(model, step)
                    optimizer.step()
                    optimizer.zero_grad()
    return found


def test_the_optimizer_steps_plain_parameters_and_takes_torchs_fast_way(pool):
    for found in pool(2).run(as_torch_sees_them):
        for calls in found:
            assert calls and all(call == ({nn.Parameter}, (False, True)) for call in calls), found


def refused_outside_of_the_step(fails: bool) -> list[str]:
    """What is said when the gradients of the optimizer's parameters are looked for between backward and step; also after a
    step that raised."""
    said = []
    for stage in STAGES:
        model, optimizer = stack(stage)
        if fails:
            backward(model)
            with pytest.raises(RuntimeError, match="out of memory"):
                model.zero.step(mock.Mock(side_effect=RuntimeError("out of memory")))
            optimizer.zero_grad()
        backward(model)
        try:
            said.append(str([param.grad for group in optimizer.param_groups for param in group["params"]]))
        except BadInput as error:
            said.append(str(error))
    return said


@pytest.mark.parametrize("fails", (False, True))
def test_between_backward_and_step_they_say_where_the_gradients_are(pool, fails):
    for said in pool(2).run(refused_outside_of_the_step, fails):
        assert all("only within the step" in each for each in said), said


# -- no pass over the weights ----------------------------------------------------------------------------------------

class Operations(TorchDispatchMode):
    """Counts what reads master weights to compare them with the model's, and what writes them beside the update."""

    def __init__(self, flats):
        super().__init__()
        self.counts = Counter()
        self.masters = {flat.master.untyped_storage()._cdata for flat in flats}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        into = args[0].untyped_storage()._cdata if name == "copy_" else None
        if name in ("ne", "where", "eq") or into in self.masters:
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


def comparing_operations(stage: int, dtype: torch.dtype, ratio: float | None) -> list[dict]:
    """In a step without any write, after one through `param.data`, after one through what `param.data` gave earlier, in the
    step of the backward that tells the other ranks of it, and in one more step."""
    model, optimizer = stack(stage, dtype, offload=None if ratio is None else HostOffload(ratio=ratio))
    weight, found = model.first.weight, []
    backward(model)
    kept = weight.data if stage < 3 else None
    for write in (None, lambda: weight.data.mul_(2), lambda: kept.view(-1)[3:].mul_(2), None, None):
        backward(model)
        if write is not None and stage < 3:
            write()
        with Operations(model.zero.flats) as operations:
            optimizer.step()
        optimizer.zero_grad()
        found.append(dict(operations.counts))
    return found


@pytest.mark.parametrize("stage, ratio", [*((stage, None) for stage in STAGES), (2, 0.5)])
@pytest.mark.parametrize("dtype", (BF16, torch.float16))
def test_masters_are_compared_only_after_a_write(pool, stage, ratio, dtype):
    for clean, data, alias, _, after in pool(2).run(comparing_operations, stage, dtype, ratio):
        assert not clean and not after, (clean, after)
        assert stage == 3 or (data["where"] == alias["where"] == (1 if ratio is None else 2)), (data, alias)


def written_through_what_was_kept(stage: int) -> list[float]:
    """The largest weights after two clamps through what `param.data` gave before the first step, each followed by a step."""
    model, optimizer = stack(stage, optimizer=worlds.sgd)
    kept, found = [param.data for param in model.parameters()], []
    for step in range(2):
        backward(model, step)
        optimizer.step()
        optimizer.zero_grad()
        for values in kept:
            values.clamp_(-0.01, 0.01)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        backward(model, step)
        optimizer.step()
        optimizer.zero_grad()
        for group in optimizer.param_groups:
            group["lr"] = 0.3
        found.append(max(value.abs().max().item() for value in zerocourse.state_dict(model).values()))
    return found


@pytest.mark.parametrize("stage", (0, 1, 2))
def test_a_write_through_what_data_gave_earlier_counts(pool, stage):
    for largest in pool(2).run(written_through_what_was_kept, stage):
        assert all(each <= 1 / 64 for each in largest), largest


class ClampsItsData(worlds.Block):
    """As code from before `no_grad` writes a constraint."""

    def forward(self, x):
        self.up.weight.data.clamp_(-0.2, 0.2)
        return super().forward(x)


class ClampedStack(Stack):
    block = ClampsItsData


def largest_of_clamped(stage: int, dtype: torch.dtype | None) -> float:
    model = ClampedStack()
    model, optimizer = shard(model, torch.optim.SGD(model.parameters(), lr=0.0), stage, param_dtype=dtype)
    backward(model)
    optimizer.step()
    return max(value.abs().max().item() for name, value in zerocourse.state_dict(model).items() if "up.weight" in name)


def test_a_forward_that_writes_through_data_is_kept_at_every_stage(pool):
    for stage in STAGES:
        for dtype in (None, BF16):
            assert all(each <= 0.201 for each in pool(2).run(largest_of_clamped, stage, dtype)), (stage, dtype)


# -- checksums -------------------------------------------------------------------------------------------------------

def test_a_checksum_tells_values_and_places_apart():
    values = torch.arange(1.0, 13.0).view(3, 4)
    others = [values + 0, values.flip(0), values.t(), -values, values.clone().index_fill_(0, torch.tensor([1]), 0), values.bfloat16(),
              values.double(), values.to(torch.complex128), values.to(torch.uint8), values[:2], torch.zeros(3, 4), torch.tensor(1.0)]
    sums = [int(checksum(each)) for each in others]
    assert sums[0] == int(checksum(values)) and len(set(sums)) == len(sums), sums
    large = torch.randn(600_000)
    before = int(checksum(large))
    large[-1] += 1
    assert before != int(checksum(large)) and int(checksum(torch.zeros(0))) == 0


def host_reads(stage: int) -> list[int]:
    """How often `gathered` reads values from the device, for one parameter and for all of them."""
    model, _ = stack(stage)
    counts, to_list = [], torch.Tensor.tolist
    for part in (model.first.weight, model):
        read = []
        with mock.patch.object(torch.Tensor, "tolist", lambda tensor: read.append(tensor) or to_list(tensor)), \
             mock.patch.object(torch.Tensor, "cpu", side_effect=AssertionError("a parameter went to the host")), zerocourse.gathered(part):
            pass
        counts.append(len(read))
    return counts


def test_gathered_reads_from_the_device_once(pool):
    assert pool(2).run(host_reads, 3) == [[1, 1]] * 2
