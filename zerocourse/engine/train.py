"""A training run from its first step to its last, on each rank: what `zerocourse train` does. The engine communicates.

    outcome = train(TrainSettings(config, CONFIGS["gpt2-tiny"], "book.txt", steps=100))

Shapes: B samples in a micro-batch, T tokens in a sample.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from ..comm.device_clock import finished
from ..data.text import TextDataset
from ..data.tokens import TokenStream, open_tokens
from ..errors import BadInput
from ..init.deferred import deferred_init
from ..measure.ledger import Ledger
from ..measure.watched_step import watched_step
from ..models.gpt2 import GPT, GPTConfig
from .checkpoint.folders import checkpoint_folder as folders
from .checkpoint.folders.folder_lock import FolderLock
from .engine import Engine, initialize

COLUMNS = ("step", "epoch", "samples", "loss", "learning_rate", "gradient_norm", "step_seconds", "tokens_per_second")
"""What is known of every step. The loss is the mean over the whole batch, before the update; samples count from the
run's beginning."""
BYTES = ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "peak_bytes", "sent_bytes", "total_bytes")  # of a rank
DEVICE_PEAK = "device_peak_bytes"  # on a GPU: of its allocator


LOCK = "train.lock"  # in the folder of the checkpoints
EARLIER_ATTEMPT_SECONDS = 60.0  # a disk of the network may notice late that the rank that held the lock is gone


@dataclass(frozen=True)
class TrainSettings:
    """What a run is made of. The same on every rank."""

    config: dict | str | Path  # with an optimizer
    model: GPTConfig
    data: str | Path  # see `open_tokens`
    steps: int  # the step with which the run ends, counted from the beginning also when it is resumed
    tokens: int | None = None  # in a sample (T); None: as many as the model reads at most
    seed: int = 0  # of the parameters and of the order of the samples
    checkpoints: str | Path | None = None  # the folder of the checkpoints; None: none is written
    save_every: int = 100  # steps; the last step is saved in any case
    resume: bool = False  # from the latest checkpoint
    may_restart: bool = False  # a checkpoint that is there is of an earlier attempt of this run: go on from it
    run: str = ""  # a name of the run, which its checkpoints have; the same after an elastic restart
    keep: int | None = None  # how many of the last checkpoints stay; None: all

    @property
    def resumes(self) -> bool:
        return self.resume or (self.may_restart and folders.latest(Path(self.checkpoints)) is not None)


def open_dataset(settings: TrainSettings) -> TextDataset:
    """The samples of a run. Raises BadInput when the data cannot be read, or the model does not know its tokens."""
    dataset = TextDataset(open_tokens(settings.data), settings.tokens or settings.model.block_size)
    dataset.check_vocab(settings.model.vocab_size)
    return dataset


def train(settings: TrainSettings, tell: Callable[[dict], None] = lambda row: None) -> dict:
    """Run on this rank. Collective.

    tell: called after each step with what is known of it, by `COLUMNS`.
    Returns `rows` (a list of all steps from the beginning, also of those before a resume, by `COLUMNS`), `resumed_from`
    (a step, or None), `device`, and the bytes of this rank: `parameters_bytes`, `gradients_bytes` (just before the
    update), `optimizer_bytes`, their sum as `total_bytes`, `peak_bytes` and `sent_bytes`, all of the run's second step
    (or of its only one; None where a run was resumed that had made its last step). Raises
    BadInput when there is no checkpoint to resume, when it is of another model or text, and while another run has the
    folder of the checkpoints.
    """
    torch.manual_seed(settings.seed)
    with deferred_init():
        model = GPT(settings.model)
    engine = initialize(model=model, config=settings.config, seed=settings.seed)[0]
    dataset = open_dataset(settings)
    stream = TokenStream(dataset, engine.global_rank, engine.world_size, engine.train_micro_batch_size_per_gpu(),
                         engine.gradient_accumulation_steps(), settings.seed)
    with alone(engine, settings):
        return run(engine, stream, settings, tell)


