"""ZeRO-Offload: optimizer states, master weights and the step on the host. It moves 4Ψ/N bytes a step over the link.

    offload = HostOffload(rate=200e6)
    model, optimizer = zerocourse.shard(model, optimizer, stage=2, offload=offload)

Forward and backward stay as they are. A gradient goes down as soon as it is reduced in a backward that is said to be the
last of its step (`model.zero.backward_options(is_last=True)`, which the engine says), else at the step. The step goes
buffer by buffer: while one is updated, the gradient of the next comes down, and the parameters of the last go up.

A gradient travels in the dtype in which it was added up, and becomes fp32 on the host. DeepSpeed (0.19.8) makes it fp32 on
the device first, and so moves 6Ψ/N bytes; here that happens with accumulate_dtype=torch.float32 alone. With accumulation
micro-batches are added up on the device, so that the link carries one gradient a step.

The step is that of the optimizer that was given. On a CPU take torch.optim.AdamW(fused=True), which goes through memory
once: it took about a fifth of the time of torch's other two ways, and so did DeepSpeed's CPUAdam (`bench.parts.cpu_adam`).
Source: Ren et al. 2021, arXiv 2101.06840.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import floor

from torch.optim import Optimizer

from ..comm import Chain, Comm, Handle
from ..errors import BadInput
from ..zero.buffers.buffer import FlatBuffer
from ..zero.ddp import DataParallel, StageOps
from ..zero.optimizer import is_seen_stepping
from .delayed import DelayedUpdate
from .host_link import HostLink
from .link_transfer import LinkTransfer
from .offloaded_buffer import OffloadedBuffer, send_factors_down
from .partly_offloaded import PartlyOffloadedBuffer
from .tiers import Tier


class HostOffload:
    """What `shard(offload=...)` takes; one for each call of it. Stages 1 to 3.

    budget: of the host's tier, in bytes or as "2GiB".   pin_memory: page-locked, where there is a GPU.
    ratio: the share of this rank's master weights and optimizer states that lies on the host, to the element, rounded down
        (see `partly_offloaded`); the rest stays on the device and is stepped there.
    rate: bytes per second each way, on a CPU, where the link is simulated.   link, tier: in place of new ones.
    parameters: the slices of the parameters too (stage 3): they go up for every gather, 2Ψ/N bytes each time.
    What is written into the model outside of a forward must be written inside `zerocourse.gathered(..., write=True)` at stage 3;
    below it, a write in place is seen, and goes down.
    delay_after: from this number of steps on, each update is applied one step late, while the model computes the next
        gradients (see `delayed`, also for what an evaluation sees); None: never.
    """

    disk = None  # a `DiskOffload` has one

    def __init__(self, budget: int | str | None = None, rate: float | None = None, pin_memory: bool = True,
                 parameters: bool = False, delay_after: int | None = None, link: HostLink | None = None,
                 tier: Tier | None = None, ratio: float = 1.0):
        if not 0 <= ratio <= 1:
            raise BadInput(f"the ratio of an offload is {ratio!r}: it must be a number from 0, nothing, to 1, everything")
        if ratio != 1 and (parameters or delay_after is not None):
            what = "parameters" if parameters else "delay_after"
            raise BadInput(f"an offload has {what} and the ratio {ratio:g}: {what} needs all states on the host, so leave ratio out")
        self.tier = tier or Tier("host", budget, pin=pin_memory)
        self.link = link or HostLink(rate)
        self.parameters, self.ratio = parameters, Fraction(str(ratio))  # 0.3 as it is written: the float is a little less
        self.elements = {True: 0, False: 0}  # of this rank's slices so far: of parameters that train, and of frozen ones
        self.delayed = None if delay_after is None else DelayedUpdate(self, delay_after)
        self.stage: DataParallel | None = None

    @property
    def delays(self) -> bool:
        return self.delayed is not None

    # -- what `shard` asks for ----------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"HostOffload(parameters={self.parameters}, ratio={float(self.ratio):g}, delay_after={self.delayed and self.delayed.after})"

    def check(self, stage: int, ops: dict[str, Callable]) -> None:
        """Raises BadInput for a stage at which there is nothing to offload, and for a step that would not be called."""
        if self.stage is not None:
            raise BadInput("this offload serves another model already: make one for each call of shard")
        if not stage:
            raise BadInput("offload needs stage 1, 2 or 3: at stage 0 no rank has a part of the optimizer states of its own")
        if self.parameters and stage < 3:
            raise BadInput(f"offload has parameters=True at stage {stage}: parameters can be offloaded at stage 3 only")
        for name in ("step", *(["unshard"] if self.parameters else [])):
            if name in ops:
                raise BadInput(f"ops has a function {name!r}, which is not called with offload, because that brings its own: leave "
                               "out one of the two")

    def buffer(self, *args, **kwargs) -> OffloadedBuffer:
        return (OffloadedBuffer if self.ratio == 1 else PartlyOffloadedBuffer)(self, *args, **kwargs)

    def host_elements(self, real: int, trains: bool) -> int:
        """How many of the next buffer's `real` elements go to the host, so that of all so far floor(ratio × elements) are there."""
        before = self.elements[trains]
        self.elements[trains] = now = before + real
        return floor(self.ratio * now) - floor(self.ratio * before)

    def ops(self, ops: StageOps) -> StageOps:
        """The operations of a stage, with the link between them."""
        step = self.step if self.delayed is None else self.delayed.step
        unshard = partial(raise_and_gather, ops.unshard) if self.parameters else ops.unshard
        return replace(ops, reduce=partial(self.reduce, ops.reduce), step=step, unshard=unshard)

    def attach(self, stage: DataParallel) -> None:
        self.stage, stage.offload, self.link.recorder = stage, self, stage.recorder
        # Where the slice of the parameters is the master weights, a write into the model changes them.
        stage.written.apart = [flat for flat in stage.written.apart if flat.shard is not flat.master]
        if self.delays:
            stage.written.apart = []  # their update may be under way at any time
            self.delayed.watch_evaluations(stage)
            for flat in stage.flats:
                for part in flat.shard_params.values():
                    part._has_gradient = lambda: False  # the stage's next gradients are not those of the update under way

    def settle(self) -> None:
        """Apply what has been delayed. Collective, at the same step on every rank."""
        if self.delayed is not None:
            self.delayed.settle()

    # -- the operations -----------------------------------------------------------------------------------------------

    def reduce(self, own: Callable[[FlatBuffer, Comm], Handle | None], flat: OffloadedBuffer, comm: Comm) -> Handle | None:
        """What the stage does, and then the gradient goes down, if this backward is the last of its step."""
        reduction = own(flat, comm)
        return Chain(reduction, flat.send_down) if self.stage.next_backward.is_last else reduction  # it may be over only in a later backward

    def step(self, flats: list[OffloadedBuffer], comm: Comm, optimizer_step: Callable[..., object]) -> object:
        flats = flats[::-1]  # as the backward came to them: the last one's gradient is down first, the root's at the end
        for flat in flats:
            flat.send_down()
        if (factors := send_factors_down(flats)) is not None:
            factors.wait()
        raising, gathers, result = [], [], None
        with closing(self.turns(flats, optimizer_step.optimizer)) as turns:
            for flat in turns:
                result = self.step_on_host(flat, optimizer_step)
                raising.append((flat, flat.start_publish()))
                while raising and (raising[0][1] is None or raising[0][1].done):
                    gathers.append(self.gather(*raising.pop(0), comm))
        self.finish(raising, gathers, comm)
        return result

    def turns(self, flats: list[OffloadedBuffer], optimizer: Optimizer) -> Iterator[OffloadedBuffer]:
        """The buffers in the order in which they are stepped."""
        if is_seen_stepping(optimizer):  # it steps everything at once
            for flat in flats:
                flat.give_gradients()
        yield from flats

    def step_on_host(self, flat: OffloadedBuffer, optimizer_step: Callable[..., object]) -> object:
        """Update one buffer."""
        flat.give_gradients()
        result = flat.step(optimizer_step)
        flat.withdraw_gradients()
        self.adopt_states(optimizer_step.optimizer, flat)
        return result

    def adopt_states(self, optimizer: Optimizer, flat: OffloadedBuffer) -> None:
        self.tier.adopt([optimizer.state[part] for part in flat.stepped_on_host() if part in optimizer.state])

    def finish(self, raising: list[tuple[OffloadedBuffer, LinkTransfer | None]], gathers: list[Handle | None], comm: Comm) -> None:
        gathers += [self.gather(flat, transfer, comm) for flat, transfer in raising]
        for handle in gathers:
            if handle is not None:
                handle.wait()

    def gather(self, flat: OffloadedBuffer, transfer: LinkTransfer | None, comm: Comm) -> Handle | None:
        """This rank's slice is up: fetch the others', below stage 3."""
        if transfer is not None:
            transfer.wait()
        return None if flat.shards_parameters else comm.all_gather(flat.full, flat.layout, flat.name)


def raise_and_gather(own, flat: OffloadedBuffer, comm: Comm) -> Handle:
    """Stage 3 with offloaded parameters: the slice goes up while the unit before computes; `wait` gathers it."""
    flat.storage.allocate()
    return flat.start_raise().then(lambda: comm.all_gather(flat.full, flat.layout, flat.name))
