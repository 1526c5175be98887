"""What fits where: bytes on the device, on the host and on the disk, of each way to divide and offload. Formulas: no torch.

An arrangement is a stage and two places, of the optimizer's part (states, master weights and the step) and of this rank's
slices of the parameters. Where the optimizer's part is offloaded, gradients leave the device as they are reduced, unless
micro-batches are added up there. Bytes are of one rank, without padding.
Sources: Ren et al. 2021, arXiv 2101.06840; Rajbhandari et al. 2021, arXiv 2104.07857.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor

from .gpt2_config import GPTConfig
from .models.llama_shape import LlamaShape
from .shares import share_of
from .states import ZERO, Convention, model_states
from .transformer import gpt2_block_params
from .volumes import passes, sent_bytes

DEVICE, HOST, DISK = PLACES = ("device", "host", "disk")
BUFFERS = 4  # staging buffers between host and disk
FP32 = 4  # bytes


@dataclass(frozen=True)
class Arrangement:
    """stage: 0 to 3.   optimizer, parameters: one of `PLACES`."""

    stage: int
    optimizer: str = DEVICE
    parameters: str = DEVICE

    def __str__(self) -> str:
        name = f"ZeRO-{self.stage}" if self.stage else "data parallel"
        if self.optimizer == DEVICE:
            return name
        return f"{name}, {'optimizer' if self.parameters == DEVICE else 'both'} on {self.optimizer}"


ARRANGEMENTS = (*map(Arrangement, range(4)), *(Arrangement(stage, HOST) for stage in (1, 2, 3)), Arrangement(3, HOST, HOST),
                *(Arrangement(stage, DISK) for stage in (1, 2, 3)), Arrangement(3, DISK, DISK))


@dataclass(frozen=True)
class Needs:
    """What an arrangement needs on one rank. device, host, disk: bytes held.   link: bytes that a step moves between device and
    host, both ways.   io: bytes that it reads from the disk and writes.   sent: bytes that it sends to other ranks."""

    device_bytes: int
    host_bytes: int
    disk_bytes: int
    link_bytes: int
    io_bytes: int
    sent_bytes: int

    def held(self, place: str) -> int:
        return getattr(self, f"{place}_bytes")

    def missing(self, budgets: Mapping[str, int]) -> dict[str, int]:
        """By place, the bytes by which it is over the budget."""
        return {place: self.held(place) - budgets[place] for place in PLACES if self.held(place) > budgets[place]}


def offloaded_element(convention: Convention) -> int:
    """Bytes of master weight and optimizer states for one element. In fp32 training the master weights are a copy."""
    return convention.optimizer + (FP32 if convention.parameter == FP32 else 0)


def on_device(convention: Convention, offloaded: bool) -> Convention:
    """The convention of what stays on the device."""
    return replace(convention, optimizer=0) if offloaded else convention


def needs(where: Arrangement, params: int, ranks: int, convention: Convention = ZERO, accumulation: int = 1, ratio: float = 1,
          device_peak: int | None = None, largest_unit: int = 0, buffers: int = BUFFERS) -> Needs:
    """What an arrangement needs for `params` parameters.

    ratio: the share of the optimizer's part that is offloaded.
    device_peak: bytes of a step's peak on the device, where they are known (see `peak`); else model states are counted alone.
    largest_unit: parameters of the largest unit, of which one or more are under way. With the disk its states decide how large a
        staging buffer is, and as much space is needed on the disk again, because what is being written does not replace the old
        file before it is whole.
    The host's gradients are those of the whole step, which are all there when it begins; in half precision those of the unit
    that is stepped are there in fp32 as well.
    """
    share, each = share_of(params, ranks), offloaded_element(convention)
    held = model_states(params, where.stage, ranks, convention)
    sent = sent_bytes(params, where.stage, ranks, accumulation, convention=convention)
    if where.optimizer == DEVICE:
        total = held.total_bytes if device_peak is None else device_peak
        return Needs(total, 0, 0, 0, 0, sent)
    moved = floor(Fraction(str(ratio)) * share)
    kept, gathers = share - moved, passes(3, accumulation).parameters
    raised = where.parameters != DEVICE
    whole_gradients = held.gradients_bytes if accumulation > 1 else convention.gradient * kept
    device = held.parameters_bytes * (not raised) + whole_gradients + convention.optimizer * kept
    gradients, rounded = convention.gradient * moved, convention.parameter * share
    apart = rounded * (raised and convention.parameter != FP32)  # in fp32 they are the master weights
    link = gradients + (gathers * rounded if raised else convention.parameter * moved)
    device = device if device_peak is None else device_peak
    unit = share_of(largest_unit, ranks) if largest_unit else 0
    gradients += 0 if FP32 in (convention.parameter, convention.gradient) else FP32 * unit  # of the one that is stepped
    if where.optimizer == HOST:
        return Needs(device, each * moved + gradients + apart, 0, link, 0, sent)
    staging = buffers * (each + (convention.parameter if apart else 0)) * unit
    io = 2 * each * share + (gathers * rounded if raised else 0) + apart
    return Needs(device, gradients + staging, each * share + apart + staging, link, io, sent)


def largest_unit(shape: GPTConfig | LlamaShape) -> int:
    """Parameters of the largest unit: a block, or the root, which has the embeddings and the last norm."""
    if isinstance(shape, LlamaShape):
        return max(shape.block, shape.params - shape.layers * shape.block)
    block = gpt2_block_params(shape.n_embd, shape.bias)
    return max(block, shape.params - shape.n_layer * block)


def cheapest(needed: Mapping[Arrangement, Needs], budgets: Mapping[str, int]) -> Arrangement | None:
    """Of those that fit, the one that moves least in a step: over link and disk first, then between ranks."""
    fitting: Iterable[Arrangement] = [where for where, each in needed.items() if not each.missing(budgets)]
    return min(fitting, default=None,
               key=lambda where: (needed[where].link_bytes + needed[where].io_bytes, needed[where].sent_bytes, where.stage))


def largest_that_fits(where: Arrangement, ranks: int, budgets: Mapping[str, int], convention: Convention = ZERO,
                      accumulation: int = 1) -> int:
    """The largest number of parameters whose model states fit; 0 if not even one does."""
    def fits(params: int) -> bool:
        return not needs(where, params, ranks, convention, accumulation).missing(budgets)

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
