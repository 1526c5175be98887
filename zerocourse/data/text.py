"""Text to train on, without a download: the bytes are the tokens. Communicates nothing. Big files stay on disk.

Shapes: B batch, T tokens.
"""

import os
import sysconfig
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import BadInput

NOT_TEXT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}  # in the standard library


class TextDataset(torch.utils.data.Dataset):
    """Non-overlapping windows of `tokens`: sample i is (x_T, y_T), int64, with y one token ahead of x.

    T is `block_size`. Raises BadInput if there are not enough tokens for one window and its last target.
    """

    def __init__(self, tokens: np.ndarray, block_size: int):
        if block_size < 1 or len(tokens) < block_size + 1:
            raise BadInput(f"{len(tokens)} tokens make no window of block_size = {block_size}: "
                           f"use at least {max(block_size, 1) + 1} tokens, or another block_size.")
        self.tokens, self.block_size = tokens, block_size

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.block_size

    def check_vocab(self, vocab_size: int) -> None:
        """Raise BadInput when a token has no row in an embedding of `vocab_size` rows. Reads them all, if need be."""
        if vocab_size <= np.iinfo(self.tokens.dtype).max and (largest := int(self.tokens.max())) >= vocab_size:
            raise BadInput(f"the text has a token {largest}, and a model of vocab_size = {vocab_size} knows 0 to "
                           f"{vocab_size - 1}: use a larger vocabulary, or other tokens.")

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        if not 0 <= i < len(self):
            raise IndexError(i)  # this ends a plain `for sample in dataset`
        first = i * self.block_size
        window = torch.from_numpy(self.tokens[first:first + self.block_size + 1].astype(np.int64))
        return window[:-1], window[1:]


def load_text(source: str | Path | None = None, block_size: int = 128) -> tuple[TextDataset, TextDataset]:
    """Train and validation sets, the latter the last 10 % of the source (at least one window).

    source: see `read_tokens`. Raises BadInput if it is too short for both.
    """
    return split(read_tokens(source), block_size, source or "The standard library")


def split(tokens: np.ndarray, block_size: int, called: object) -> tuple[TextDataset, TextDataset]:
    """The same of tokens that are read already. called: what an error calls them."""
    held_out = max(len(tokens) // 10, block_size + 1)
    if block_size < 1 or len(tokens) - held_out < block_size + 1:
        raise BadInput(f"{called} has {len(tokens)} tokens, and a window to train on and one "
                       f"to validate on take {2 * (block_size + 1)} at block_size = {block_size}.")
    return TextDataset(tokens[:-held_out], block_size), TextDataset(tokens[-held_out:], block_size)


def batches(dataset: torch.utils.data.Dataset, sampler: Iterable[list[int]]) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch of this rank's micro-batches (x_BT, y_BT), int64. Unlike a DataLoader it draws no random number."""
    for indices in sampler:
        x_T, y_T = zip(*(dataset[i] for i in indices), strict=True)
        yield torch.stack(x_T), torch.stack(y_T)


def read_tokens(source: str | Path | None = None) -> np.ndarray:
    """The tokens of `source`, 1-D uint8 or uint16, in the same order on every rank.

    None: the sources of Python's standard library. A folder: every file in it that is not hidden, one after the
    other. A `.npy` file: as `write_tokens` left it. Any other file: its bytes. A file is mapped, not loaded.
    Raises BadInput when it is missing, unreadable, empty, or not tokens.
    """
    path = Path(source) if source is not None else Path(sysconfig.get_path("stdlib"))
    try:
        if path.is_dir():
            files = standard_library() if source is None else _files_below(path)
            tokens = np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8)
        elif not path.exists():
            raise BadInput(f"There is no {path}: name a file or a folder of text.")
        elif not path.is_file():  # reading a pipe would never end
            raise BadInput(f"{path} is neither a file nor a folder.")
        elif path.stat().st_size == 0:  # cannot be mapped
            tokens = np.empty(0, np.uint8)
        elif path.suffix == ".npy":
            tokens = np.lib.format.open_memmap(path, "r")
        else:
            tokens = np.memmap(path, np.uint8, "r")
    except BadInput:
        raise
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read: {error}.") from error
    if tokens.ndim != 1 or tokens.dtype not in (np.uint8, np.uint16):
        raise BadInput(f"{path} holds {tokens.dtype} of shape {tokens.shape}, and tokens are 1-D uint8 or uint16.")
    if not len(tokens):
        raise BadInput(f"{path} is empty: name a file or a folder with text in it.")
    return tokens


def write_tokens(tokens: np.ndarray | bytes, out: str | Path) -> Path:
    """Save 1-D uint8 or uint16 `tokens` as the `.npy` file `out`, for `read_tokens`.

    The file appears whole or not at all, also when several ranks write it at once. Raises BadInput for other tokens.
    """
    out = Path(out)
    tokens = np.frombuffer(tokens, np.uint8) if isinstance(tokens, bytes) else np.asarray(tokens)
    if tokens.ndim != 1 or tokens.dtype not in (np.uint8, np.uint16) or out.suffix != ".npy":
        raise BadInput(f"write_tokens saves 1-D uint8 or uint16 in a .npy file, not {tokens.dtype} of shape "
                       f"{tokens.shape} in {out}.")
    out.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own in the same folder: no two ranks write into one file, and a rename there is atomic.
    draft = out.with_name(f"{out.name}.{uuid.uuid4().hex}")
    try:
        with draft.open("xb") as file:
            np.save(file, tokens)
        draft.replace(out)
    finally:
        draft.unlink(missing_ok=True)
    return out


def standard_library() -> list[Path]:
    """Python's own sources, without tests and installed packages: some 10 MB that every machine has."""
    return [file for file in _files_below(Path(sysconfig.get_path("stdlib")), skip=NOT_TEXT) if file.suffix == ".py"]


def encode(text: str) -> Tensor:
    """The bytes of `text` as tokens_T, int64."""
    return torch.tensor(list(text.encode()))


def decode(tokens_T: Tensor) -> str:
    """Tokens_T as text; a byte that is no UTF-8 shows as a replacement character."""
    return bytes(tokens_T.tolist()).decode(errors="replace")


def _files_below(folder: Path, skip: Iterable[str] = ()) -> list[Path]:
    """Every regular file, sorted by its path, hidden ones and folders named in `skip` left out. Raises OSError."""
    files = []

    def complain(error: OSError):  # os.walk would pass over a folder that it may not read
        raise error

    for parent, folders, names in os.walk(folder, onerror=complain):
        folders[:] = [name for name in folders if name not in skip and not name.startswith(".")]
        files += [Path(parent, name) for name in names if not name.startswith(".")]
    return sorted((file for file in files if file.is_file()), key=lambda file: file.relative_to(folder).as_posix())
