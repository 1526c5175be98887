"""Offload: the numbers of the plain run, and bytes on the device, on the host and over the link as integers."""

import gc
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import product

import pytest
import torch
import worlds
from safetensors.torch import save_file
from worlds import Case

from zerocourse import gathered, initialize, load_checkpoint, load_safetensors, save_checkpoint, shard, state_dict
from zerocourse.course.chapters.offload.offload_trial import AddedAfterTheSum, OnlyTheFirst, OnlyTheLast
from zerocourse.engine.updates.lion import Lion
from zerocourse.errors import BadInput, OutOfMemory
from zerocourse.formulas.placements import best_placements, placements
from zerocourse.measure.ledger import Ledger
from zerocourse.measure.staleness import staleness
from zerocourse.offload import DiskOffload, HostLink, HostOffload
from zerocourse.offload.link_transfer import TransferError
from zerocourse.offload.offloaded_buffer import OffloadedBuffer
from zerocourse.offload.on_disk.aligned import whole_blocks
from zerocourse.offload.partly_offloaded import PartlyOffloadedBuffer

STEPS = 2
BF16 = torch.bfloat16


def offload_with(options: dict) -> HostOffload:
    """To the disk if they name a folder, else to the host."""
    return DiskOffload(**options) if "folder" in options else HostOffload(**options)


def steps(case: Case, offload: HostOffload | None, says_last: bool, look: Callable = lambda flats: None, halving: bool = False):
    """One step after the other: (loss, this rank's gradients as they are stepped, all parameters, the norm). halving: the rate."""
    model, optimizer = worlds.sharded(case, **({"offload": offload} if offload else {}))
    flats, rank = model.zero.flats, model.zero.comm.rank
    for step in range(case.steps):
        for micro in range(case.accumulation):
            last = micro == case.accumulation - 1
            options = {"is_last": True} if says_last else {}
            with model.zero.backward_options(**options) if last else model.zero.no_sync():
                loss = case.loss(model, step, micro, rank) / case.accumulation
                loss.backward()
        norm = model.zero.clip_grad_norm_(case.clip).item() if case.clip else None
        gradients = {flat.name: whole_gradient(flat)[: flat.real] if offload else flat.grad_shard.clone() for flat in flats}
        look(flats)
        optimizer.step()
        optimizer.zero_grad()
        for group in optimizer.param_groups if halving else ():
            group["lr"] /= 2  # a schedule holds for the states on the device and on the host
        yield loss.item(), gradients, state_dict(model), norm
    look(flats)


def whole_gradient(flat: OffloadedBuffer) -> torch.Tensor:
    on_host = flat.host_gradient().clone()
    return torch.cat([flat.kept_grad, on_host]) if flat.kept else on_host


def equals_the_plain_run(cases: list[tuple[Case, bool, list[dict]]], tolerance: float = 0) -> list[list[dict[str, int]]]:
    """Each case, with each of these offloads, beside the same without, step by step: bitwise, or to this distance. Returns
    the bytes over the link."""
    def same(one: torch.Tensor, other: torch.Tensor) -> bool:
        return torch.allclose(one, other, rtol=tolerance, atol=tolerance) if tolerance else torch.equal(one, other)

    moved = []
    for case, says_last, choices in cases:
        plain = list(steps(case, None, False, halving=True))
        moved.append([])
        for options in choices:
            offload = offload_with(options)
            for step, ours in enumerate(steps(case, offload, says_last, halving=True)):
                what = f"{case}, {says_last=}, {options}: step {step}"
                assert abs(ours[0] - plain[step][0]) <= tolerance, f"{what}: the loss"
                for name, gradient in ours[1].items():
                    if not case.clip:  # else the plain run's is scaled already
                        assert same(gradient, plain[step][1][name][: gradient.numel()]), f"{what}: the gradient of {name}"
                for name, value in ours[2].items():
                    assert same(value, plain[step][2][name]), f"{what}: {name}"
                assert ours[3] == plain[step][3], f"{what}: the norm"
            moved[-1].append(dict(offload.link.bytes))
            if "folder" in options:
                check_disk(offload, case.steps)
    del offload
    gc.collect()  # offloads that are gone leave no file
    return moved


GATHERS = 3  # of a buffer in a step of `steps`: forward, backward, state_dict


