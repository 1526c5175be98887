"""Offload to the disk: memory held, order and overlap of its transfers, crashes. That it computes the numbers of the plain
run, and moves so many bytes, stands in test_offload.py; the files themselves are in test_disk.py."""

import gc
import os
import re
import signal
import time
from functools import partial

import pytest
import torch
import worlds
from safetensors.torch import save_file
from test_offload import steps
from worlds import Case

from zerocourse import initialize, load_checkpoint, load_state_dict, save_checkpoint, shard, state_dict
from zerocourse.errors import BadInput, OutOfMemory
from zerocourse.measure import tier_registry
from zerocourse.measure.ledger import Ledger
from zerocourse.offload import Disk, DiskOffload, Tier
from zerocourse.offload.on_disk.aligned import whole_blocks
from zerocourse.offload.on_disk.block_file import DamagedFile
from zerocourse.offload.on_disk.disk_block import DiskBlock
from zerocourse.offload.on_disk.misbehaving import Misbehaving
from zerocourse.offload.on_disk.staging import StagingBuffers

BF16 = torch.bfloat16


def step(case: Case, model, optimizer, number: int, rank: int = 0) -> float:
    with model.zero.backward_options(is_last=True):
        loss = case.loss(model, number, 0, rank)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


# -- memory ----------------------------------------------------------------------------------------------------------

