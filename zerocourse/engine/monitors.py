"""What a step did, written where the config says: `csv_monitor` and `tensorboard`. Rank 0 writes; nothing is sent.

Names and steps are DeepSpeed's: Train/Samples/train_loss (of rank 0's micro-batches), lr, and in fp16 loss_scale, over the samples
of all ranks so far.
"""

import csv
import warnings
from pathlib import Path

import torch

from ..errors import BadInput
from .config import Config

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