def check_disk(offload: DiskOffload, steps: int) -> None:
    """The bytes are the formula's, in whole blocks: a step of Adam reads and writes 12 for each element of the slice; the
    first one reads the master weights alone. Parameters on the disk are read by each gather, and written by each step."""
    read = written = 0
    for flat in offload.stage.flats:
        word = -(-4 * flat.shard.numel() // 16) * 16  # bytes of the slice in fp32
        if not flat.shard_is_on_host:
            masters, all = whole_blocks(word), whole_blocks(3 * word)
        elif flat.dtype is BF16:
            params, masters, all = whole_blocks(word // 2), whole_blocks(word), whole_blocks(3 * word)
            read, written = read + steps * GATHERS * params, written + (1 + steps) * params
        else:
            masters, all = whole_blocks(word), whole_blocks(word) + whole_blocks(2 * word)
            read += steps * GATHERS * masters
        read, written = read + masters + (steps - 1) * all, written + masters + steps * all
    offload.settle()
    assert offload.disk.bytes == {"read": read, "written": written}
    assert 1 <= offload.staging.peak <= offload.buffers and not offload.staging.in_flight


@pytest.mark.parametrize("world_size", (1, 2, 3))
def test_equals_the_plain_run_and_moves_each_element_once_each_way(pool, world_size, tmp_path):
    """Bitwise, on the host and on the disk: stages 1 to 3, fp32 and bf16, accumulation 1 and 4, gradients that go down
    early or at the step; parameters on the disk at stage 3 without accumulation."""
    cases = [(Case(stage, world_size, param_dtype=dtype, accumulation=accumulation, steps=STEPS),
              (stage == 2) == (accumulation == 1),
              [{}, {"folder": str(tmp_path), "poison": True, "buffers": 2 + stage, "parameters": stage == 3 and accumulation == 1}])
             for stage, dtype, accumulation in product((1, 2, 3), (None, BF16), (1, 4))]
    by_rank = pool(world_size).run(equals_the_plain_run, cases)
    assert not list(tmp_path.iterdir())
    params = sum(param.numel() for param in worlds.gpt().parameters())
    for (case, *_), moved in zip(cases, zip(*by_rank, strict=True), strict=True):
        expected = params * (2 if case.param_dtype else 4) * case.steps
        for number, verb in product((0, 1), ("down", "up")):
            if verb == "down" or number == 0 or case.stage < 3 or case.accumulation > 1:
                assert sum(each[number][verb] for each in moved) == expected, f"{case}: {verb}"


# -- bytes held ------------------------------------------------------------------------------------------------------

def held(stage: int, dtype, **offload) -> dict[str, int]:
    """After a step: bytes by `memory()`; what a ledger that sees the whole step counts; the tier's own count."""
    case = Case(stage, param_dtype=dtype, optimizer=torch.optim.Adam)
    chosen = HostOffload(**offload) if offload else None
    model, optimizer = worlds.sharded(case, **({"offload": chosen} if chosen else {}))
    with Ledger(model, optimizer) as ledger:
        for step in range(2):
            case.loss(model, step, 0, 0).backward()
            optimizer.step()
            optimizer.zero_grad()
        found = model.zero.memory(optimizer)
        assert ledger.now().optimizer == found["optimizer_bytes"]
        if chosen:
            assert ledger.now("host").total == ledger.alive_in["host"] == chosen.tier.bytes == found["host_bytes"]
            assert ledger.peak_in["host"] <= chosen.tier.peak
    elements = [flat.shard.numel() for flat in model.zero.flats]
    scalars = sum(part.numel() > 0 for flat in model.zero.flats for part in flat.shard_params.values()) * 4
    on_host = sum(len(flat.stepped_on_host()) for flat in model.zero.flats) * 4 if chosen else 0
    return found | {"elements": sum(elements), "scalars": scalars, "host_scalars": on_host}


def test_what_the_device_gives_up_the_host_holds(pool):
    """fp32: Adam's states move, and the masters are one copy more; half precision: 12 bytes move. Step counters apart."""
    for stage, dtype in product((1, 2, 3), (None, BF16)):
        plain = pool(2).run(held, stage, dtype)
        for before, now in zip(plain, pool(2).run(held, stage, dtype, budget="1MiB"), strict=True):
            assert now["optimizer_bytes"] == 0, (stage, dtype)
            copy = 4 * now["elements"] if dtype is None else 0
            # Adam's states have no padding; the masters do.
            assert now["host_bytes"] == before["optimizer_bytes"] + copy + now["scalars"], (stage, dtype)
            assert now["parameters_bytes"] == before["parameters_bytes"], (stage, dtype)


def host_bytes(case: Case) -> None:
    """Between micro-batches, when the gradient has gone down, and after the step: to the byte, by formula."""
    offload = HostOffload()
    model, optimizer = worlds.sharded(case, offload=offload)
    flats = model.zero.flats
    own, real = sum(flat.shard.numel() for flat in flats), sum(flat.real for flat in flats)
    size = (case.param_dtype or torch.float32).itemsize
    states = 0
    for step in range(2):
        for micro in range(case.accumulation):
            assert offload.tier.bytes == 4 * own + states, f"{case}: before micro-batch {micro} of step {step}"
            with model.zero.backward_options(is_last=micro == case.accumulation - 1):
                case.loss(model, step, micro, model.zero.comm.rank).backward()
        assert offload.tier.bytes == 4 * own + states + size * own, f"{case}: with the gradient of step {step}"
        assert offload.link.bytes["down"] == (step + 1) * size * real, f"{case}: one gradient a step goes down"
        optimizer.step()
        optimizer.zero_grad()
        states = 8 * real + 4 * sum(len(flat.shard_params) for flat in flats)  # two averages an element, a counter a tensor


def test_the_hosts_bytes_are_those_of_the_formula(pool):
    for stage, dtype, accumulation in product((1, 2, 3), (None, BF16), (1, 4)):
        pool(2).run(host_bytes, Case(stage, param_dtype=dtype, accumulation=accumulation, optimizer=torch.optim.Adam))


def test_offloaded_parameters_leave_the_device_and_rise_for_every_gather(pool):
    for dtype in (None, BF16):
        for found in pool(2).run(held, 3, dtype, parameters=True):
            assert found["parameters_bytes"] == 0
            assert found["host_bytes"] == (12 if dtype is None else 14) * found["elements"] + found["scalars"]
    moved = pool(2).run(equals_the_plain_run, [(Case(3, param_dtype=BF16, accumulation=2, steps=STEPS), True, [{"parameters": True}])])
    params = sum(param.numel() for param in worlds.gpt().parameters())
    assert sum(each["down"] for [[each]] in moved) == 2 * params * STEPS


# -- a part of it ----------------------------------------------------------------------------------------------------

def elements_of(world_size: int) -> list[int]:
    """By rank: real elements of its slices."""
    model, _ = worlds.sharded(Case(2, world_size))
    return [sum(flat.layout.real(rank) for flat in model.zero.flats) for rank in range(world_size)]


RATIOS = (0, 0.3, 0.7)


def test_an_exact_share_is_offloaded_and_nothing_else_changes(pool):
    """To the element: of the link's bytes, of what the host holds, and of what the device keeps. The numbers are the plain run's."""
    cases = [(Case(stage, param_dtype=dtype, accumulation=1 + (stage == 1), clip=0.05 * (stage == 3), steps=STEPS,
                   optimizer=torch.optim.AdamW if stage < 3 else Lion), stage == 2, [{"ratio": ratio} for ratio in RATIOS])
             for stage, dtype in ((1, BF16), (2, None), (2, BF16), (3, BF16))]
    own = pool(2).run(elements_of, 2)[0]
    for rank, found in enumerate(pool(2).run(equals_the_plain_run, cases)):
        for (case, *_), of_case in zip(cases, found, strict=True):
            for ratio, moved in zip(RATIOS, of_case, strict=True):
                share = int(Fraction(str(ratio)) * own[rank])
                expected = STEPS * share * (2 if case.param_dtype else 4)
                assert moved == {"down": expected, "up": expected}, (case, ratio)


def test_the_rest_stays_on_the_device(pool):
    for dtype, ratio in product((None, BF16), RATIOS):
        own = pool(2).run(elements_of, 2)[0]
        for rank, found in enumerate(pool(2).run(held, 2, dtype, ratio=ratio)):
            share = int(Fraction(str(ratio)) * own[rank])
            padding = found["elements"] - own[rank]
            kept = found["optimizer_bytes"], found["host_bytes"] - found["host_scalars"]
            device = (8 if dtype is None else 12) * (own[rank] - share)
            assert kept == (device, 12 * share + 4 * padding), (dtype, ratio)


def test_a_unit_that_keeps_all_of_its_slice_counts_in_the_norm(pool):
    """Also when what goes down is nothing: clipping and the overflow of fp16 see its gradient."""
    cases = [(Case(stage, accumulation=1 + (stage == 1), clip=0.05, steps=STEPS), True, [{"ratio": ratio} for ratio in (0, 0.02)])
             for stage in (1, 2, 3)]
    pool(2).run(equals_the_plain_run, cases)
    plain, found = (pool(2).run(by_config, {"stage": 2} | section, FP16) for section in ({}, {"offload_optimizer": {"device": "cpu", "ratio": 0}}))
    for ours, other in zip(found, plain, strict=True):
        assert ours[:2] == other[:2] and ours[3] == other[3] > 0, "losses, norms, and skipped steps"


def within(budget: int | None, offload: HostOffload | None) -> int:
    """The peak on the device of two steps with Adam, in this process."""
    case = Case(2, 1, optimizer=torch.optim.Adam)
    model, optimizer = worlds.sharded(case, **({"offload": offload} if offload else {}))
    with Ledger(model, optimizer, budget=budget) as ledger:
        for step in range(2):
            with model.zero.backward_options(is_last=True):
                case.loss(model, step, 0, 0).backward()
            optimizer.step()
            optimizer.zero_grad()
    return ledger.peak


def test_what_the_host_holds_is_not_charged_to_the_device():
    budget = within(None, HostOffload()) + 4096  # when a graph's last tensors are freed may differ; Adam's states have 16,064 bytes
    assert within(budget, HostOffload()) <= budget
    with pytest.raises(OutOfMemory, match="over its budget"):
        within(budget, None)


def left_on_the_device(stage: int) -> list[tuple[int, int]]:
    """(gradient bytes on the device, on the host) after each backward of a step of two micro-batches."""
    case, found = Case(stage), []
    model, _ = worlds.sharded(case, offload=HostOffload())
    for micro in range(2):
        with model.zero.backward_options(is_last=True) if micro else model.zero.no_sync():
            case.loss(model, 0, micro, 0).backward()
        ledger = Ledger(model)
        found.append((ledger.now().gradients, ledger.now("host").gradients))
    whole = 4 * sum(flat.layout.padded for flat in model.zero.flats)
    return [*found, (whole, 4 * sum(flat.shard.numel() for flat in model.zero.flats))]


def test_a_gradient_that_has_gone_down_is_off_the_device(pool):
    for stage in (1, 2, 3):
        for first, last, (whole, share) in pool(2).run(left_on_the_device, stage):
            assert first == (whole if stage == 1 else share, 0) and last == (0, share), f"stage {stage}"


class Nest(torch.nn.Module):
    """A unit with units inside: it uses parameters of its own before them and after them."""

    def __init__(self, blocks: int, width: int):
        super().__init__()
        self.before, self.after = (torch.nn.Linear(width, width, bias=False) for _ in range(2))
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False) for _ in range(blocks))

    def forward(self, x):
        x = self.before(x)
        for block in self.blocks:
            x = block(x)
        return self.after(x)


