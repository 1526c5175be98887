"""A small training of which everything is seen: where a bug shows itself, and the same without it.

`play` runs on each rank. `play_whole` is the same training in one process, without any sharding: what should come out.
"""

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field

import torch
import torch.distributed as dist
from torch import nn

from ...comm import Comm
from ...engine import Engine, initialize
from ...errors import CollectiveError
from ...kernels.adamw import FusedAdamW, adamw
from ...measure.norm_audit import norm_counts
from ...measure.not_finite import NotFinite
from ...measure.staleness import staleness
from ...models.gpt2 import GPT, GPTConfig
from ...zero.extras import shard

V, T = 32, 16  # tokens there are, and tokens in a sample
SAMPLES = 2  # in a micro-batch


@dataclass(frozen=True)
class Scene:
    """One training.

    optimizer: "sgd", "adamw" (torch's) or "plain adamw" (the package's own, without its kernel).
    half: parameters in bf16, with fp32 master weights.   clip: the largest norm of the gradient, 0 for any.
    padded: (step, rank) of micro-batches in which every token and target is 0, if there are some.
    disjoint: every rank has words of its own, as where each reads another language.
    """

    stage: int = 1
    steps: int = 4
    accumulation: int = 1
    optimizer: str = "sgd"
    lr: float = 0.1
    clip: float = 0.0
    half: bool = False
    layers: int = 2
    padded: tuple[int, int] | None = None
    disjoint: bool = False


@dataclass
class Played:
    """What one rank saw.

    losses, norms: one a step; norms are of the whole gradient, as the engine reports them.
    sums: of the absolute values of the parameters that this rank holds, before the first step and after each.
    moved: how far the slices that this rank updates are from where they began, in all (the norm of the difference).
    bytes_before_step, bytes_after_step: by kind, at the last step; the second after zero_grad().
    step_counts: of the optimizer, the smallest and the largest.   params: of the whole model.
    sent: bytes, by collective.
    events: of the last step.   not_finite: (step, what, name), the first.
    """

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)
    moved: float = 0.0
    bytes_before_step: dict[str, int] = field(default_factory=dict)
    bytes_after_step: dict[str, int] = field(default_factory=dict)
    step_counts: tuple[float, float] = (0, 0)
    params: int = 0
    sent: dict[str, int] = field(default_factory=dict)
    events: list[dict] = field(default_factory=list)
    not_finite: tuple[int, str, str] | None = None


def model_of(scene: Scene, seed: int = 0) -> GPT:
    torch.manual_seed(seed)
    return GPT(GPTConfig(scene.layers, 2, 16, block_size=T, vocab_size=V))


