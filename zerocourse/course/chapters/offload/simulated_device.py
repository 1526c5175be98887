"""A device, a link and a host that each take a set time and cost no core, so that what waits for what can be seen.

Forward, backward and update of a block sleep, and so does the link. What they compute is next to nothing. All else is
real: the stage, the offload, its threads, and what waits for what.
"""

import time
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from ....offload import HostOffload
from ....offload.offloaded_buffer import OffloadedBuffer
from ....zero.extras import shard

HALF = torch.bfloat16


@dataclass(frozen=True)
class SleepingMachine:
    """A device, a link and a host. blocks: of the model.   elements: parameters of each.

    Seconds for each block: forward and backward of a micro-batch, its gradient's way down in half precision, its
    update on the host, its parameters' way up.   full: gradients go down in fp32, and take twice as long.
    """

    blocks: int = 8
    elements: int = 1 << 16
    forward: float = 0.005
    backward: float = 0.010
    link: float = 0.003
    update: float = 0.010
    full: bool = False

    @property
    def down(self) -> float:
        return self.link * (1 + self.full)

    @property
    def rate(self) -> float:
        """Bytes per second each way."""
        return 2 * self.elements / self.link

    @property
    def compute(self) -> float:
        """Seconds that the device computes in a micro-batch."""
        return self.blocks * (self.forward + self.backward)

    def predicted(self, mode: str) -> float:
        """Seconds of a step with one micro-batch, in one of `MODES`.

        What goes through several hands one after the other, n blocks of it, is over after one block's time in each hand
        and n - 1 times that of the slowest.
        """
        hands = {"at the step": (self.down, self.update, self.link), "in the backward": (self.update, self.link),
                 "one step late": (self.link,)}[mode]
        after = sum(hands) + (self.blocks - 1) * max(hands)
        if mode != "in the backward":
            return self.compute + after
        late = self.landed(mode) + self.update + self.link  # the last gradient, if the link is slower than the backward
        return max(self.compute + after, late)

    def landed(self, mode: str) -> float:
        """Seconds until the last gradient is on the host."""
        if mode == "at the step":
            return self.compute + self.blocks * self.down
        first = self.blocks * self.forward + self.backward
        return first + (self.blocks - 1) * max(self.backward, self.down) + self.down


MODES = {"at the step": {"early": False}, "in the backward": {}, "one step late": {"delay_after": 0}}
"""When gradients go down and updates are made: the arguments of `run`."""


class Sleeping(torch.autograd.Function):
    """The identity; forward and backward take a while, in which the processor is free."""

    @staticmethod
    def forward(x: Tensor, machine: SleepingMachine) -> Tensor:
        time.sleep(machine.forward)
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.machine = inputs[1]

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.machine.backward)
        return gradient, None


class SleepingBlock(nn.Module):
    def __init__(self, machine: SleepingMachine):
        super().__init__()
        self.machine, self.weight = machine, nn.Parameter(torch.full((machine.elements,), 1e-3))

    def forward(self, x: Tensor) -> Tensor:
        return Sleeping.apply(x + self.weight[:1], self.machine)


class SleepingModel(nn.Module):
    def __init__(self, machine: SleepingMachine):
        super().__init__()
        self.h = nn.ModuleList(SleepingBlock(machine) for _ in range(machine.blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.h:
            x = block(x)
        return x.sum()


class SlowHost(HostOffload):
    """A host whose update takes a set time for each buffer, in which the processor is free."""

    def __init__(self, seconds: float, **options):
        super().__init__(**options)
        self.seconds = seconds

    def adopt_states(self, optimizer: torch.optim.Optimizer, flat: OffloadedBuffer) -> None:
        """What follows each buffer's update, also where that is delayed."""
        time.sleep(self.seconds)
        super().adopt_states(optimizer, flat)


@dataclass(frozen=True)
class Timed:
    """The shortest step of some, because what else the computer does can only add to a time that is slept.

    landed: seconds from the step's beginning until the last gradient was on the host.   events: of what began in the step.
    """

    seconds: float
    landed: float
    events: list[dict]


def run(machine: SleepingMachine, early: bool = True, accumulation: int = 1, rounds: int = 3, offloaded: bool = True,
        **offload) -> Timed:
    """Some steps at stage 2 on one rank.

    early: gradients go down while the backward computes; else at the step.   offload: more of `HostOffload`.
    offloaded: False for a device that has room for everything, whose update takes next to no time.
    """
    host = SlowHost(machine.update, rate=machine.rate, **offload) if offloaded else None
    model = SleepingModel(machine)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    model, optimizer = shard(model, optimizer, 2, offload=host, param_dtype=HALF,
                             accumulate_dtype=torch.float32 if machine.full else None)
    recorder, steps = model.zero.recorder, []
    recorder.keep = rounds + 2  # a delayed step's copies are noted in the step after
    x = torch.ones(1, dtype=HALF, requires_grad=True)
    for number in range(rounds + 1):  # the first one also makes the optimizer's states
        begin = time.perf_counter()
        for micro in range(accumulation):
            is_last = micro == accumulation - 1
            with model.zero.backward_options(is_last=True if early else None) if is_last else model.zero.no_sync():
                model(x).backward()
        optimizer.step()
        if number:
            steps.append((time.perf_counter() - begin, begin))
        optimizer.zero_grad()
    model.zero.settle()
    seconds, begin = min(steps)
    events = [asdict(event) for event in recorder.events if begin <= event.start < begin + seconds]
    landed = max((event["end"] for event in events if event["verb"] == "down"), default=begin) - begin
    return Timed(seconds, landed, events)