def peak_in_a_nest(stage: int, offload: bool, blocks: int, width: int) -> int:
    """Bytes on the device at the peak of forward and backward, beside what it keeps."""
    model = torch.nn.Sequential(Nest(blocks, width))
    model, optimizer = shard(model, torch.optim.SGD(model.parameters()), stage, in_flight=0, prefetch=0,
                             units=["0", *(f"0.blocks.{number}" for number in range(blocks))], offload=HostOffload() if offload else None)
    with Ledger(model, optimizer) as ledger:
        kept = ledger.now().total
        ledger.reset_peak()
        with model.zero.backward_options(is_last=True):
            model(torch.ones(1, width)).sum().backward()
        return ledger.peak - kept


def test_gradients_of_units_inside_a_unit_leave_one_by_one(pool):
    """Below the slices that stay where nothing is offloaded, four blocks more need a few activations more, and no gradients."""
    width = 64
    for stage, offload in product((2, 3), (False, True)):
        few, many = (pool(2).run(peak_in_a_nest, stage, offload, blocks, width) for blocks in (2, 6))
        for before, after in zip(few, many, strict=True):
            slices = 0 if offload else 4 * width * width * 4 // 2
            assert after - before - slices < 4 * width * width / 2, (stage, offload, before, after)


def runs_out(budget: int) -> str:
    case = Case(2)
    try:
        worlds.sharded(case, offload=HostOffload(budget=budget))
    except OutOfMemory as error:
        return str(error)