@contextmanager
def alone(engine: Engine, settings: TrainSettings) -> Iterator[None]:
    """No other run writes checkpoints into the folder meanwhile. Collective. Raises BadInput, on every rank, if one does."""
    if settings.checkpoints is None:
        yield
        return
    lock = FolderLock(Path(settings.checkpoints, LOCK), "trains with the checkpoints of this folder",
                      "let it end, or name another folder", settings.run)
    with lock:
        error = None
        if engine.global_rank == 0:
            try:
                lock.take(EARLIER_ATTEMPT_SECONDS)
            except (BadInput, OSError) as caught:
                error = str(caught)
        for each in engine.zero.groups.all_gather_object(error):
            if each is not None:
                raise BadInput(each)
        yield


def run(engine: Engine, stream: TokenStream, settings: TrainSettings, tell: Callable[[dict], None]) -> dict:
    """The steps of `train`."""
    rows, resumed_from = [], None
    if settings.resumes:
        _, client = engine.load_checkpoint(settings.checkpoints)
        stream.load_state_dict(client["stream"])
        rows, resumed_from = list(map(as_row, client["rows"].tolist())), engine.global_steps
    samples, counts = rows[-1]["samples"] if rows else 0, dict.fromkeys(BYTES)
    watch = min(engine.global_steps + 2, settings.steps)  # the optimizer's states are there from the second step on
    coming = iter(stream)
    while engine.global_steps < settings.steps:
        began, number, rate = finished(engine.device), engine.global_steps + 1, engine.get_lr()[0]
        batches = next(coming)
        if number == watch:
            loss, counts = watched(engine, batches)
        else:
            loss = step(engine, batches)
        seconds = finished(engine.device) - began
        samples += engine.train_batch_size()
        speed = engine.train_batch_size() * stream.dataset.block_size / seconds
        rows.append(as_row((number, stream.epoch, samples, loss, rate, engine.get_global_grad_norm(), seconds, speed)))
        tell(rows[-1])
        if settings.checkpoints is not None and (number % settings.save_every == 0 or number == settings.steps):
            values = torch.tensor([list(row.values()) for row in rows], dtype=torch.float64)
            engine.save_checkpoint(settings.checkpoints, client_state={
                "stream": stream.state_dict(), "rows": values, "run": settings.run,
                "batch": [engine.train_batch_size(), engine.train_micro_batch_size_per_gpu()]})
            if settings.keep is not None and engine.global_rank == 0:  # the new one is whole on the disk by now
                folders.keep_last(Path(settings.checkpoints), settings.keep)
    return {"rows": rows, "resumed_from": resumed_from, "device": str(engine.device), **counts}


def step(engine: Engine, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """One optimizer step. Returns the mean loss over the micro-batches of all ranks. Collective."""
    total = torch.zeros((), dtype=torch.float64, device=engine.device)
    for x_BT, y_BT in batches:
        loss = engine(x_BT.to(engine.device), y_BT.to(engine.device))
        engine.backward(loss)
        engine.step()
        total += loss.detach()
    return engine.zero.comm.all_reduce(total).item() / (len(batches) * engine.world_size)


def watched(engine: Engine, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[float, dict[str, int]]:
    """The same under the ledger. Returns the loss and this rank's bytes."""
    with Ledger(engine.module, engine.optimizer) as ledger, engine.zero.meter.watched_by(ledger):
        got = watched_step(ledger, engine.optimizer, engine.zero.comm, lambda: step(engine, batches))
    counts = {name: got[name] for name in (*BYTES, DEVICE_PEAK) if name in got}
    return got["loss"], counts | {"total_bytes": sum(got[name] for name in BYTES[:3])}


def as_row(values: Iterable[float]) -> dict[str, int | float]:
    """The values of one step by their names."""
    row = dict(zip(COLUMNS, values, strict=True))
    return row | {name: int(row[name]) for name in ("step", "epoch", "samples")}
