"""Offload over a link whose copies are as late as a GPU's may be (`late_link`): no number changes, nothing is used or overwritten
too early, memory is given back, and the host waits for nothing that it does not need."""

import time
from functools import partial
from itertools import product

import pytest
import torch
import worlds
from late_link import LateLink
from test_offload import offload_with
from worlds import Case

from zerocourse import shard, state_dict
from zerocourse.activations.checkpointing import checkpoint_blocks
from zerocourse.comm.simulated import SimulatedComm
from zerocourse.measure.ledger import Ledger
from zerocourse.models.gpt2 import GPT, GPTConfig
from zerocourse.offload import DiskOffload, HostActivations, HostLink, HostOffload

BF16 = torch.bfloat16


# -- what the link itself finds --------------------------------------------------------------------------------------

def test_a_late_link_finds_what_is_too_early():
    """On the way down and up: a result that is used, a source that is overwritten, memory that is given back."""
    link = LateLink()
    host, device = torch.zeros(4), torch.ones(4)
    transfer = link.down(host, device, "a")
    assert host.isnan().all()
    transfer.release()
    assert host.isnan().all(), "that the computation waits is nothing to the host"
    device.zero_()
    transfer.wait()
    assert host.tolist() == [1.0] * 4
    transfer = link.up(device, host, "b")
    assert device.isnan().all()
    transfer.wait()
    assert device.tolist() == [1.0] * 4 and not transfer.done
    transfer.wait_for_source()
    host.zero_()
    link.check()

    def overwritten_down(link, host, device):
        transfer = link.down(host, device, "c")
        device.zero_()
        transfer.wait()

    def overwritten_up(link, host, device):
        link.up(device, host, "c").wait()
        host.add_(1)
        link.check()

    def given_back(link, host, device):
        transfer = link.down(host, torch.ones(4), "c")
        transfer.source = None  # as if nobody kept it
        transfer.wait()

    for wrong, words in ((overwritten_down, "c was overwritten while it went down"), (overwritten_up, "c was overwritten while it went up"),
                         (given_back, "the memory of c was given back while it went down")):
        link = LateLink()
        with pytest.raises(AssertionError, match=words):
            wrong(link, torch.zeros(4), torch.ones(4))
        link.cuda.errors.clear()  # or the end of the link finds it again


# -- trainings -------------------------------------------------------------------------------------------------------

def trained(stage: int, dtype, options: dict, link: HostLink, steps: int = 4) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights, with two micro-batches a step, and checkpoints that go over the same link. Half precision clips: a step
    that waits for its factor finds that what was started before is over, too."""
    packing = HostActivations()

    def make():
        model = worlds.gpt()
        checkpoint_blocks(model, packing=packing)
        return model

    case, losses = Case(stage, make=make, param_dtype=dtype), []
    model, optimizer = worlds.sharded(case, offload=offload_with(options | {"link": link}))
    packing.attach(model.zero)
    for step, micro in product(range(steps), range(2)):
        with model.zero.backward_options(is_last=True) if micro else model.zero.no_sync():
            loss = case.loss(model, step, micro, model.zero.comm.rank) / 2
            loss.backward()
        losses.append(loss.item())
        if micro:
            if dtype is not None:
                model.zero.clip_grad_norm_(0.05)
            optimizer.step()
            optimizer.zero_grad()
    return losses, state_dict(model)


def late_equals_prompt(stage: int, ways: list[dict]) -> None:
    """Under each of these options, in fp32 and bf16."""
    for dtype, delays in product((None, BF16), (False, True)):
        prompt = trained(stage, dtype, {"delay_after": 1} if delays else {}, HostLink())
        for options in [way for way in ways if ("delay_after" in way) == delays]:
            link, what = LateLink(), f"stage {stage}, {dtype}, {options}"
            losses, state = trained(stage, dtype, options, link)
            assert losses == prompt[0], f"{what}: losses"
            worlds.check_same_state(state, prompt[1], what)
            link.check()


@pytest.mark.parametrize("stage", (1, 2, 3))
def test_a_late_link_changes_no_bit_under_nccls_rules(strict_pool, stage, tmp_path):
    disk = {"folder": str(tmp_path), "buffers": 2, "poison": True}
    ways = [{}, {"ratio": 0.3}, {"delay_after": 1}, disk]
    if stage == 3:
        ways += [{"parameters": True}, {"parameters": True, "delay_after": 1}, disk | {"parameters": True}]
    strict_pool(2).run(late_equals_prompt, stage, ways)


# -- memory ----------------------------------------------------------------------------------------------------------

def gradients_held(stage: int, link: HostLink) -> tuple[int, int, int]:
    """Bytes on the device that are no parameters: after a backward, and at its peak. Those of a block's gradient."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(n_layer=8, n_head=2, n_embd=16, block_size=8, vocab_size=32))
    model, optimizer = shard(model, torch.optim.AdamW(model.parameters()), stage, comm=SimulatedComm(0, 2), offload=HostOffload(link=link))
    tokens = torch.zeros(1, 8, dtype=torch.long)
    with Ledger(model, optimizer) as ledger:
        loss = model(tokens, tokens)
        ledger.reset_peak()
        with model.zero.backward_options(is_last=True):
            loss.backward()
        del loss
        flat = max(model.zero.flats, key=lambda flat: flat.layout.padded)
        return ledger.now().gradients + ledger.now().rest, ledger.peak, 4 * (flat.layout.padded if stage == 1 else flat.shard.numel())