def test_the_hosts_budget_is_one_too(pool):
    for rank, said in enumerate(pool(2).run(runs_out, 4000)):
        assert said.startswith(f"rank {rank} ran out of host memory: ") and said.endswith("over its budget of 4,000 bytes (3.91 KiB)")


# -- the link --------------------------------------------------------------------------------------------------------

def test_a_link_has_its_rate_and_costs_no_core():
    link, begun, cpu = HostLink(rate=40e6), time.perf_counter(), time.process_time()
    source = torch.arange(2**20, dtype=torch.float32)
    into = torch.zeros_like(source)
    down, up = link.down(into, source, "a"), link.up(torch.empty(2**19), source[: 2**19], "b")
    assert not down.done
    up.wait(), down.wait(), down.wait()
    seconds = time.perf_counter() - begun
    assert torch.equal(into, source) and link.bytes == {"down": 4 << 20, "up": 2 << 20}
    assert seconds >= 0.95 * (4 << 20) / 40e6, "both directions at once, each at its rate"
    assert [(event.verb, event.bytes) for event in link.recorder.events] == [("up", 2 << 20), ("down", 4 << 20)]
    assert time.process_time() - cpu < 0.7 * seconds


def test_a_transfer_has_a_limit_and_its_errors_come_to_who_waits():
    link = HostLink(rate=1e3, limit=0.1)
    with pytest.raises(TransferError, match="4,000 bytes of a were not down the link after 0.1 s"):
        link.down(torch.empty(1000), torch.zeros(1000), "a").wait()
    link = HostLink(rate=1e9)
    with pytest.raises(TransferError, match="4,000 bytes of b could not go up the link"):
        link.up(torch.empty(10), torch.zeros(1000), "b").wait()
    with pytest.raises(BadInput, match="the rate of the link is 0"):
        HostLink(rate=0)


def test_the_minimum_cut_is_four_bytes_a_parameter():
    assert min(each.moved for each in placements() if each.on_host) == 4
    assert [(each.moved, each.device) for each in best_placements()] == [(0, 16), (4, 2), (6, 0)]
    assert "update" in best_placements()[1].on_host and "parameters fp16" not in best_placements()[1].on_host


# -- DeepSpeed's bugs ------------------------------------------------------------------------------------------------

def equals_with(faulty, backwards_say_last: int) -> bool:
    case = Case(2, accumulation=2, steps=1)
    kept = HostOffload.buffer
    HostOffload.buffer = lambda self, *args, **kwargs: faulty(self, *args, **kwargs)
    try:
        model, optimizer = worlds.sharded(case, offload=HostOffload(ratio=0.4 if faulty is PartlyOffloadedBuffer else 1))
        for micro in range(2):
            with model.zero.backward_options(is_last=True if micro >= 2 - backwards_say_last else None):
                (case.loss(model, 0, micro, model.zero.comm.rank) / 2).backward()
        optimizer.step()
        ours = state_dict(model)
    finally:
        HostOffload.buffer = kept
    plain = list(steps(case, None, False))[0][2]
    return all(torch.equal(ours[name], plain[name]) for name in plain)


@pytest.mark.parametrize("faulty, says", ((OnlyTheFirst, 1), (OnlyTheLast, 2), (AddedAfterTheSum, 1)))
def test_the_three_bugs_of_upstream_are_seen(pool, faulty, says):
    for sound in (OffloadedBuffer, PartlyOffloadedBuffer):
        assert pool(2).run(equals_with, sound, says) == [True, True], sound
    assert not any(pool(2).run(equals_with, faulty, says)), faulty.__doc__


# -- the delayed update ----------------------------------------------------------------------------------------------

class OneHot(torch.nn.Module):
    """The loss of batch k has the gradient e_k."""

    def __init__(self, size: int = 8):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(size))

    def forward(self, k: int):
        return self.x[k]


class Sleepy(torch.optim.SGD):
    """Begins each step with a pause, in which others could take its gradients. Not torch's own, it steps all buffers at once."""

    def step(self, closure=None):
        time.sleep(0.02)
        return super().step(closure)


def moved_entries(warm_up: int) -> list[list[int]]:
    """By step, the entries that are not 0 after it; the last time after `settle`."""
    model = OneHot()
    model, optimizer = shard(model, (Sleepy if warm_up else torch.optim.SGD)(model.parameters(), lr=0.5), 1,
                             offload=HostOffload(delay_after=warm_up))
    found = []
    for k in range(6):
        model(k).backward()
        optimizer.step()
        assert k < warm_up or model.zero.flats[0].grad_shard is None, "the update has taken it"
        optimizer.zero_grad()
        found.append(model.x.detach().nonzero().flatten().tolist())
        assert set(model.x.detach().tolist()) <= {0.0, -0.5}, "once, by exactly the learning rate"
    model.zero.settle()
    return [*found, model.x.detach().nonzero().flatten().tolist()]


