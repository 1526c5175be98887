"""A tiny GPT-2 trained with a learner's collective operations, and what that shows: for the checks of chapters 05 to 07.

On a rank:    found = train({"reduce": answer}, stage=1)          # and train({}, stage=1) for the package's own
In a check:   for world in (2, 3): judge(lab, ["reduce"], stage=1, world=world)
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from ....zero.shard import shard
from ....comm.group import Comm, Handle
from ....init.deferred import deferred_init
from ....models.gpt2 import GPT, GPTConfig
from ....layout.rankmap import Layout
from ..lab import Lab
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
    losses, held, tokens = [], {}, data(comm.rank, steps * accumulation)
    for step in range(steps):
        comm.calls, comm.handles, before = [], [], Counter(comm.elements)
        for tokens_BT in tokens[step * accumulation:(step + 1) * accumulation]:
            comm.phase = "forward"
            loss = model(tokens_BT[:, :-1], tokens_BT[:, 1:]) / accumulation
            held["forward"] = model.zero.memory(optimizer)
            comm.phase = "backward"
            loss.backward()
            held["backward"] = model.zero.memory(optimizer)
            losses.append(loss.item() * accumulation)
        comm.phase = "step"
        optimizer.step()
        held["step"] = model.zero.memory(optimizer)
        optimizer.zero_grad()
    recorder = model.zero.recorder
    return {"losses": losses, "held": held, "sent": dict(comm.elements - before), "calls": comm.calls,
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
    found = train(dict(zip(names, answers, strict=True)), **how)
    return {**{f"elements by {verb}": found["sent"].get(verb, 0) for verb in VERBS},
            **{f"bytes of {words} after the {phase}": found["held"][phase][kind]
               for phase in PHASES for kind, words in KINDS.items()},
            "losses": torch.tensor(found["losses"]), "parameters": [found["parameters"], found["shards"]]}


def train_both(*args, names: Sequence[str], stage: int, **how) -> dict[str, dict]:
    """What `lab.run` calls: the answers (by their names in `StageOps`), and the package's own ops."""
    return {"mine": train(dict(zip(names, args, strict=True)), stage, **how), "own": train({}, stage, **how)}


def differences(found: list[dict[str, dict]]) -> Iterable[tuple[str, int, object, object]]:
    """(what, rank, came, expected) for each way in which the answer's training differs from the package's.

    what: "sent VERB", "held PHASE KIND", "losses", "parameters" (not alike on all ranks, or not as the package's).
    """
    for rank, both in enumerate(found):
        mine, own = both["mine"], both["own"]
        for verb in ("reduce_scatter", "all_gather"):
            if mine["sent"].get(verb, 0) != own["sent"].get(verb, 0):
                yield f"sent {verb}", rank, mine["sent"].get(verb, 0), own["sent"].get(verb, 0)
        for phase in PHASES:
            for kind in KINDS:
                if mine["held"][phase][kind] != own["held"][phase][kind]:
                    yield f"held {phase} {kind}", rank, mine["held"][phase][kind], own["held"][phase][kind]
    for rank, both in enumerate(found):
        mine, own = both["mine"], both["own"]
        if not all(abs(a - b) < CLOSE for a, b in zip(mine["losses"], own["losses"], strict=True)):
            yield "losses", rank, mine["losses"], own["losses"]
        for kind in ("parameters", "shards"):
            for name, row in own[kind].items():
                if not bool(((mine[kind][name] - row).abs() < 10 * CLOSE).all()):
                    yield "parameters", rank, mine[kind][name], row


def judge(lab: Lab, names: Sequence[str], stage: int, world: int, why: dict[str, str] | None = None,
          **how) -> list[dict]:
    """Train with the answers as the stage's `names`; end the check where that differs from the package's own ops.

    why: {beginning of what differs, as `differences` names it: a sentence that is said too}. how: for `train`.
    Returns what was found, by rank: {"mine": ..., "own": ...}.
    """
    found = lab.run(train_both, names=list(names), stage=stage, world=world, **how)
    for what, rank, came, expected in differences(found):
        text = f"training GPT-2 with it at stage {stage} on {world} ranks, {_words(what, rank, came, expected)}"
        because = next((sentence for start, sentence in (why or {}).items() if what.startswith(start)), "")
        lab.wrong(f"{text} {because}".rstrip())
    return found


def _words(what: str, rank: int, came, expected) -> str:
    kind, _, rest = what.partition(" ")
    if kind == "sent":
        return f"rank {rank} sent {came:_} elements by {rest} in a step, and {expected:_} are right."
    if kind == "held":
        phase, _, key = rest.partition(" ")
        return f"after the {phase} rank {rank} holds {came:_} bytes of {KINDS[key]}, and {expected:_} are right."
    if kind == "losses":
        number = next(i for i, (a, b) in enumerate(zip(came, expected, strict=True)) if not abs(a - b) < CLOSE)
        return f"loss number {number} of rank {rank} is {came[number]:.4f}, and {expected[number]:.4f} is right."
    return f"rank {rank} ends with other parameters than the package's own gives."
