"""Weights in a local folder of safetensors, of which any range of elements is read by itself. It communicates nothing.

A file is 8 bytes (the header's length n), n bytes of JSON (each tensor's dtype, shape and place), and the elements. So
a part of a parameter is one seek and one read, in whatever row it begins, and a rank reads no byte that it does not
own.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import BadInput

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
          "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
          "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64}
LONGEST_HEADER = 100_000_000  # bytes, as in the format's own reader


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor's elements lie: `file`, from byte `at` on."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    at: int


class SafetensorsFolder:
    """The tensors of all `*.safetensors` in a folder (or of one file), by name. `bytes_read` counts what was read of
    their elements."""

    def __init__(self, path: str | Path):
        path = Path(path)
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        if not files or not all(file.is_file() for file in files):
            raise BadInput(f"there are no safetensors in {path}: name a folder with *.safetensors in it, or such a file")
        self.path, self.bytes_read = path, 0
        self.tensors = {name: stored for file in files for name, stored in read_header(file).items()}

    def name_of(self, names: list[str], prefix: str = "") -> str | None:
        """Under which of these names a tensor is stored. prefix: of a Hugging Face model's inner model, which may be
        there or not."""
        for name in names:
            for spelt in (name, name.removeprefix(f"{prefix}."), f"{prefix}.{name}"):
                if spelt in self.tensors:
                    return spelt
        return None

    def read(self, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Elements [start, stop) of a tensor, in the order of its rows; 1-D, in the dtype of the file. Raises
        BadInput."""
        stored = self.tensors[name]
        stop = math.prod(stored.shape) if stop is None else stop
        values = torch.empty(stop - start, dtype=stored.dtype)
        memory = memoryview(values.view(torch.uint8).numpy()) if values.numel() else memoryview(b"")
        with stored.file.open("rb", buffering=0) as file:
            file.seek(stored.at + start * stored.dtype.itemsize)
            done = 0
            while done < len(memory):
                some = file.readinto(memory[done:])
                if not some:
                    raise BadInput(f"{stored.file} ends in the middle of {name!r}: it is damaged")
                done += some
        self.bytes_read += done
        return values


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one file. Raises BadInput when it is none of safetensors."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > LONGEST_HEADER:
                raise ValueError("its header would be too long")
            header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        return {name: StoredTensor(file, DTYPES[said["dtype"]], tuple(said["shape"]),
                                   8 + length + said["data_offsets"][0]) for name, said in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{file} is not a file of safetensors: {error}") from error
