"""What a training did, written for others. Rank 0 writes.

`Monitors` write after each step where the config says: `csv_monitor` and `tensorboard`. Names and steps are DeepSpeed's:
Train/Samples/train_loss (of rank 0's micro-batches), lr, and in fp16 loss_scale, over the samples of all ranks so far.
`MeasuredSteps` are what `engine.measured(...)` writes for `zerocourse receipt`, with the names that `zerocourse train` has.
"""

import csv
import json
import statistics
import warnings
from contextlib import ExitStack
from pathlib import Path

import torch

from ..comm.device_clock import finished
from ..errors import BadInput
from ..measure.ledger import Ledger
from .config import Config

HELD = ("parameters_bytes", "gradients_bytes", "optimizer_bytes")  # of a rank; gradients just before the update, the others after it
NAMES = "Train/Samples/train_loss", "Train/Samples/lr", "Train/Samples/loss_scale"


class Monitors:
    """The writers of a config; on other ranks than 0, and without any, nothing happens here.

    Raises BadInput where a folder cannot be made. Warns where TensorBoard is not installed.
    """

    def __init__(self, config: Config, rank: int):
        self.writers: list = []
        self.loss: torch.Tensor | None = None  # of the window so far, on its device: it is read at its end
        for section, make in (("csv_monitor", CSVWriter), ("tensorboard", tensorboard_writer)):
            monitor = getattr(config, section)
            if not monitor.enabled or rank:
                continue
            folder = Path(monitor.output_path, monitor.job_name)
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise BadInput(f"{section} cannot write into {folder}: {error.strerror}; set {section}.output_path to another folder") from error
            writer = make(folder)
            self.writers += [writer] if writer is not None else []

    def note(self, loss: torch.Tensor) -> None:
        """A micro-batch's share of the loss of its window."""
        if self.writers:
            self.loss = loss.detach() if self.loss is None else self.loss + loss.detach()

    def write(self, engine) -> None:
        """A step is over."""
        if not self.writers:
            return
        values = {NAMES[0]: None if self.loss is None else self.loss.item(), NAMES[1]: engine.get_lr()[0],
                  NAMES[2]: engine.loss_scale() if engine.fp16_enabled() else None}
        self.loss = None
        for writer in self.writers:
            for name, value in values.items():
                if value is not None:
                    writer.add_scalar(name, value, engine.global_samples)
            writer.flush()


class CSVWriter:
    """A file for each name, with a line for each step; a file that is there goes on."""

    def __init__(self, folder: Path):
        self.folder = folder

    def add_scalar(self, name: str, value: float, step: int) -> None:
        path = self.folder / f"{name.replace('/', '_')}.csv"
        is_new = not path.exists()
        with path.open("a", newline="") as file:
            lines = csv.writer(file)
            if is_new:
                lines.writerow(["step", name.rpartition("/")[2]])
            lines.writerow([step, value])

    def flush(self) -> None:
        """Each line is in its file already."""


def tensorboard_writer(folder: Path):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        warnings.warn("tensorboard is enabled in the config and not installed, so nothing is written for it: pip install tensorboard, "
                      "or use csv_monitor", stacklevel=2)
        return None
    return SummaryWriter(str(folder))


class MeasuredSteps:
    """The updates of an engine while it is asked to measure them. The first one makes the optimizer's states, the second is counted under
    the ledger, which takes time, and all after it are timed. An update that is skipped counts for nothing."""

    def __init__(self, engine):
        self.engine, self.watching = engine, ExitStack()
        self.counts: dict[str, int] | None = None  # of the second update
        self.seconds: list[float] = []
        self.ledger: Ledger | None = None
        self.gradients = self.sent = 0
        self.began = 0.0  # the end of the update before

    def before_update(self) -> None:
        if self.ledger is not None:
            self.gradients = self.ledger.now().gradients

    def after_update(self) -> None:
        engine = self.engine
        if self.ledger is not None:
            self.count(self.ledger)
        elif self.counts is not None:
            self.seconds.append(finished(engine.device) - self.began)
        elif engine.was_step_applied():
            self.sent = engine.communication()["sent_bytes"]
            self.ledger = self.watching.enter_context(Ledger(engine.module, engine.optimizer))
            self.watching.enter_context(engine.zero.meter.watched_by(self.ledger))
        self.began = finished(engine.device)

    def count(self, ledger: Ledger) -> None:
        """The window that was watched is over; where its update was skipped, the next one is watched."""
        engine, now = self.engine, ledger.now()
        sent, before = engine.communication()["sent_bytes"], self.sent
        self.sent = sent
        if engine.was_step_applied():
            held = dict(zip(HELD, (now.parameters, self.gradients, now.optimizer), strict=True))
            self.counts = held | {"total_bytes": sum(held.values()), "peak_bytes": ledger.peak, "sent_bytes": sent - before}
            self.stop()

    def stop(self) -> None:
        self.watching.close()
        self.ledger = None

    def of_rank(self) -> dict[str, int | float]:
        """Bytes of the update that was counted, and the median seconds of those after it. Raises BadInput where there were too few."""
        if self.counts is None or not self.seconds:
            raise BadInput(f"engine.measured saw {self.engine.global_steps} updates: it needs three at least, one that makes the optimizer's "
                           "states, one that is counted, and those after it, which are timed")
        return self.counts | {"step_seconds": statistics.median(self.seconds)}

    def write(self, folder: Path, tokens: int) -> None:
        """Rank 0 writes what all have found. Collective. tokens: of a sample.   Raises BadInput, on every rank."""
        engine, error = self.engine, None
        of_ranks = engine.zero.groups.all_gather_object(self.of_rank())
        if engine.global_rank == 0:
            try:
                write_summary(folder / "summary.json", engine, tokens, of_ranks)
            except OSError as caught:
                error = f"engine.measured cannot write into {folder}: {caught.strerror}"
        error = engine.zero.groups.all_gather_object(error)[0]
        if error is not None:
            raise BadInput(error)


def write_summary(file: Path, engine, tokens: int, of_ranks: list[dict]) -> None:
    """What `of_rank` found on each rank, by the names of `zerocourse train`. The file appears whole or not at all. Raises OSError."""
    seconds = max(each["step_seconds"] for each in of_ranks)
    params = sum(shape.numel() * (engine.world_size // flat.groups.size)  # ranks with different experts, and else 1
                 for flat in engine.zero.flats for shape in flat.layout.shapes.values())
    summary = {"model": type(engine.module).__name__, "params": params,
               "stage": engine.zero_stage, "ranks": engine.world_size, "device": str(engine.device), "torch": torch.__version__,
               "train_batch_size": engine.train_batch_size(), "tokens_per_sample": tokens, "steps": engine.global_steps,
               "step_seconds": seconds, "tokens_per_second": engine.train_batch_size() * tokens / seconds,
               **{name: [each[name] for each in of_ranks] for name in (*HELD, "total_bytes", "peak_bytes", "sent_bytes")}}
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.draft")
    draft.write_text(json.dumps(summary, indent=1) + "\n")
    draft.replace(file)
