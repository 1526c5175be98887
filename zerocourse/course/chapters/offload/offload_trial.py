"""A GPT-2 whose optimizer may lie on the host: what the device holds, what the link carries, how long a step takes.

On a CPU the device is simulated: its memory is what a ledger counts outside of the host's tier, under a budget, and the
link is a thread that moves pieces at a rate and sleeps in between (`offload.host_link`).
"""

import textwrap
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch

from ....comm.device_clock import finished
from ....data.text import TextDataset, read_tokens
from ....errors import OutOfMemory
from ....init.deferred import deferred_init
from ....measure.ledger import Ledger
from ....models.gpt2 import GPT, GPTConfig
from ....offload import HostOffload
from ....offload.offloaded_buffer import OffloadedBuffer
from ....zero.extras import shard
from ....zero.whole.consolidate import state_dict

MODEL = GPTConfig(4, 4, 256, block_size=32, vocab_size=256)  # 3.2 million parameters
SMALL = GPTConfig(2, 2, 32, block_size=16, vocab_size=256)
BF16 = torch.bfloat16


@dataclass
class OffloadRun:
    """One run on one rank.   failed: the sentence of its OutOfMemory; what comes after it was not measured then.

    peak: of the device, in bytes.   device, host: bytes by kind after the last step.   link: bytes of the last step, each way.
    events: of the shortest step after the first.   seconds: of each step after the first.   losses: of all steps.
    """

    failed: str = ""
    peak: int = 0
    device: dict[str, int] = field(default_factory=dict)
    host: dict[str, int] = field(default_factory=dict)
    link: dict[str, int] = field(default_factory=dict)
    events: list[dict] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


def train(stage: int = 2, offload: Mapping | None = None, budget: int | None = None, steps: int = 3, samples: int = 1,
          accumulation: int = 1, config: GPTConfig = MODEL, watched: bool = True,
          early: bool = True, **options) -> OffloadRun:
    """A few steps of AdamW in bf16 on random tokens. Collective.

    offload: options of `HostOffload`; None: everything stays on the device.   budget: of the device, in bytes.
    early: gradients go down during the last backward of a step, and else at the step.
    watched: count its memory, which makes it slower; False where times are compared.   options: of `shard`.
    """
    torch.manual_seed(0)
    with deferred_init():
        model, run = GPT(config), OffloadRun()
    host = None if offload is None else HostOffload(**offload)
    ledger = Ledger(budget=budget) if watched else None
    try:
        with ledger or nullcontext():
            model, optimizer = shard(model, torch.optim.AdamW(model.parameters(), fused=True), stage, offload=host,
                                     param_dtype=BF16, **options)
            if ledger:
                ledger.model, ledger.optimizer = model, optimizer
            zero = model.zero
            draw = torch.Generator().manual_seed(zero.comm.rank)
            for step in range(steps):
                zero.comm.all_reduce(torch.zeros(1))  # so that the ranks begin together
                before, begun = dict(host.link.bytes) if host else {}, finished(zero.device)
                watching = zero.meter.watched_by(ledger) if ledger and step else nullcontext()
                with watching:
                    loss = 0.0
                    for micro in range(accumulation):
                        tokens_BT = torch.randint(config.vocab_size, (samples, config.block_size), generator=draw)
                        last = micro == accumulation - 1
                        with zero.backward_options(is_last=early or None) if last else zero.no_sync():
                            part = model(tokens_BT, tokens_BT) / accumulation
                            part.backward()
                        loss += part.item()
                    optimizer.step()
                    optimizer.zero_grad()
                run.losses.append(loss)
                if step:
                    run.seconds.append(finished(zero.device) - begun)
                    if run.seconds[-1] == min(run.seconds):
                        run.events = zero.recorder.of_step(step)
                run.link = {verb: nbytes - before[verb] for verb, nbytes in host.link.bytes.items()} if host else {}
            zero.settle()
            if ledger:
                run.device, run.host = ledger.now().as_dict(), ledger.now("host").as_dict() if host else {}
    except OutOfMemory as error:
        run.failed = str(error)
    run.peak = ledger.peak if ledger else 0
    return run


