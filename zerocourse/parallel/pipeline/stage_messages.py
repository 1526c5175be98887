"""Sends activations and their gradients from stage to stage, and before the first of each shape a header.

At most one send of a kind is under way to a rank: the next one first waits until that has been received. So what is
sent can be freed, and is not kept until its gradient comes back.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ...comm import Comm, Handle
from ...comm.duplicates import duplicates
from ...errors import BadInput
from .links import Link, communicators, links
from .schedules.actions import Schedule
from .schedules.deadlock import deadlock

HEADER = 64  # int64 numbers: how many tensors, then for each dtype, requires_grad, dimensions, and its shape
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8,
          torch.uint8, torch.bool)


class Form(NamedTuple):
    """What a tensor between two stages looks like."""

    dtype: torch.dtype
    requires_grad: bool
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> "Form":
        return cls(tensor.dtype, tensor.requires_grad, tuple(tensor.shape))


class StageMessages:
    """One rank's messages to and from the stages of other ranks. Making it is collective.

    device: on which tensors arrive.   host: on which numbers do that this rank reads: the CPU where there is gloo, so that to read
    them does not wait for all that the GPU still computes.   comm_of: the Comm of each link of the plan.
    forms: what each stage's output looks like, by (stage, kind of micro-batch): those of one kind have inputs of one shape.
    """

    def __init__(self, plan: Schedule, comm: Comm, device: torch.device):
        self.comm, self.device = comm, device
        self.host = torch.device("cpu") if "gloo" in comm.backends else device
        self.comm_of = comms_of_links(plan, comm)
        self.forms: dict[tuple[int, int], list[Form]] = {}
        self.under_way: dict[tuple[str, int], list[Handle]] = {}

    def send_outputs(self, name: str, peer: int, stage: int, kind: int, outputs: list[Tensor]) -> None:
        """Send what a stage made of a micro-batch, with a header if it is the first of its kind. Raises BadInput where
        it does not look like the outputs of its kind before."""
        forms = [Form.of(output) for output in outputs]
        first = (stage, kind) not in self.forms
        if self.forms.setdefault((stage, kind), forms) != forms:
            raise BadInput(f"stage {stage} made {described(forms)}, and of an input of the same shape before "
                           f"{described(self.forms[stage, kind])}: the shapes of its outputs may depend on those of its inputs "
                           "only, because the next stage was told them once")
        self._post("F", peer, [(f"header of {name}", header(forms).to(self.host))] * first + numbered(name, outputs))

    def receive_outputs(self, name: str, peer: int, stage: int, kind: int) -> list[Tensor]:
        """What another rank's stage made, as leaf tensors that get gradients where the stage's outputs did."""
        if (stage, kind) not in self.forms:
            numbers = torch.empty(HEADER, dtype=torch.int64, device=self.host)
            self.comm_of["F", peer, self.comm.rank].recv(numbers, peer, f"header of {name}").wait()
            self.forms[stage, kind] = read_header(numbers.tolist())
        received = self._receive("F", name, peer, self.forms[stage, kind])
        return [tensor.requires_grad_(form.requires_grad)
                for tensor, form in zip(received, self.forms[stage, kind], strict=True)]

    def send_gradients(self, name: str, peer: int, gradients: list[Tensor]) -> None:
        """Send the gradients of a stage's inputs, those that need one."""
        self._post("B", peer, numbered(name, gradients))

    def receive_gradients(self, name: str, peer: int, stage: int, kind: int) -> list[Tensor]:
        """The gradients of what a stage of this rank made."""
        return self._receive("B", name, peer, [form for form in self.forms[stage, kind] if form.requires_grad])

    def wait_for_sends(self) -> None:
        """Wait until everything that was sent has been received."""
        for handles in self.under_way.values():
            while handles:
                handles.pop(0).wait()

    def _receive(self, kind: str, name: str, peer: int, forms: list[Form]) -> list[Tensor]:
        tensors = [torch.empty(form.shape, dtype=form.dtype, device=self.device) for form in forms]
        comm = self.comm_of[kind, peer, self.comm.rank]
        for handle in [comm.recv(tensor, peer, unit) for unit, tensor in numbered(name, tensors)]:
            handle.wait()
        return tensors

    def _post(self, kind: str, peer: int, messages: list[tuple[str, Tensor]]) -> None:
        earlier = self.under_way.setdefault((kind, peer), [])
        while earlier:
            earlier.pop(0).wait()
        comm = self.comm_of[kind, self.comm.rank, peer]
        earlier += [comm.send(tensor.contiguous(), peer, unit) for unit, tensor in messages]


def comms_of_links(plan: Schedule, comm: Comm) -> dict[Link, Comm]:
    """The Comm of each link of a plan. On NCCL further ones are made where the plan would stand still with one (see `links`), which
    is collective on all ranks of the world; all others share `comm`, because gloo lets no message wait for another one."""
    if "nccl" not in comm.backends or deadlock(plan, "one communicator") is None:
        return dict.fromkeys(links(plan), comm)
    number = communicators(plan)
    made = duplicates(comm, 1 + max(number.values()))
    return {link: made[index] for link, index in number.items()}


def numbered(name: str, tensors: list[Tensor]) -> list[tuple[str, Tensor]]:
    """Each tensor with the name of its message."""
    return [(name if number == 0 else f"{name}, tensor {number}", tensor) for number, tensor in enumerate(tensors)]


def header(forms: list[Form]) -> Tensor:
    """The forms as HEADER numbers. Raises BadInput for more than fit, and for a dtype that is not in DTYPES."""
    numbers = [len(forms)]
    for form in forms:
        if form.dtype not in DTYPES:
            raise BadInput(f"a stage cannot send {form.dtype}: only {', '.join(str(dtype) for dtype in DTYPES)}")
        numbers += [DTYPES.index(form.dtype), int(form.requires_grad), len(form.shape), *form.shape]
    if len(numbers) > HEADER:
        raise BadInput(f"a stage made {len(forms)} tensors, whose shapes do not fit into a header of {HEADER} numbers")
    return torch.tensor(numbers + [0] * (HEADER - len(numbers)))


def read_header(numbers: list[int]) -> list[Form]:
    forms, rest = [], numbers[1:]
    for _ in range(numbers[0]):
        dtype, requires_grad, dimensions = rest[:3]
        forms.append(Form(DTYPES[dtype], bool(requires_grad), tuple(rest[3 : 3 + dimensions])))
        rest = rest[3 + dimensions :]
    return forms


def described(forms: list[Form]) -> str:
    return " and ".join(f"{tuple(form.shape)} {str(form.dtype).removeprefix('torch.')}"
                        f"{'' if form.requires_grad else ' without gradient'}" for form in forms)