@pytest.mark.parametrize("stage", (1, 2, 3))
def test_gradients_leave_the_device_while_the_backward_goes_on(stage):
    """All but those of the last two copies, which the host has not waited for."""
    (held, peak, block), (prompt, least, _) = (gradients_held(stage, link) for link in (LateLink(), HostLink()))
    assert held - prompt <= 2 * block and peak - least <= 2 * block, (held, prompt, peak, least, block)


# -- who waits -------------------------------------------------------------------------------------------------------

def test_a_delayed_step_stops_nobody_but_its_own_thread():
    """That waits for each gradient and, once, for the factor by which clipping multiplies all of them."""
    case, link = Case(2, 1), LateLink()
    model, optimizer = worlds.sharded(case, offload=HostOffload(link=link, delay_after=0))
    for step in range(3):
        with model.zero.backward_options(is_last=True):
            case.loss(model, step, 0, 0).backward()
        model.zero.clip_grad_norm_(0.05)
        optimizer.step()
        optimizer.zero_grad()
    model.zero.settle()
    names = ["gradient factors", *(flat.name for flat in model.zero.flats[::-1])]
    late = [name for thread, name in link.cuda.host_waits if thread == "delayed update" and name in names]
    assert [name for name in late if name == names[0]] == names[:1] * 3 and len(late) <= 3 * len(names)
    assert all(thread == "delayed update" for thread, _ in link.cuda.host_waits), link.cuda.host_waits
    assert link.bytes["down"] == 3 * 4 * (sum(flat.real for flat in model.zero.flats) + len(model.zero.flats))


def test_activations_go_down_and_come_up_without_a_wait_of_the_host():
    """Two at most are on their way down, and one comes up ahead of the block that computes."""
    link, going, model = LateLink(), [], worlds.gpt(n_layer=6)
    down = link.down
    link.down = lambda *args: going.append(down(*args)) or most.append(sum(each.source is not None for each in going)) or going[-1]
    most: list[int] = []
    checkpoint_blocks(model, packing=HostActivations(link=link))
    case = Case(make=lambda: model)
    case.loss(model, 0, 0, 0).backward()
    plain = worlds.gpt(n_layer=6)
    checkpoint_blocks(plain)
    case.loss(plain, 0, 0, 0).backward()
    for param, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(param.grad, other.grad)
    assert not link.cuda.host_waits and len(going) >= 6 and max(most) <= 2
    assert link.bytes["up"] == link.bytes["down"] == sum(each.nbytes for each in going), "each once"
    packing = HostActivations(link=link)
    packed = [packing.pack(torch.full((4,), float(number))) for number in range(2)]
    before = link.bytes["up"]
    assert [packing.unpack(each)[0].item() for each in packed] == [0, 1] and link.bytes["up"] - before == 2 * 16, "in any order"
    link.check()


def test_the_input_of_a_block_comes_up_while_the_one_after_it_computes():
    """At least 60 % of what overlap can gain, the best of three."""
    seconds, blocks, gains = 0.02, 6, []
    for _ in range(3):
        packing = HostActivations(rate=4 * 2**16 / seconds)
        packed = [packing.pack(torch.full((2**16,), float(number))) for number in range(blocks)]
        begun = time.perf_counter()
        for number in reversed(range(blocks)):
            assert packing.unpack(packed[number])[0] == number
            time.sleep(seconds)  # the block computes
        gains.append((2 * blocks * seconds - (time.perf_counter() - begun)) / ((blocks - 1) * seconds))
        if gains[-1] >= 0.6:
            break
    assert max(gains) >= 0.6, gains


def waits_of_a_forward(folder, buffers: int) -> list[str]:
    link = LateLink()
    case = Case(3, 1, make=partial(worlds.gpt, n_layer=6))
    model, _ = worlds.sharded(case, offload=DiskOffload(folder, parameters=True, link=link, buffers=buffers, poison=True))
    link.cuda.host_waits.clear()
    with torch.no_grad():
        case.loss(model, 0, 0, 0)
    link.check()
    return [name for _, name in link.cuda.host_waits]


def test_parameters_from_the_disk_wait_for_a_staging_buffer_and_no_sooner(tmp_path):
    assert waits_of_a_forward(tmp_path, buffers=16) == []
    few = waits_of_a_forward(tmp_path, buffers=4)
    assert few == few[:4], few