def test_each_entry_moves_one_step_late_and_once(pool):
    late = [[], [0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]
    warm = [[0], [0, 1], [0, 1], *late[3:]]
    for rank in pool(2).run(moved_entries, 0):
        assert rank == late
    for rank in pool(2).run(moved_entries, 2):
        assert rank == warm


def delays() -> list[int]:
    def make(model, lr, **options):
        return shard(model, torch.optim.SGD(model.parameters(), lr=lr), 2, offload=HostOffload(**options))[1]
    return [staleness(partial(make, delay_after=after), steps=300) for after in (None, 3)]


def test_the_staleness_is_one():
    assert delays() == [0, 1]


class Queue:
    """A delay queue of length 1 in one process: what the delayed update must equal. It has the hyper-parameters, and the
    gradient with its clipping, of the step that made them."""

    def __init__(self, optimizer, after: int):
        self.optimizer, self.after, self.steps, self.kept = optimizer, after, 0, None

    def step(self):
        self.steps += 1
        group = self.optimizer.param_groups[0]
        made = [param.grad.clone() for param in group["params"]], group["lr"]
        if self.steps > self.after:
            made, self.kept = self.kept, made
        self.apply(made)

    def apply(self, made):
        if made is not None:
            group = self.optimizer.param_groups[0]
            now = group["lr"]
            for param, gradient in zip(group["params"], made[0], strict=True):
                param.grad = gradient
            group["lr"] = made[1]
            self.optimizer.step()
            group["lr"] = now


def late_and_queue(stage: int, dtype, clip: float) -> None:
    """Bitwise in fp32 at every step on one rank, with Adam, a schedule, and clipping by the norm of the producing step."""
    case = Case(stage, 1, optimizer=torch.optim.AdamW, steps=6, param_dtype=dtype)
    model, optimizer = worlds.sharded(case, offload=HostOffload(delay_after=2))
    plain = worlds.gpt()
    masters = [torch.nn.Parameter(param.detach().clone()) for param in plain.parameters()]
    plain.to(dtype)
    inner = torch.optim.AdamW(masters if dtype else plain.parameters())
    queue = Queue(inner, 2)
    for step in range(case.steps):
        for each in (optimizer, inner):
            each.param_groups[0]["lr"] = 1e-2 / (step + 1)
        loss = case.loss(model, step, 0, 0)
        loss.backward()
        if clip:
            model.zero.scale_gradients(clip / (step + 1))
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 7.0  # a scheduler that runs while the update does
        optimizer.zero_grad()
        plain.zero_grad()
        expected = case.loss(plain, step, 0, 0)
        expected.backward()
        for param, master in zip(plain.parameters(), inner.param_groups[0]["params"], strict=True):
            master.grad = param.grad.to(master.dtype)
            if clip:
                master.grad = master.grad * (clip / (step + 1))
        queue.step()
        if dtype:
            with torch.no_grad():
                for param, master in zip(plain.parameters(), masters, strict=True):
                    param.copy_(master)
        assert loss.item() == expected.item(), f"stage {stage}, step {step}"
    queue.apply(queue.kept)
    state = state_dict(model)  # settles
    for (name, param), master in zip(plain.named_parameters(), inner.param_groups[0]["params"], strict=True):
        assert torch.equal(state[name], master.to(param.dtype)), f"stage {stage}: {name} after settle"


@pytest.mark.parametrize("stage", (1, 2, 3))
def test_the_delayed_update_equals_a_queue_of_one(stage):
    for dtype, clip in ((None, 0.0), (None, 0.5), (BF16, 0.5)):
        late_and_queue(stage, dtype, clip)


def over_a_slow_link(stage: int, options: dict) -> bool:
    case = Case(stage, steps=2, bucket_size=300, param_dtype=BF16)
    ours = [step[2] for step in steps(case, HostOffload(rate=2e5, **options), True)]
    plain = [step[2] for step in steps(case, None, False)]
    return all(torch.equal(mine[name], other[name]) for mine, other in zip(ours, plain, strict=True) for name in other)


def test_a_slow_link_changes_no_bit(pool):
    for stage, options in ((1, {}), (3, {}), (3, {"parameters": True})):
        assert all(pool(2).run(over_a_slow_link, stage, options)), (stage, options)


def late(rate: float | None) -> dict[str, torch.Tensor]:
    """The state after steps whose gradients are on their way while the next ones are made."""
    case = Case(2, bucket_size=300, param_dtype=BF16)
    model, optimizer = worlds.sharded(case, offload=HostOffload(rate=rate, delay_after=1))
    for step in range(4):
        with model.zero.backward_options(is_last=True):
            case.loss(model, step, 0, model.zero.comm.rank).backward()
        optimizer.step()
        optimizer.zero_grad()
    return state_dict(model)


def test_a_gradient_that_is_on_its_way_is_not_overwritten_by_the_next(pool):
    for slow, fast in zip(pool(2).run(late, 4e5), pool(2).run(late, None), strict=True):
        assert all(torch.equal(value, fast[name]) for name, value in slow.items())


def late_in_fp16(batches: list[int], spoiled: int | None = None) -> tuple[int, dict[str, torch.Tensor]]:
    """Skipped steps, and the state after these batches, each update one step late; the loss of one of them is infinite."""
    config = {"train_batch_size": 2, "fp16": {"enabled": True, "initial_scale_power": 12, "hysteresis": 1},
              "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    engine, *_ = initialize(worlds.gpt(), lambda params: torch.optim.SGD(params, lr=0.1), config=config, delay_after=1)
    for number in batches:
        loss = worlds.gpt_loss(engine, number, 0, 0)
        engine.backward(loss * float("inf") if number == spoiled else loss)
        engine.step()
    return engine.skipped_steps, engine.state_dict()


def test_a_delayed_update_and_a_step_that_is_skipped():
    """The skipped step is never applied, and the gradient that waits meanwhile keeps the loss scale that made it."""
    skipped, found = late_in_fp16([0, 1, 2, 3, 4], spoiled=2)
    never, expected = late_in_fp16([0, 1, 3, 4])
    assert (skipped, never) == (1, 0)
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


class Entry(OneHot):
    """Its backward needs its weights."""

    def forward(self, k: int):
        return self.x[k] + 0 * self.x.square().sum()


class Hot(torch.nn.Module):
    """The same in a unit."""

    def __init__(self):
        super().__init__()
        self.hot = torch.nn.ModuleList([torch.nn.Sequential(Entry())])  # a unit has no parameters of its own

    def forward(self, k: int):
        return self.hot[0](k)


def two_late_steps(stage: int, parameters: bool, kind=torch.optim.SGD):
    """A model of which x[0] and x[1] have moved by -0.5, the last one not yet, and its optimizer."""
    model = Hot()
    model, optimizer = shard(model, kind(model.parameters(), lr=0.5), stage,
                             offload=HostOffload(delay_after=0, parameters=parameters))
    for k in range(2):
        model(k).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def evaluations(stage: int, parameters: bool) -> dict[str, float]:
    """What forwards between the steps see of x[1]."""
    found = {}
    for who in ("training", "without gradients", "in eval mode", "a unit"):
        model, optimizer = two_late_steps(stage, parameters)
        model.train(who != "in eval mode")
        with torch.set_grad_enabled(who in ("training", "in eval mode")):
            found[who] = (model.hot[0] if who == "a unit" else model)(1).item()
    model, optimizer = two_late_steps(stage, parameters)
    loss = model(2)
    with torch.no_grad():
        found["before the backward of another"] = model(1).item()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        found["after it"] = model(2).item()
    return found


@pytest.mark.parametrize("stage, parameters", ((1, False), (3, False), (3, True)))
def test_an_evaluation_sees_all_steps(pool, stage, parameters):
    """But the weights of a forward with gradients stay until its backward."""
    for found in pool(2).run(evaluations, stage, parameters):
        assert found == {"training": 0.0, "without gradients": -0.5, "in eval mode": -0.5, "a unit": -0.5,
                         "before the backward of another": 0.0, "after it": -0.5}


def gathered_late(stage: int, parameters: bool) -> tuple[list[list[float]], str]:
    """x as `gathered` shows it; after a write; after the next two steps, of which one is late. What an older backward raises."""
    model, optimizer = two_late_steps(stage, parameters)
    with gathered(model.hot[0]):
        found = [model.hot[0][0].x.tolist()]
    model(2).backward()
    optimizer.step()
    optimizer.zero_grad()
    with gathered(model.hot[0], write=True), torch.no_grad():
        model.hot[0][0].x.fill_(5.0)
    found.append(state_dict(model)["hot.0.0.x"].tolist())
    for k in (3, 4):
        model(k).backward()
        optimizer.step()
        optimizer.zero_grad()
    older = model(5)
    found.append(state_dict(model)["hot.0.0.x"].tolist())
    try:
        older.backward()
    except RuntimeError as error:
        return found, str(error)
    return found, ""


def test_gathered_under_a_delay_shows_all_steps_and_keeps_what_is_written(pool):
    for stage, parameters in ((1, False), (2, False), (3, False), (3, True)):
        for found, said in pool(2).run(gathered_late, stage, parameters):
            assert found == [[-0.5] * 2 + [0.0] * 6, [5.0] * 8, [5.0] * 3 + [4.5] * 2 + [5.0] * 3], (stage, parameters)
            assert "modified by an inplace operation" in said, "the weights of that forward are gone"


def loads_late(folder: str) -> list[float]:
    """x after weights were loaded while an update was under way, and after two more steps."""
    save_file({"hot.0.0.x": torch.full((8,), 5.0)}, f"{folder}/model.safetensors")
    model, optimizer = two_late_steps(2, False, Sleepy)
    load_safetensors(model, folder)
    for k in (3, 4):
        model(k).backward()
        optimizer.step()
        optimizer.zero_grad()
    return state_dict(model)["hot.0.0.x"].tolist()


def test_weights_that_are_loaded_under_a_delay_stay(tmp_path):
    assert loads_late(str(tmp_path)) == [5.0] * 3 + [4.5] * 2 + [5.0] * 3


def writes_in_a_forward() -> str:
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), Clamped(6, 6))
    model, optimizer = shard(model, torch.optim.SGD(model.parameters(), lr=0.1), 2, offload=HostOffload(delay_after=0))
    try:
        for _ in range(3):
            model(torch.ones(2, 6)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    except BadInput as error:
        return str(error)


def test_a_forward_that_writes_its_weights_cannot_be_delayed(pool):
    assert all("written into parameters of 'root'" in said and "without a delay" in said for said in pool(2).run(writes_in_a_forward))


# -- checkpoints, the engine, writes ---------------------------------------------------------------------------------

SETTINGS = ((2, {"ratio": 0.3}), (1, {"rate": 1e9, "folder": "disk"}), (3, {"parameters": True}), (3, {"parameters": True, "folder": "disk"}),
             (2, {"delay_after": 1}), (3, None))


def goes_on(folder: str, dtype) -> list[bool]:
    """Saved after two steps under each setting, loaded under the next: is the third step that of the unbroken run?"""
    equal = []
    plain = [step[2] for step in steps(Case(2, steps=5, param_dtype=dtype), None, False)]
    before: dict[str, torch.Tensor] = {}
    for number, (stage, offload) in enumerate(SETTINGS):
        case = Case(stage, param_dtype=dtype)
        if offload is not None and "folder" in offload:
            offload = offload | {"folder": f"{folder}/disk"}
        model, optimizer = worlds.sharded(case, offload=None if offload is None else offload_with(offload))
        late = model.zero.offload is not None and model.zero.offload.delays
        if number:
            load_checkpoint(model, optimizer, f"{folder}/{number}")
            assert late or number == 5 or all(torch.equal(value, before[name]) for name, value in state_dict(model).items())
            if offload is not None:
                held = model.zero.memory(optimizer)
                assert (held["optimizer_bytes"] == 0) == ("ratio" not in offload)
                assert held["host_bytes"] == model.zero.offload.tier.bytes
        for step in range(2 if number == 0 else 1):
            case.loss(model, step + number + (number > 0), 0, model.zero.comm.rank).backward()
            optimizer.step()
            optimizer.zero_grad()
        before = state_dict(model)
        if number < 4:
            equal.append(all(torch.equal(value, plain[number + 1][name]) for name, value in before.items()))
        save_checkpoint(model, optimizer, f"{folder}/{number + 1}")
    return equal


def test_a_checkpoint_travels_with_offload_and_without(pool, tmp_path):
    for dtype in (None, BF16):
        assert pool(2).run(goes_on, str(tmp_path / str(dtype)), dtype) == [[True] * 4] * 2


def a_save_in_between(folder: str) -> list[list[float]]:
    """What a delayed run saves, and what its model holds then, and what a run that loads it holds."""
    model = OneHot()
    model, optimizer = shard(model, torch.optim.SGD(model.parameters(), lr=0.5), 2, offload=HostOffload(delay_after=0))
    for k in range(3):
        model(k).backward()
        optimizer.step()
        optimizer.zero_grad()
    save_checkpoint(model, optimizer, folder)
    other = OneHot()
    other, _ = shard(other, torch.optim.SGD(other.parameters(), lr=0.5), 1)
    load_checkpoint(other, None, folder)
    return [model.x.nonzero().flatten().tolist(), other.x.nonzero().flatten().tolist()]


def test_a_save_has_the_update_that_was_delayed(pool, tmp_path):
    assert pool(2).run(a_save_in_between, str(tmp_path / "late")) == [[[0, 1, 2]] * 2] * 2


def by_config(section: dict, precision: dict) -> tuple:
    """Losses, norms and parameters of an engine that clips, with accumulation; bytes over the link."""
    torch.manual_seed(0)
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "gradient_clipping": 0.05,
              "zero_optimization": section} | precision
    engine, *_ = initialize(worlds.gpt(), lambda params: torch.optim.Adam(params, lr=1e-3), config=config)
    losses, norms = [], []
    for step in range(4):
        for micro in range(2):
            loss = worlds.gpt_loss(engine, step, micro, engine.global_rank)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        norms.append(engine.get_global_grad_norm())
    return losses, norms, engine.state_dict(), engine.skipped_steps, engine.communication().get("link_bytes")


