"""The model's own buffers stay the same on all ranks: broadcasts those that changed. Needed by: batch statistics.

A BatchNorm writes its running mean in the forward, from this rank's batch; a counter counts; a cache is assigned anew.
After each step rank 0's values go to the others, as in torch's DDP. A buffer has changed when another tensor stands in its
place, when its version moved, or when it belongs to running statistics in training: their kernels move no version.
"""

from itertools import compress

import torch

from ...errors import CollectiveError
from ..extra import Extra


class ModelBuffers(Extra):
    """Extends the agreement by two questions: which buffers changed, and has one another shape?"""

    def __init__(self, stage):
        self.groups = stage.groups
        self.holders = [(f"{name}." if name else "", module) for name, module in stage.model.named_modules() if module._buffers]
        self.known = self.read()  # as all ranks have them: the tensor and its version
        self.shapes = {name: buffer.shape for name, (buffer, _) in self.known.items()}
        self.changed: list[str] = []  # on some rank, before the last backward's end

    def read(self) -> dict[str, tuple[torch.Tensor, int]]:
        """Each buffer and its version now. One that was assigned under inference_mode becomes an ordinary tensor."""
        seen = {}
        for prefix, module in self.holders:
            for key, buffer in module._buffers.items():
                if buffer is None:
                    continue
                if buffer.is_inference():
                    buffer = module._buffers[key] = buffer.clone()
                seen[prefix + key] = buffer, buffer._version
        return seen

    def statistics(self) -> set[str]:
        """Buffers of modules that keep running statistics, in training."""
        return {prefix + key for prefix, module in self.holders if module.training
                and getattr(module, "running_mean", None) is not None for key in module._buffers}

    def questions(self) -> dict[str, list[bool]]:
        now, running = self.read(), self.statistics()
        self.names = list(self.known)
        changed = [name in now and (name in running or now[name][0] is not self.known[name][0] or now[name][1] != self.known[name][1])
                   for name in self.names]
        reshaped = any(now[name][0].shape != self.shapes[name] for name in self.names if name in now)
        return {"buffers": changed, "reshaped": [reshaped]}

    def answered(self, answers: dict[str, list[bool]]) -> None:
        if answers["reshaped"][0]:
            self.compare_shapes()
        self.changed = list(compress(self.names, answers["buffers"]))

    def compare_shapes(self) -> None:
        """Take the new shapes for known, if all ranks have the same. Raises CollectiveError, on all ranks, if not."""
        now = {name: buffer.shape for name, (buffer, _) in self.read().items()}
        by_rank = self.groups.all_gather_object({name: list(shape) for name, shape in now.items()})
        for rank, other in enumerate(by_rank):
            for name, shape in by_rank[0].items():
                if other.get(name) != shape:
                    raise CollectiveError(f"buffer {name!r} is {tuple(shape)} on rank 0 and {tuple(other.get(name, ()))} on rank "
                                          f"{rank}: all ranks get rank 0's buffers at each step, so give them one shape")
        self.shapes = now

    def after_step(self) -> None:
        """Rank 0's values for those that changed on any rank."""
        now = self.read()
        self.groups.broadcast_together([now[name][0] for name in self.changed], "the model's buffers")
        self.known |= {name: (now[name][0], now[name][0]._version) for name in self.changed}
        self.changed = []
