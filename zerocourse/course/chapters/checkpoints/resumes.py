"""A training that is stopped and goes on from its checkpoint, with everything in it or with one part left out.

It is small, and everything that a checkpoint can hold plays a role in it: bf16 parameters with fp32 master weights,
AdamW, a learning rate that falls, dropout, and a text that is read in a shuffled order.
"""

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ....data.text import TextDataset, read_tokens
from ....data.tokens import TokenStream
from ....engine.checkpoint.folders import checkpoint_folder as folders
from ....engine.checkpoint.folders.checkpoint_index import read_index
from ....engine.checkpoint.pieces import pieces_to_read
from ....engine.checkpoint.source import Source
from ....engine.engine import Engine, initialize
from ....engine.train import step
from ....init.deferred import deferred_init
from ....models.gpt2 import GPT, GPTConfig
from ....zero.whole.weights import publish
from ...museum.breaks import Break
from ...museum.bug import Bug

MODEL = GPTConfig(2, 2, 32, block_size=32, vocab_size=256, dropout=0.1)
NO_DROPOUT = replace(MODEL, dropout=0.0)
TEXT = Path(sysconfig.get_path("stdlib")) / "textwrap.py"  # Python's own, some 19 kB
STEPS, STOP = 30, 12  # of the whole run; after which it is stopped
PARTS = {"optimizer": "the optimizer's averages", "masters": "the fp32 master weights",
         "scheduler": "the scheduler's position", "random": "the random states", "stream": "the position in the data"}
"""What may be left out of a checkpoint beside the parameters."""


@dataclass
class Training:
    """An engine and the stream that feeds it, on this rank."""

    engine: Engine
    stream: TokenStream
    coming: Iterator | None = None

    @property
    def masters(self) -> list[torch.Tensor]:
        """This rank's slices of the fp32 master weights."""
        return [flat.master for flat in self.engine.zero.flats]

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.engine.optimizer

    @property
    def scheduler(self):
        return self.engine.lr_scheduler

    @property
    def steps_done(self) -> int:
        return self.engine.global_steps

    @steps_done.setter
    def steps_done(self, steps: int) -> None:
        self.engine.global_steps = steps

    def publish(self) -> None:
        """The parameters of all ranks become the rounded master weights. Collective."""
        publish(self.engine.zero)

    def steps(self, until: int) -> list[float]:
        """Train up to the end of step `until`. Returns the mean losses over all ranks. Collective."""
        self.coming = self.coming or iter(self.stream)  # one iterator: another would begin the epoch again
        losses = []
        while self.engine.global_steps < until:
            losses.append(step(self.engine, next(self.coming)))
        return losses

    def save(self, folder: str) -> None:
        self.engine.save_checkpoint(folder, client_state={"stream": self.stream.state_dict()})


def begun(stage: int = 2, seed: int = 0, model: GPTConfig = MODEL, half: bool = True) -> Training:
    """A training before its first step; a step takes 12 samples, on 1, 2, 3 or 6 ranks. Collective."""
    torch.manual_seed(seed)
    with deferred_init():
        gpt = GPT(model)
    config = {"train_batch_size": 12, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": half},
              "zero_optimization": {"stage": stage}, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
              "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 3,
                                                                "total_num_steps": STEPS}}}
    engine = initialize(model=gpt, config=config, seed=seed)[0]
    torch.manual_seed(seed + engine.global_rank)  # every rank has its own dropout
    stream = TokenStream(TextDataset(read_tokens(TEXT), model.block_size), engine.global_rank, engine.world_size,
                         engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps(), seed)
    return Training(engine, stream)


def never_stopped(folder: str) -> list[float]:
    """The losses of a run that goes from its first step to its last, and saves on the way. Collective."""
    training = begun()
    losses = training.steps(STOP)
    training.save(folder)
    return losses + training.steps(STEPS)


@dataclass(frozen=True)
class SliceRead:
    """Bytes that a rank reads: a run of a tensor, from a file. start, stop: elements of the tensor."""

    tensor: str
    file: str
    rank: int
    start: int
    stop: int
    nbytes: int


def transfers(folder: Path, tensor: str, start: int, stop: int, rank: int) -> list[SliceRead]:
    """From which files a rank reads elements `start` to `stop` of a tensor that was saved in pieces (1-D)."""
    entry, found = read_index(folder)["tensors"][tensor], []
    itemsize = getattr(torch, entry["dtype"]).itemsize
    for chunk in entry["chunks"]:
        (offset,), (length,) = chunk["offset"], chunk["sizes"]
        first, last = max(start, offset), min(stop, offset + length)
        if first < last:
            found.append(SliceRead(tensor, chunk["file"], rank, first, last, (last - first) * itemsize))
    return found


def wanted(stage: int) -> list[tuple[str, int, int]]:
    """What this rank would read of the parameters: (tensor, start, stop) of every piece. Collective."""
    engine = begun(stage).engine
    return [(piece.tensor, piece.offset[0], piece.offset[0] + len(piece.values))
            for flat in engine.zero.flats for piece in pieces_to_read(flat)]


def save_at(folder: str, stage: int, half: bool = True) -> int:
    """Two steps, then a checkpoint. Returns the bytes of optimizer states that this rank holds. Collective."""
    training = begun(stage, model=NO_DROPOUT, half=half)
    training.steps(2)
    training.save(folder)
    return training.engine.memory()["optimizer_bytes"]


def source_of(folder: str) -> Source:
    """The latest checkpoint in a folder."""
    return Source(folders.must_read(Path(folder, folders.latest(Path(folder)))))


SAME_RANDOM_STATES = Bug(
    "same_random_states", "after a resume every rank has the random states of rank 0",
    "none: the losses are as good as before, and only a comparison with the unhurt run differs",
    "the losses, bit by bit, beside those of a run that was never stopped", "common",
    "engine/checkpoint/test_checkpoints.py::test_training_goes_on_bitwise_at_any_number_of_ranks_stage_and_map",
    (Break("engine.checkpoint.loading:load_checkpoint", "states= object().args", '"random/0"'),))
