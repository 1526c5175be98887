"""How long a simulated step takes: a clock that operations and collectives advance, by what they would cost.

    clock = VirtualClock()
    with FakeTensorMode(), Computing(clock, machine): ...   # each operation takes its time on the rank's processor
    SimulatedComm(rank, world_size, wire=SimulatedLink(clock, network))   # each collective takes its time on the link

The step itself is the package's own, with its order of gathers, reductions and waits, so that what overlaps in it is what
its schedule lets overlap. An operation takes as long as its arithmetic or its memory traffic, whichever is longer. The link
carries one collective after the other.
"""

from collections.abc import Callable

from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from ..comm.simulated import RING
from ..comm.torch_private import TorchDispatchMode, flash_attention, flash_attention_backward
from ..measure.storages import all_tensors
from .clusters import Machine, Network


class VirtualClock:
    """Seconds since a simulation began. Call it to read it."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def until(self, moment: float) -> None:
        """Stand still until then; nothing if it is over already."""
        self.now = max(self.now, moment)


class SimulatedLink:
    """The rank's link under way: when a collective that is issued now will be complete.

    along: a link over the same cable, to other ranks: what goes over one waits for what goes over the other.
    """

    def __init__(self, clock: VirtualClock, network: Network, along: "SimulatedLink | None" = None):
        self.clock, self.network, self.busy = clock, network, 0.0
        self.cable = along or self
        self.free = 0.0  # of a cable: from when on

    def send(self, nbytes: int, ranks: int, way: str = RING) -> float:
        """Issue a collective in which this rank sends `nbytes` to the others. Returns the moment at which it is complete."""
        seconds = self.network.seconds_of(way, nbytes, ranks)
        self.cable.free = max(self.cable.free, self.clock.now) + seconds
        self.busy += seconds
        self.clock.advance(self.network.processor * nbytes)
        return self.cable.free


class Computing(TorchDispatchMode):
    """Advances the clock by what each operation takes on a machine.

    flops, seconds: counted so far.
    """

    def __init__(self, clock: VirtualClock, machine: Machine):
        super().__init__()
        self.clock, self.machine = clock, machine
        self.flops, self.seconds = 0, 0.0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in `measure.ledger`

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view and func.namespace != "prim":
            count = FLOPS.get(func._overloadpacket)
            flops = count(*args, **(kwargs or {}), out_val=out) if count is not None else 0
            moved = sum(tensor.nbytes for tensor in all_tensors([args, kwargs or {}, out]))
            seconds = self.machine.seconds(flops, moved)
            self.flops, self.seconds = self.flops + flops, self.seconds + seconds
            self.clock.advance(seconds)
        return out


def attention(query, key, value, *_, out_val=None, **__) -> int:
    return sdpa_flop_count(query.shape, key.shape, value.shape)


def attention_backward(gradient, query, key, value, *_, out_val=None, **__) -> int:
    return sdpa_backward_flop_count(gradient.shape, query.shape, key.shape, value.shape)


FLOPS: dict[object, Callable[..., int]] = flop_registry | {
    flash_attention: attention,
    flash_attention_backward: attention_backward}