# -- three bugs of DeepSpeed, planted --------------------------------------------------------------------------------

class OnlyTheFirst(OffloadedBuffer):
    """DeepSpeed#7967: with accumulation, only the first micro-batch's gradient was copied to the host."""

    def accumulate(self, reduced):
        if self.grad_shard is None:
            super().accumulate(reduced)


class OnlyTheLast(OffloadedBuffer):
    """DeepSpeed#7981: of several backwards in a step, the gradient of the last one replaced the others on the host."""

    def send_down(self):
        self.host_gradients = self.host_gradients if self.is_down else []
        super().send_down()


class AddedAfterTheSum(OffloadedBuffer):
    """DeepSpeed#7985: the last micro-batch's own gradient was added after the reduction, and not averaged over the ranks."""

    def accumulate(self, reduced):
        super().accumulate(reduced if self.grad_shard is None else reduced * self.divisor)


def text_losses(offload: Mapping | None = None, steps: int = 40, lr: float = 3e-3, faulty: type | None = None,
                each_says_last: bool = False, gradient_at: int = 0) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses on Python's own text, in fp32 with two micro-batches a step, and this rank's gradients of one step. Collective.

    faulty: a buffer with a bug, in place of the right one.   each_says_last: tell the stage of every backward that it is the
    last one of its step, as somebody does who calls backward() twice before a step.   Returns the mean losses over all
    ranks, and name of the buffer → gradient of step number `gradient_at`, in front of the optimizer.
    """
    torch.manual_seed(0)
    model = GPT(SMALL)
    host = None if offload is None else HostOffload(**offload)
    if faulty:
        host.buffer = lambda *args, **kwargs: faulty(host, *args, **kwargs)
    model, optimizer = shard(model, torch.optim.AdamW(model.parameters(), lr=lr), 2, **{"offload": host} if host else {})
    zero, losses, gradients = model.zero, [], {}
    text, ranks = TextDataset(read_tokens(textwrap.__file__), SMALL.block_size), zero.comm.world_size
    order = torch.randperm(len(text), generator=torch.Generator().manual_seed(0)).tolist()
    for step in range(steps):
        mean = torch.zeros(1)
        for micro in range(2):
            first = (((step * 2 + micro) * ranks + zero.comm.rank) * 4) % (len(text) - 4)
            x_BT, y_BT = map(torch.stack, zip(*(text[each] for each in order[first:first + 4]), strict=True))
            with zero.backward_options(is_last=True) if micro or each_says_last else zero.no_sync():
                loss = model(x_BT, y_BT) / 2
                loss.backward()
            mean += loss.detach() / ranks
        if step == gradient_at:
            gradients = {flat.name: (flat.host_gradient() if host else flat.grad_shard)[:flat.layout.real(zero.comm.rank)].clone()
                         for flat in zero.flats}
        optimizer.step()
        optimizer.zero_grad()
        zero.comm.all_reduce(mean)
        losses.append(mean.item())
    return losses, gradients


class OneHot(torch.nn.Module):
    """The loss of batch k is x[k], so its gradient is 1 at k, and 0 elsewhere."""

    def __init__(self, size: int = 6):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(size))

    def forward(self, k: int) -> torch.Tensor:
        return self.x[k]


def moved_entries(delay_after: int | None, steps: int = 5) -> list[list[int]]:
    """After each step, and at last after `settle`: which entries of x have moved."""
    model = OneHot(steps)
    model, optimizer = shard(model, torch.optim.SGD(model.parameters(), lr=0.5), 1, offload=HostOffload(delay_after=delay_after))
    seen = []
    for k in range(steps):
        model(k).backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(model.x.detach().nonzero().flatten().tolist())
    return [*seen, state_dict(model)["x"].nonzero().flatten().tolist()]