FP16 = {"fp16": {"enabled": True, "initial_scale_power": 24, "hysteresis": 1}}


def test_the_config_offloads(pool, tmp_path):
    """fp16 begins with a loss scale at which gradients overflow: skipped steps move no parameters."""
    own, disk = pool(2).run(elements_of, 2)[0], {"device": "nvme", "nvme_path": str(tmp_path)}
    for stage, precision, offload in ((1, {}, {"device": "cpu", "ratio": 0.3}), (1, FP16, {"device": "cpu"}), (3, {}, {"device": "cpu"}),
                                      (3, FP16, disk)):
        plain = pool(2).run(by_config, {"stage": stage}, precision)
        found = pool(2).run(by_config, {"stage": stage, "offload_optimizer": offload}, precision)
        for rank, (ours, other) in enumerate(zip(found, plain, strict=True)):
            assert ours[:2] == other[:2] and ours[3] == other[3], (stage, precision, rank)
            assert all(torch.equal(value, other[2][name]) for name, value in ours[2].items()), (stage, precision, rank)
            share = int(Fraction(str(offload.get("ratio", 1))) * own[rank]) * (2 if precision else 4)
            assert ours[4] == {"down": 4 * share, "up": (4 - ours[3]) * share}, (stage, precision, rank)


def test_the_config_keeps_checkpoints_on_the_host(pool):
    """Each block's input goes down and up once a micro-batch, beside what the optimizer's offload moves."""
    section = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    plain, found = (pool(2).run(by_config, section, {"activation_checkpointing": {"cpu_checkpointing": here}}) for here in (False, True))
    inputs = 8 * 2 * worlds.batch(0, 0, 0)[0].numel() * 8 * 4  # of 8 micro-batches and 2 blocks, of width 8, in fp32
    for ours, other in zip(found, plain, strict=True):
        assert ours[:2] == other[:2] and all(torch.equal(value, other[2][name]) for name, value in ours[2].items())
        assert ours[4] == {verb: nbytes + inputs for verb, nbytes in other[4].items()}


