"""Which weights a micro-batch uses where updates come while it is under way: PipeDream's stashes, and what happens
without.

A version is a set of leaf tensors beside the stage's parameters. A forward runs with one of them, its backward leaves
the gradients there, and they are added to the parameters' `.grad`. The newest version lies in the parameters' own
memory; if it is still in use when an update comes, the update goes into new memory.
Source: Narayanan et al. 2019 (PipeDream, SOSP); 2020, arXiv 2006.09503 (two versions).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ...errors import BadInput

POLICIES = ("stash", "two versions", "latest")
Version = dict[str, Tensor]


class WeightVersions:
    """The versions of one stage's weights.

    policy: "stash": forward and backward of a micro-batch use the newest version that its forward found.
    "two versions": they use the version before the newest one of their batch (PipeDream-2BW), the same in all stages.
    "latest": nothing is kept, so that a backward reads weights that its forward did not have: the gradient of no
    function.
    most: how many versions were held at once so far, the parameters themselves included.
    """

    def __init__(self, module: nn.Module, policy: str):
        if policy not in POLICIES:
            raise BadInput(f"weights is {policy!r}: it must be one of {', '.join(map(repr, POLICIES))}")
        self.module, self.policy = module, policy
        self.updates = 0
        self.versions: dict[int, Version] = {0: self.seen()}  # by the number of updates in them
        self.of_micro_batch: dict[int, int] = {}
        self.before = 0  # updates before the micro-batches that are under way were numbered
        self.most = 1

    def seen(self) -> Version:
        """The parameters as they are now. `.data` has a version counter of its own, so autograd does not notice
        updates."""
        return {name: param.data.requires_grad_(param.requires_grad) for name, param in self.module.named_parameters()}

    def begin(self) -> None:
        """Micro-batches are numbered from 0 again, and none is under way, also where the last ones failed."""
        self.before = self.updates
        self.of_micro_batch.clear()
        self.forget()

    def take(self, micro_batch: int, batch: int) -> Version:
        """The version for a micro-batch's forward. batch: how many updates since `begin` its batch comes after."""
        number = max(self.before + batch - 1, 0) if self.policy == "two versions" else self.updates
        self.of_micro_batch[micro_batch] = number
        return self.versions[number]

    def collect(self, micro_batch: int) -> None:
        """After its backward: add the version's gradients to the parameters' `.grad`."""
        version = self.versions[self.of_micro_batch.pop(micro_batch)]
        for name, param in self.module.named_parameters():
            if (gradient := version[name].grad) is not None:
                version[name].grad = None
                param.grad = gradient if param.grad is None else param.grad.add_(gradient)
        self.forget()

    def update(self, step: Callable[[], object]) -> None:
        """Run the optimizer's step, which writes into the parameters, and make the result the newest version."""
        if self.policy != "latest" and self.needed(self.updates):
            for param in self.module.parameters():
                param.data = param.data.clone()  # the version that is in use keeps the old memory
        step()
        self.updates += 1
        self.versions[self.updates] = self.seen()
        self.forget()
        self.most = max(self.most, 1 if self.policy == "latest" else len(self.versions))

    def needed(self, number: int) -> bool:
        """Will a micro-batch read this version, now or later, when the next update has come?"""
        return number in self.of_micro_batch.values() or self.policy == "two versions"

    def forget(self) -> None:
        keep = {self.updates, *self.of_micro_batch.values()}
        if self.policy == "two versions":
            keep.add(self.updates - 1)
        self.versions = {number: version for number, version in self.versions.items() if number in keep}


def run_with(module: nn.Module, version: Version, values: tuple, options: dict) -> object:
    """The module's forward with other tensors as its parameters."""
    return torch.func.functional_call(module, version, values, options)