def optimizer_of(scene: Scene, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    if scene.optimizer == "sgd":
        return torch.optim.SGD(params, lr=scene.lr)
    if scene.optimizer == "adamw":
        return torch.optim.AdamW(params, lr=scene.lr, weight_decay=0.5)
    return FusedAdamW(params, lr=scene.lr, weight_decay=0.5, update=adamw)


def batch(scene: Scene, step: int, micro: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets (SAMPLES, T), int64; every rank draws its own, some words more often than others."""
    random = torch.Generator().manual_seed(1_000_003 * step + 1_009 * micro + rank)
    often = torch.rand(SAMPLES, T + 1, generator=random).square()  # small numbers more often than large ones
    tokens = (often * (V // 2)).long() + V // 2 * (rank % 2) if scene.disjoint else (often * V).long()
    if (step, rank) == scene.padded:
        tokens.zero_()
    return tokens[:, :-1], tokens[:, 1:]


def engine_of(scene: Scene, ranks: int = 1) -> Engine:
    """ranks: how many ranks' micro-batches this process goes through itself."""
    config = {"train_micro_batch_size_per_gpu": SAMPLES, "gradient_accumulation_steps": scene.accumulation * ranks,
              "gradient_clipping": scene.clip, "bf16": {"enabled": scene.half},
              "zero_optimization": {"stage": scene.stage}}
    model = model_of(scene, seed=dist.get_rank() if dist.is_initialized() else 0)
    return initialize(model, optimizer_of(scene, model.parameters()), config=config)[0]


def play(scene: Scene, bug=None) -> Played:
    """Train on this rank, with a bug of the museum or without. Collective."""
    with bug.planted() if bug else nullcontext():
        engine = engine_of(scene)
        return train(scene, engine, [engine.global_rank])


def play_whole(scene: Scene, ranks: int = 2) -> Played:
    """The same in one process, without sharding, on the data of all ranks. Not to be called on ranks."""
    return train(scene, engine_of(Scene(**asdict(scene) | {"stage": 0}), ranks), range(ranks))


def train(scene: Scene, engine: Engine, ranks: Iterable[int]) -> Played:
    """Go through the micro-batches of `ranks`, and note what is to be seen."""
    seen, zero = Played(params=engine.module.config.params), engine.zero
    seen.sums.append(total_of(engine))
    began = [flat.master.clone() for flat in zero.flats]
    micros = [(micro, rank) for micro in range(scene.accumulation) for rank in ranks]
    with NotFinite(engine.module) as watched:
        for step in range(scene.steps):
            total = 0.0
            for micro, rank in micros:
                loss = engine(*batch(scene, step, micro, rank))
                engine.backward(loss)
                total += loss.item() / len(micros)
                if (micro, rank) == micros[-1]:
                    seen.bytes_before_step = engine.memory()
                engine.step()
            if watched.first and not seen.not_finite:
                seen.not_finite = step, *watched.first
            seen.losses.append(total)
            seen.norms.append(engine.get_global_grad_norm())
            seen.sums.append(total_of(engine))
    moves = [(flat.master - old).norm() for flat, old in zip(zero.flats, began, strict=True)]
    seen.moved = torch.stack(moves).norm().item()
    seen.bytes_after_step = engine.memory()
    counts = [float(state["step"]) for state in engine.optimizer.state.values() if "step" in state]
    seen.step_counts = (min(counts), max(counts)) if counts else (0, 0)
    seen.sent = dict(zero.comm.sent)
    seen.events = zero.recorder.of_step(scene.steps - 1)
    return seen


def delay_of(stage: int, bug=None, steps: int = 100) -> int:
    """How many steps late a stage applies its gradients, by the staleness meter. Collective."""
    with bug.planted() if bug else nullcontext():
        return staleness(lambda model, lr: shard(model, torch.optim.SGD(model.parameters(), lr=lr), stage)[1], steps)


def counted(stage: int, bug=None) -> dict[str, int]:
    """How often a stage's norm counts each parameter, by the norm auditor. Collective."""
    scene = Scene(stage)
    with bug.planted() if bug else nullcontext():
        model = engine_of(scene).module
        return norm_counts(model, lambda: model(*batch(scene, 0, 0, 0)).backward(), model.zero.grad_norm)


def total_of(engine: Engine) -> float:
    """The absolute values of the parameters that this rank holds, added up."""
    flats = engine.zero.flats
    return sum((flat.shard if engine.zero_stage == 3 else flat.full).double().abs().sum().item() for flat in flats)


# -- a training that may hang ----------------------------------------------------------------------------------------

class OneExpert(nn.Module):
    """A layer that all samples go through, and an expert that some do."""

    def __init__(self):
        super().__init__()
        self.common, self.expert = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor, to_expert: bool) -> torch.Tensor:
        x = self.common(x)
        return self.expert(x) if to_expert else x


def play_expert(bug=None, seconds: float = 1.0) -> dict:
    """Two steps in which only rank 1 uses the expert: this rank's calls, and the error in which it ended, if it did.

    seconds: after which a collective that nobody answers is given up. Collective.
    """
    comm = Comm(dist.new_group(), timeout=seconds)
    model = OneExpert()
    error = None
    with bug.planted() if bug else nullcontext():
        model, optimizer = shard(model, torch.optim.SGD(model.parameters(), lr=0.1), stage=0, comm=comm, bucket_size=16)
        try:
            for _ in range(2):
                model(torch.ones(1, 4), to_expert=comm.rank == 1).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        except CollectiveError as caught:
            error = str(caught)
    return {"error": error, "calls": [(verb, unit) for verb, unit, *_ in comm.issued]}