def written(stage: int, options: dict) -> list[float]:
    """A bf16 model of which a parameter is set between two steps: its value after a step of rate 0."""
    model = worlds.gpt()
    model, optimizer = shard(model, torch.optim.SGD(model.parameters(), lr=0.0), stage, param_dtype=BF16, offload=offload_with(options))
    name, param = next(iter(model.named_parameters()))
    with gathered(param, write=True), torch.no_grad():
        param.fill_(0.25)
    worlds.gpt_loss(model, 0, 0, 0).backward()
    optimizer.step()
    return state_dict(model)[name].unique().tolist()


class Clamped(torch.nn.Linear):
    """Writes its weight in its forward."""

    def forward(self, x):
        with torch.no_grad():
            self.weight.clamp_(max=0.25)
        return super().forward(x)


def clamped(dtype, options: dict) -> bool:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), Clamped(6, 6), torch.nn.Linear(6, 1))
    with torch.no_grad():
        model[1].weight.fill_(0.5)
    model, optimizer = shard(model, torch.optim.SGD(model.parameters(), lr=0.0), 3, units=["1"], param_dtype=dtype,
                             offload=offload_with(options | {"parameters": True}))
    for _ in range(2):
        model(torch.ones(2, 6, dtype=dtype)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return bool((state_dict(model)["1.weight"] == 0.25).all())


def test_what_a_forward_writes_reaches_parameters_on_the_host_and_on_the_disk(pool, tmp_path):
    for dtype, options in product((None, BF16), ({}, {"folder": str(tmp_path)})):
        assert all(pool(2).run(clamped, dtype, options)), (dtype, options)


def test_what_offload_cannot_do_is_refused():
    for stage, options, words in ((0, {}, "needs stage 1, 2 or 3"), (2, {"parameters": True}, "at stage 3 only")):
        with pytest.raises(BadInput, match=words):
            worlds.sharded(Case(stage, 1), offload=HostOffload(**options))
    with pytest.raises(BadInput, match="'step', which is not called with offload"):
        worlds.sharded(Case(2, 1), offload=HostOffload(), ops={"step": print})
    with pytest.raises(BadInput, match="delay_after=3, and zero_optimization.offload_optimizer.device is 'none'"):
        initialize(worlds.gpt(), worlds.adamw, config={"train_batch_size": 1}, delay_after=3)
    for options, words in (({"ratio": 1.5}, "from 0, nothing, to 1"), ({"ratio": 0.5, "parameters": True}, "parameters needs all states"),
                           ({"ratio": 0.5, "delay_after": 2}, "delay_after needs all states")):
        with pytest.raises(BadInput, match=words):
            HostOffload(**options)
    offload = HostOffload()
    worlds.sharded(Case(2, 1), offload=offload)
    with pytest.raises(BadInput, match="one for each call"):
        worlds.sharded(Case(2, 1), offload=offload)


def test_what_is_written_into_the_model_reaches_the_host(pool, tmp_path):
    for stage, options in ((2, {"ratio": 0.5}), (3, {}), (2, {"folder": str(tmp_path)}), (3, {"folder": str(tmp_path), "parameters": True})):
        assert pool(2).run(written, stage, options) == [[0.25]] * 2


# -- overlap ---------------------------------------------------------------------------------------------------------

class Slow(torch.autograd.Function):
    """Its backward takes a while, in which the processor is free."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(BACKWARD_SECONDS)
        return gradient


class SlowBlock(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((BLOCK_ELEMENTS,), 1e-3))

    def forward(self, x):
        return Slow.apply(x + (x * self.weight[:1] + self.weight.sum()))


BLOCKS, BLOCK_ELEMENTS, BACKWARD_SECONDS = 12, 2**16, 0.03
RATE = BLOCK_ELEMENTS * 4 / BACKWARD_SECONDS  # bytes per second: a block's gradient goes down in a block's backward


def seconds_to_the_gradient(is_last: bool | None) -> tuple[float, dict[str, list[str]]]:
    """From the backward's beginning to the moment at which all gradients are on the host; the units that went down, and up."""
    model = torch.nn.Sequential(torch.nn.ModuleList(SlowBlock() for _ in range(BLOCKS)))
    model.forward = lambda x: [x := block(x) for block in model[0]][-1]
    offload = HostOffload(rate=RATE)
    model, optimizer = shard(model, torch.optim.SGD(model.parameters(), lr=0.0), 2, offload=offload)
    loss = model(torch.ones(1, requires_grad=True)).sum()
    begun = time.perf_counter()
    with model.zero.backward_options(is_last=is_last):
        loss.backward()
    for flat in model.zero.flats:
        flat.send_down()
    for flat in model.zero.flats:
        flat.host_gradient()
    took = time.perf_counter() - begun
    optimizer.step()
    events = sorted(offload.link.recorder.events, key=lambda event: event.start)
    return took, {verb: [event.unit for event in events if event.verb == verb] for verb in ("down", "up")}


def test_gradients_go_down_while_the_backward_computes():
    """At least 80 % of what overlap can gain, the best of three: all copies but the last can hide behind a backward."""
    bound = (BLOCKS - 1) * BACKWARD_SECONDS
    gains = []
    for _ in range(3):
        (serial, _), (overlapped, events) = seconds_to_the_gradient(None), seconds_to_the_gradient(True)
        gains.append(serial - overlapped)
        if gains[-1] >= 0.8 * bound:
            break
    assert max(gains) >= 0.8 * bound, f"{gains} of {bound} s"
    assert len(events["down"]) == BLOCKS
    assert events["up"] == events["down"], "what lands first is stepped first: it goes up while others still come down"
