"""What the ranks tell each other at the end of a backward: one small message, and the buffers that have changed."""

from itertools import compress

import torch
from torch import nn

from ..comm.group import Comm
from ..errors import CollectiveError
from .buffer import FlatBuffer
from .unit import Unit

READ = 1 << 16  # elements: a buffer up to this size is read to see whether it changed, at every backward's end


def fingerprint(buffer: torch.Tensor) -> tuple[int, float]:
    """Differs when the buffer changed. Its version does not always tell: batch norm's kernels write without counting.
    What is large (a causal mask) only has its version: to add it up would take time at every step."""
    real = torch.view_as_real(buffer) if buffer.is_complex() else buffer
    return buffer._version, real.sum(dtype=torch.float64).item() if buffer.numel() <= READ else 0.0


class Buffers:
    """The model's buffers (batch statistics), which must stay the same on all ranks."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.known = {name: fingerprint(buffer) for name, buffer in model.named_buffers()}  # as all ranks have them
        self.shapes = {name: buffer.shape for name, buffer in model.named_buffers()}
        self.changed: list[str] = []  # on some rank, before the last backward's end

    def look(self) -> list[bool]:
        """Which have changed on this rank?"""
        now = dict(self.model.named_buffers())
        return [name in now and fingerprint(now[name]) != before for name, before in self.known.items()]

    def reshaped(self) -> bool:
        """Has one that changed another shape on this rank?"""
        now = dict(self.model.named_buffers())
        return any(now[name].shape != self.shapes[name] for name in self.known if name in now)

    def compare_shapes(self, comm: Comm) -> None:
        """Take the new shapes for known, if all ranks have the same. Raises CollectiveError, on all ranks, if not."""
        now = {name: buffer.shape for name, buffer in self.model.named_buffers()}
        of_ranks = comm.all_gather_object({name: list(shape) for name, shape in now.items()})
        for rank, other in enumerate(of_ranks):
            for name, shape in of_ranks[0].items():
                if other.get(name) != shape:
                    raise CollectiveError(f"buffer {name!r} is {tuple(shape)} on rank 0 and {tuple(other.get(name, ()))} on rank "
                                          f"{rank}: all ranks get rank 0's buffers at each step, so give them one shape")
        self.shapes = now

    def equalise(self, comm: Comm) -> None:
        """Rank 0's values for those that changed on any rank."""
        now = dict(self.model.named_buffers())
        for name in self.changed:
            comm.broadcast(now[name], f"buffer {name}")
            self.known[name] = fingerprint(now[name])
        self.changed = []


def agree(stage) -> list[tuple[Unit, FlatBuffer]]:
    """One small message in which the ranks tell what only some of them may know; all act on the same answer.

    Who has a gradient? Which buckets (returned) hold something that is not reduced? Which buffers changed? Did all run
    the same units? Raises CollectiveError with the name of a unit that some ranks skipped.
    """
    keys = [(flat, key) for flat in stage.flats for key in flat.params]
    left = [(unit, flat) for unit in reversed(stage.units) for flat in reversed(unit.flats)]
    ran = [unit in stage.order for unit in stage.units]
    questions = ([key in flat.present for flat, key in keys], [bool(flat.fresh) for _, flat in left],
                 stage.buffers.look(), [stage.buffers.reshaped()], ran, [not flag for flag in ran])
    flags = torch.tensor(sum(questions, []), dtype=torch.uint8, device=stage.device)
    answers = iter(stage.comm.all_reduce(flags, "max").tolist())
    present, fresh, changed, (reshaped,), somewhere, nowhere = ([next(answers) for _ in question] for question in questions)
    for unit, here, yes, no in zip(stage.units, ran, somewhere, nowhere, strict=True):
        if yes and no:
            raise CollectiveError(f"unit {unit.name!r} ran on some ranks and was skipped on others (rank {stage.comm.rank} "
                                  f"{'ran' if here else 'skipped'} it): every rank must run the same units")
    for flat, key in compress(keys, present):
        flat.present.add(key)
    if reshaped:
        stage.buffers.compare_shapes(stage.comm)
    stage.buffers.changed = list(compress(stage.buffers.known, changed))
    return list(compress(left, fresh))
