"""An endless stream of a rank's micro-batches, epoch after epoch, which goes on at another number of ranks too.

It communicates nothing. Shapes: B samples in a micro-batch, T tokens in a sample.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import BadInput
from .sampler import ShardSampler
from .text import TextDataset, read_tokens

HUGGING_FACE = "dataset_info.json", "dataset_dict.json"  # one of them is in what `datasets` has saved
COLUMNS = "input_ids", "text"  # which of a dataset's columns is read: the first of them that it has


class TokenStream:
    """Yields for every optimizer step this rank's micro-batches, a list of (x_BT, y_BT), int64.

    A step takes world_size x accumulation x micro_batch samples, in an order that depends on the seed and the epoch
    alone: streams with equally large steps see the same samples in each step, however many ranks and micro-batches
    share them. An epoch gives every sample once, except the last ones when they do not fill a step.

    `state_dict` counts the samples that all ranks together have been given, so it is the same on every rank, and a
    stream of any other number of ranks goes on behind the last of them. Raises BadInput for a text without a step.
    """

    def __init__(self, dataset: TextDataset, rank: int = 0, world_size: int = 1, micro_batch: int = 1,
                 accumulation: int = 1, seed: int = 0):
        self.dataset, self.micro_batch = dataset, micro_batch
        # One batch of the sampler is a step, not a micro-batch: no step has samples of two epochs, and the samples that
        # an epoch leaves out do not depend on how a step is divided.
        self.sampler = ShardSampler(len(dataset), rank, world_size, micro_batch * accumulation, seed=seed)

    @property
    def epoch(self) -> int:
        """The number of the epoch of the last step, from 0."""
        return self.sampler.epoch

    def __iter__(self) -> Iterator[list[tuple[Tensor, Tensor]]]:
        for indices in self.indices():
            parts = (indices[first:first + self.micro_batch] for first in range(0, len(indices), self.micro_batch))
            yield [tuple(map(torch.stack, zip(*(self.dataset[i] for i in part), strict=True))) for part in parts]

    def indices(self) -> Iterator[list[int]]:
        """The numbers of this rank's samples, one list for every step, without end."""
        while True:
            yield from self.sampler

    def state_dict(self) -> dict[str, int]:
        """The position behind the last step that was taken from the stream."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from that position. Raises BadInput if the text or the seed differ from those at saving."""
        self.sampler.load_state_dict(state)


def open_tokens(source: str | Path) -> np.ndarray:
    """The tokens of a file or a folder of text (see `read_tokens`), or of a Hugging Face dataset on disk.

    Of such a dataset the column `input_ids` is read, or else `text`, whose bytes are the tokens; of several splits
    `train`. Raises BadInput when that cannot be, also when the package `datasets` is not installed.
    """
    if any(Path(source, name).is_file() for name in HUGGING_FACE):
        return _hugging_face(Path(source))
    return read_tokens(source)


def _hugging_face(folder: Path) -> np.ndarray:
    try:
        import datasets
    except ImportError:
        raise BadInput(f"{folder} is a Hugging Face dataset, which needs the package datasets: install it, or save the "
                       "text as plain files") from None
    try:
        dataset = datasets.load_from_disk(str(folder))
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder} cannot be read as a Hugging Face dataset: {error}") from error
    if isinstance(dataset, datasets.DatasetDict):
        if "train" not in dataset:
            raise BadInput(f"{folder} has the splits {', '.join(dataset)}: name the folder of one of them")
        dataset = dataset["train"]
    column = next((name for name in COLUMNS if name in dataset.column_names), None)
    if column is None:
        raise BadInput(f"{folder} has the columns {', '.join(dataset.column_names)}: one must be {' or '.join(COLUMNS)}")
    if column == "text":
        tokens = np.frombuffer("\n".join(dataset[column]).encode(), np.uint8)
    else:
        tokens = np.concatenate([np.asarray(row, np.int64) for row in dataset[column]] or [np.empty(0, np.int64)])
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < 1 << 16:
            raise BadInput(f"{folder} has tokens from {tokens.min()} to {tokens.max()}: they must be from 0 to 65535")
        tokens = tokens.astype(np.uint16)
    if not len(tokens):
        raise BadInput(f"{folder} is empty: name a dataset with text in it")
    return tokens
