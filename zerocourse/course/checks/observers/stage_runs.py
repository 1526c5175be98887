"""A tiny GPT-2 trained with a learner's collective operations, and what that shows: for the checks of chapters 05 to 07.

On a rank:    seen = train({"reduce": answer}, stage=1)          # and train({}, stage=1) for the package's own
In a check:   trials=[..., training("reduce", 1)]
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

import torch

from ....comm.group import Comm, Handle
from ....init.deferred import deferred_init
from ....layout.rankmap import Layout
from ....models.gpt2 import GPT, GPTConfig
from ....zero.extras import shard
from ...trials.watched_training import next_tokens, phases
from ..trace import Trial

CONFIG = GPTConfig(2, 2, 16, block_size=8, vocab_size=64)  # three units, none of them divisible by 3
VERBS = ("reduce_scatter", "all_gather")
PHASES = ("forward", "backward", "step")
KINDS = {"parameters_bytes": "parameters", "gradients_bytes": "gradients", "optimizer_bytes": "the optimizer's states"}
CLOSE = 2e-4  # between losses: what rounding alone makes of them in a few steps


class WatchedComm(Comm):
    """A Comm that notes each of the two collectives of ZeRO.

    calls: (phase, verb, unit) of each.   handles: what came back.   open: those that nobody has waited for.
    in_place: of each reduction, is its sum to arrive in the tensor that is reduced?
    phase: yours to set, so that a call tells when it was made.
    """

    def __init__(self, timeout: float = 1.5):
        super().__init__(timeout=timeout)
        self.phase, self.calls, self.handles, self.in_place = "", [], [], []
        self.open: list[Handle] = []

    def all_gather(self, tensor: torch.Tensor, layout: Layout, unit: str) -> Handle:
        self.calls.append((self.phase, "all_gather", unit))
        return self._noted(super().all_gather(tensor, layout, unit))

    def reduce_scatter(self, tensor: torch.Tensor, layout: Layout, unit: str, into: torch.Tensor | None = None,
                       done: Callable[[torch.Tensor], None] | None = None) -> Handle:
        self.calls.append((self.phase, "reduce_scatter", unit))
        self.in_place.append(into is not None and into.untyped_storage()._cdata == tensor.untyped_storage()._cdata)
        return self._noted(super().reduce_scatter(tensor, layout, unit, into, done))

    def wait_for_forgotten(self) -> int:
        """Wait for every collective that nobody has waited for yet; how many there were."""
        forgotten = list(self.open)
        for handle in forgotten:
            handle.wait()
        self.handles = []
        return len(forgotten)

    def _noted(self, handle: Handle) -> Handle:
        wait = handle.wait

        def noted():
            if handle in self.open:
                self.open.remove(handle)
            wait()

        handle.wait = noted
        self.handles.append(handle)
        self.open.append(handle)
        return handle


def data(rank: int, count: int, batch: int = 2) -> torch.Tensor:
    """Tokens (count, batch, block_size + 1), different on every rank."""
    seed = torch.Generator().manual_seed(100 + rank)
    return torch.randint(CONFIG.vocab_size, (count, batch, CONFIG.block_size + 1), generator=seed)


def train(ops: dict[str, Callable], stage: int, *, steps: int = 3, accumulation: int = 1, timeout: float = 1.5,
          lr: float = 0.01, optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW, **options) -> dict:
    """Train the tiny GPT-2 on the ranks of the default process group, each with data of its own. Collective.

    ops: as `shard` takes it; {} for the package's own.   options: of `shard`.   Returns, of this rank,

    losses      one a micro-batch
    parameters  {unit: (n,)} all parameters as this rank has them after the last step; not in stage 3
    shards      {unit: (own,)} this rank's slices of them
    held        {phase: bytes by kind} at the end of the last micro-batch's forward and backward, and of the step
    sent        {verb: elements} in the last step, without padding
    calls       [(phase, verb, unit)] of the last step, in order; the phase is that in which it was called
    events      of the last step, as the recorder has them
    """
    comm = WatchedComm(timeout)
    with deferred_init():
        model = GPT(CONFIG)
    model, optimizer = shard(model, optimizer(model.parameters(), lr=lr), stage=stage, comm=comm, ops=ops,
                             **options)
    losses, held = [], {}
    for tokens in data(comm.rank, steps * accumulation).split(accumulation):
        comm.calls, comm.handles, before = [], [], Counter(comm.elements)
        for ended, comm.phase in phases(model, optimizer, tokens, losses, lambda *batch: next_tokens(*batch) / accumulation):
            held[ended] = model.zero.memory(optimizer)
    recorder = model.zero.recorder
    return {"losses": [loss * accumulation for loss in losses], "held": held, "sent": dict(comm.elements - before), "calls": comm.calls,
            "events": recorder.of_step(recorder.step - 1),
            "parameters": {flat.name: flat.full.clone() for flat in model.zero.flats if stage < 3},
            "shards": {flat.name: flat.shard.clone() for flat in model.zero.flats}}


def training(name: str | tuple[str, ...], stage: int, world: int = 2, **how) -> Trial:
    """A trial: train the tiny GPT-2 with the answer as the operation `name` of the stage, or with several answers.

    how: for `train`.
    """
    return Trial(observe=partial(_trained, name=name, stage=stage, **how), worlds=(world,), words={
        "case": f"training GPT-2 with it at stage {stage} on {{world}} ranks",
        "elements by *": "rank {rank} sent {got} {what} in a step, and {want} are right.",
        "bytes of *": "rank {rank} holds {got} {what}, and {want} are right.",
        "losses": "the losses of rank {rank} are {got}, and {want} are right.",
        "parameters": "rank {rank} ends with other parameters than the package's own gives."},
        close={"losses": CLOSE, "parameters": 10 * CLOSE})


def _trained(*answers, name, **how) -> dict:
    names = (name,) if isinstance(name, str) else name
    seen = train(dict(zip(names, answers, strict=True)), **how)
    return {**{f"elements by {verb}": seen["sent"].get(verb, 0) for verb in VERBS},
            **{f"bytes of {words} after the {phase}": seen["held"][phase][kind]
               for phase in PHASES for kind, words in KINDS.items()},
            "losses": torch.tensor(seen["losses"]), "parameters": [seen["parameters"], seen["shards"]]}