def held(folder: str, stage: int, dtype, parameters: bool) -> None:
    """After a step, on this rank: what the module's docstring says that host, disk and device hold, to the byte."""
    case = Case(stage, param_dtype=dtype)
    offload = DiskOffload(folder, parameters=parameters, buffers=3)
    model, optimizer = worlds.sharded(case, offload=offload)
    with Ledger(model, optimizer) as ledger:
        for number in range(2):
            step(case, model, optimizer, number)
        offload.settle()  # while a file is written, its older version is there as well
        found = model.zero.memory(optimizer)
        words = [-(-4 * flat.shard.numel() // 16) * 16 for flat in model.zero.flats]  # bytes of a slice in fp32
        if parameters and dtype is None:
            blocks = [whole_blocks(word) + whole_blocks(2 * word) for word in words]
        else:
            blocks = [whole_blocks(3 * word) + (whole_blocks(word // 2) if parameters else 0) for word in words]
        counters = sum(4 * len(flat.shard_params) for flat in model.zero.flats)
        assert found["host_bytes"] == 3 * max(blocks) + counters == offload.tier.bytes == ledger.now("host").total
        assert found["disk_bytes"] == sum(blocks) == offload.disk.tier.bytes
        assert found["optimizer_bytes"] == 0 and (found["parameters_bytes"] == 0 or not parameters)
        with model.zero.backward_options(is_last=True):
            case.loss(model, 2, 0, 0).backward()
        gradients = sum(flat.shard.numel() * flat.dtype.itemsize for flat in model.zero.flats)
        assert offload.tier.bytes == 3 * max(blocks) + counters + gradients
        # What the step of one buffer takes besides: its gradient in fp32, in the first step new states, Adam's temporaries.
        assert offload.tier.peak <= 3 * max(blocks) + counters + gradients + 5 * max(words)


def test_the_host_holds_staging_buffers_and_gradients_and_the_disk_the_rest(pool, tmp_path):
    for stage, dtype, parameters in ((1, None, False), (2, BF16, False), (3, None, True), (3, BF16, True)):
        pool(2).run(held, str(tmp_path), stage, dtype, parameters)


def test_the_engine_counts_what_the_disk_moves(tmp_path):
    """In whole blocks: the master weights at first; then each step reads and writes 12 bytes an element, the first one reads 4."""
    config = {"train_batch_size": 2, "bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
              "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": str(tmp_path)}}}
    engine, *_ = initialize(model=worlds.gpt(), config=config)
    for number in range(3):
        engine.backward(worlds.gpt_loss(engine, number, 0, 0))
        engine.step()
    engine.zero.settle()
    elements = [flat.shard.numel() for flat in engine.zero.flats]
    masters, all = (sum(whole_blocks(words * -(-4 * numel // 16) * 16) for numel in elements) for words in (1, 3))
    found = engine.communication()
    assert found["io_bytes"] == {"read": masters + 2 * all, "written": masters + 3 * all}
    assert found["link_bytes"] == dict.fromkeys(("down", "up"), 3 * 2 * sum(flat.real for flat in engine.zero.flats))
    assert "io_bytes" not in initialize(model=worlds.gpt(), config={"train_batch_size": 2})[0].communication()


def lions(config: dict) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of three steps with the package's Lion, whose only average lies where the config says."""
    engine, *_ = initialize(model=worlds.gpt(), config={
        "train_micro_batch_size_per_gpu": worlds.SIZE, "optimizer": {"type": "Lion", "params": {"lr": 1e-2, "weight_decay": 0.1}},
        "gradient_clipping": 0.3, **config})
    losses = []
    for number in range(3):
        loss = worlds.gpt_loss(engine, number, 0, engine.global_rank)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses, engine.state_dict()


@pytest.mark.parametrize("stage, dtype", ((1, "fp32"), (2, "bf16"), (3, "fp32")))
def test_lion_of_a_config_is_the_same_on_host_and_disk(pool, tmp_path, stage, dtype):
    """The package's own optimizer says that it may step one buffer after the other, as torch's may."""
    config = {"bf16": {"enabled": True}} if dtype == "bf16" else {}
    expected = pool(2).run(lions, config | {"zero_optimization": {"stage": stage}})
    nvme = {"device": "nvme", "nvme_path": str(tmp_path)}
    for places in ({"offload_optimizer": {"device": "cpu"}}, {"offload_optimizer": nvme},
                   {"offload_optimizer": nvme, "offload_param": nvme})[:3 if stage == 3 else 2]:
        for (losses, weights), (right, plain) in zip(pool(2).run(lions, config | {"zero_optimization": {"stage": stage, **places}}),
                                                     expected, strict=True):
            assert losses == right and all(torch.equal(weights[name], value) for name, value in plain.items()), places


def test_the_budgets_of_host_and_disk_are_kept(tmp_path):
    for budgets, tier in (({"host_budget": 40_000}, "host"), ({"disk_budget": 20_000}, "disk")):
        with pytest.raises(OutOfMemory, match=f"rank 0 ran out of {tier} memory"):
            case = Case(2, 1)
            step(case, *worlds.sharded(case, offload=DiskOffload(tmp_path, **budgets)), 0)


def test_staging_buffers_are_never_charged_to_the_device():
    tier, held = Tier("host"), []
    with Ledger() as ledger, tier_registry.taking(tier):
        block = DiskBlock("h.0", 2**18, {"states": {"master weights": torch.float32}}, None, tier)
        pool = StagingBuffers(1, block.nbytes, tier=tier)
        for _ in range(2):
            block.lend(pool.take("h.0"), pool)
            held.append(ledger.alive_in["host"])
            block.tensors["master weights"].fill_(1.0)
            block.release()
        assert ledger.peak == 0 and held[-1] == 2**20 == tier.bytes


# -- order and overlap -----------------------------------------------------------------------------------------------

class Blocks(torch.nn.Module):
    """Eight units of one size."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(ELEMENTS, 1, bias=False) for _ in range(BLOCKS))

    def forward(self, x):
        return sum(block(x).sum() for block in self.blocks)


BLOCKS, ELEMENTS, SECONDS = 8, 2**16, 0.03
RATE = 2 * ELEMENTS * 4 / SECONDS  # bytes per second: a block's weights and momentum are read, or written, in SECONDS


def test_parameters_are_read_in_the_order_of_the_gathers(tmp_path):
    """Which stage 3 has recorded; and one unit ahead."""
    offload, started = DiskOffload(tmp_path, parameters=True), []
    model, _ = shard(Blocks(), None, 3, offload=offload)
    read, all_gather = offload.disk.read, model.zero.comm.all_gather
    offload.disk.read = lambda name, into: started.append(("read", name.removesuffix(".params"))) or read(name, into)
    model.zero.comm.all_gather = lambda *args: started.append(("gather", args[-1])) or all_gather(*args)
    for _ in range(3):
        started.clear()
        model(torch.ones(1, ELEMENTS)).backward()
        model.zero.zero_grad()
    reads, gathers = ([unit for what, unit in started if what == verb] for verb in ("read", "gather"))
    assert reads == gathers and len(reads) == 2 * BLOCKS
    assert started.index(("read", "blocks.1")) < started.index(("gather", "blocks.0"))


class Computing(DiskOffload):
    """Each buffer's update takes SECONDS, in which the processor is free."""

    def step_on_host(self, flat, optimizer_step):
        time.sleep(SECONDS)
        return super().step_on_host(flat, optimizer_step)


class OneAfterTheOther(Computing):
    """Nothing overlaps."""

    def turns(self, flats, optimizer):
        for flat in flats:
            self.fetch(flat, *flat.files_of_a_step)
            flat.block.wait()
            yield flat
            flat.write()
            flat.finish_leaving()


def seconds_of_a_step(folder: str, kind: type[DiskOffload]) -> tuple[float, DiskOffload]:
    offload = kind(folder, disk_rate=RATE)
    model = Blocks()
    model, optimizer = shard(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), 2, offload=offload)
    for _ in range(2):
        model(torch.ones(1, ELEMENTS)).backward()
        begun = time.perf_counter()
        optimizer.step()
        offload.settle()
        seconds = time.perf_counter() - begun
    return seconds, offload


def test_states_are_read_and_written_while_others_are_stepped(tmp_path):
    """At least 80 % of what overlap can gain, the best of three: all but the updates, one reading and one writing."""
    bound = (BLOCKS * 3 - (BLOCKS + 2)) * SECONDS
    gains = []
    for _ in range(3):
        serial, _ = seconds_of_a_step(tmp_path, OneAfterTheOther)
        overlapped, offload = seconds_of_a_step(tmp_path, Computing)
        gains.append(serial - overlapped)
        if gains[-1] >= 0.8 * bound:
            break
    assert max(gains) >= 0.8 * bound, f"{gains} of {bound} s"
    assert offload.staging.peak <= offload.buffers


class Slow:
    """In place of `os`: each call takes its time before it begins."""

    def __getattr__(self, name: str):
        return getattr(os, name)

    def preadv(self, *args) -> int:
        time.sleep(0.005)
        return os.preadv(*args)

    def pwritev(self, *args) -> int:
        time.sleep(0.005)
        return os.pwritev(*args)


def test_a_slow_disk_and_a_slow_link_change_no_bit(tmp_path):
    """What is used before it has come, or handed out before it has gone, is NaN or damaged."""
    for stage, dtype, options in ((1, None, {"rate": 5e4}), (3, BF16, {"parameters": True}),
                                  (3, None, {"parameters": True, "rate": 1e6})):
        case = Case(stage, 1, steps=3, bucket_size=300, param_dtype=dtype)
        offload = DiskOffload(disk=Disk(tmp_path, system=Slow()), buffers=2, poison=True, **options)
        for number, (ours, plain) in enumerate(zip(steps(case, offload, True), steps(case, None, False), strict=True)):
            for name, value in plain[2].items():
                assert torch.equal(ours[2][name], value), f"{case}, {options}, step {number}: {name}"


def test_whole_weights_reach_the_disk(tmp_path):
    """Loaded from a dictionary, or from a folder of safetensors as `shard` begins."""
    other = worlds.gpt(n_head=1)
    state = {name: value + 0.5 for name, value in other.state_dict().items()}
    save_file({name: value for name, value in state.items() if name != "lm_head.weight"}, tmp_path / "model.safetensors")
    for dtype in (None, BF16):
        offload = partial(DiskOffload, tmp_path / "scratch", parameters=True, poison=True)
        loaded, _ = shard(worlds.gpt(), None, 3, offload=offload(), param_dtype=dtype)
        load_state_dict(loaded, state)
        read, _ = shard(worlds.gpt(), None, 3, offload=offload(), param_dtype=dtype, weights=tmp_path)
        for model in (loaded, read):
            assert all(torch.equal(value, state[name].to(value.dtype)) for name, value in state_dict(model).items())


# -- what goes wrong -------------------------------------------------------------------------------------------------

class Deadly:
    """In place of `os`: when `writes` more have gone well, half of the next one, and the process is killed."""

    writes = 1000

    def __getattr__(self, name: str):
        return getattr(os, name)

    def pwritev(self, fd: int, buffers: list[memoryview], offset: int) -> int:
        self.writes -= 1
        if self.writes < 0:
            os.pwritev(fd, [buffers[0][:4096]], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return os.pwritev(fd, buffers, offset)


def test_killed_in_the_middle_of_a_step_a_run_goes_on_from_its_checkpoint(tmp_path):
    """Bitwise as if nothing had happened, from states that no half written file has touched."""
    case, scratch = Case(3, 1, make=partial(worlds.gpt, n_embd=16)), tmp_path / "scratch"
    make = partial(DiskOffload, parameters=True)
    child = os.fork()
    if not child:
        try:
            system = Deadly()
            model, optimizer = worlds.sharded(case, offload=make(disk=Disk(scratch, system=system)))
            step(case, model, optimizer, 0)
            step(case, model, optimizer, 1)
            save_checkpoint(model, optimizer, tmp_path / "saved")
            system.writes = 2
            step(case, model, optimizer, 2)
            model.zero.settle()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    model, optimizer = worlds.sharded(case, offload=make(tmp_path / "again"))
    load_checkpoint(model, optimizer, tmp_path / "saved")
    unhurt = worlds.sharded(case)
    for number in range(4):
        loss = step(case, *unhurt, number)
        assert number < 2 or loss == step(case, model, optimizer, number)
    expected = state_dict(unhurt[0])
    assert all(torch.equal(value, expected[name]) for name, value in state_dict(model).items())
    until = time.monotonic() + 30
    while list(scratch.iterdir()) and time.monotonic() < until:
        time.sleep(0.02)
    assert not list(scratch.iterdir())


def test_a_damaged_file_is_named_with_the_parameter(tmp_path):
    case = Case(2, 1)
    offload = DiskOffload(disk=Disk(tmp_path, system=Misbehaving("flipped byte", after=4)))
    model, optimizer = worlds.sharded(case, offload=offload)
    step(case, model, optimizer, 0)  # reads one file of each of four buffers
    with pytest.raises(DamagedFile, match=r"\.states.* \(master weights of \w+\."):
        step(case, model, optimizer, 1)
    with pytest.raises(DamagedFile), model.zero.flats[0].at_hand():
        pass
    model.zero.settle()
    assert offload.staging.in_flight == 0


def test_a_step_that_fails_leaves_no_buffer_taken_and_no_file(tmp_path):
    class Failing(DiskOffload):
        fails = False

        def step_on_host(self, flat, optimizer_step):
            if self.fails and flat.name == "h.0":
                raise ArithmeticError("as an optimizer may")
            return super().step_on_host(flat, optimizer_step)

    case, offload = Case(2, 1), Failing(tmp_path)
    model, optimizer = worlds.sharded(case, offload=offload)
    step(case, model, optimizer, 0)
    offload.fails = True
    with pytest.raises(ArithmeticError):
        step(case, model, optimizer, 1)
    model.zero.zero_grad()
    offload.settle()
    assert offload.staging.in_flight == 0
    del offload, model, optimizer
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_needs_no_more_memory_than_a_step(tmp_path):
    """Blocks are brought one after the other, at saving and at loading."""
    case = Case(3, 1, make=partial(worlds.gpt, n_layer=6))
    for loads in (False, True):
        offload = DiskOffload(tmp_path, parameters=True, buffers=2)
        model, optimizer = worlds.sharded(case, offload=offload)
        if not loads:
            step(case, model, optimizer, 0)
            offload.tier.peak = 0
            save_checkpoint(model, optimizer, tmp_path / "saved")
        else:
            load_checkpoint(model, optimizer, tmp_path / "saved")
        largest = max(flat.block.nbytes for flat in model.zero.flats)
        counters = sum(4 * len(flat.shard_params) for flat in model.zero.flats)
        assert offload.tier.peak <= (2 + loads) * largest + counters, "two staging buffers, and what is loaded of one block"
        assert offload.staging.in_flight <= 1 and offload.disk.tier.bytes >= 6 * largest


def test_a_torch_that_cannot_give_a_tensor_other_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("zerocourse.measure.storages.CAN_SWAP", False)
    with pytest.raises(BadInput, match=f"needs a newer torch: {re.escape(torch.__version__)} cannot .* or offload to the host"):
        DiskOffload(tmp_path)


def test_what_the_disk_cannot_do_is_refused(tmp_path):
    for options, words in (({"buffers": 1}, "buffers is 1: .* at least 2"), ({"disk": 1}, "either a folder or a Disk"),
                           ({"delay_after": 3}, "delay_after is 3: .* cannot be delayed")):
        with pytest.raises(BadInput, match=words):
            DiskOffload(tmp_path, **options)
    case = Case(2, 1, optimizer=type("Own", (torch.optim.SGD,), {"__module__": "mine"}))
    with pytest.raises(BadInput, match="Own is not torch's own, .* one buffer after the other"):
        step(case, *worlds.sharded(case, offload=DiskOffload(tmp_path)), 0)
