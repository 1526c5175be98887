"""What a rank saw, as data: values in a form that JSON can hold, and back, so that nobody loads a learner's pickle.

Numbers, strings, None and lists are themselves; the rest is a dictionary of one entry that names its kind.
"""

import base64
import numbers
from dataclasses import dataclass, field

import numpy
import torch

LONGEST_INT = 10_000  # bits: Python does not turn longer ones into digits


@dataclass(frozen=True)
class Raised:
    """Stands for a value where the answer raised what the check allows."""

    kind: str
    message: str = field(compare=False)
    name: str = field(compare=False)  # of its class, which may be derived from `kind`

    def __repr__(self) -> str:
        return f"(raises {self.kind})"


def encode(value):
    """`value` of numbers, strings, tensors, arrays of numbers, lists, tuples, sets and dictionaries as JSON can hold it.

    Subclasses travel as what they derive from, a named tuple as a tuple. Raises TypeError for anything else.
    """
    match value:
        case None | bool() | float():
            return value
        case numpy.bool():
            return bool(value)
        case str():
            return str(value)
        case numbers.Integral() if abs(value) < 1 << LONGEST_INT:
            return int(value)
        case numbers.Real() if not isinstance(value, numbers.Integral):
            return float(value)
        case complex():
            return {"complex": [value.real, value.imag]}
        case list():
            return list(map(encode, value))
        case tuple() | set() | frozenset():
            kind = next(name for name, each in _SEQUENCES.items() if isinstance(value, each))
            return {kind: list(map(encode, value))}
        case range():
            return {"range": [value.start, value.stop, value.step]}
        case dict():
            return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
        case bytes():
            return {"bytes": base64.b64encode(value).decode()}
        case numpy.ndarray() if value.dtype.kind in "biuf":
            return {"array": [str(value.dtype), list(value.shape), base64.b64encode(value.tobytes()).decode()]}
        case torch.Tensor():
            return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape), _content(value)]}
        case torch.dtype():
            return {"dtype": str(value).removeprefix("torch.")}
        case torch.device():
            return {"device": str(value)}
        case Raised():
            return {"raised": [value.kind, value.message, value.name]}
    raise TypeError(f"a {type(value).__name__} cannot be sent as data")


def decode(data):
    """The inverse of `encode`. It makes plain values and tensors, and raises ValueError for what is no encoding."""
    if isinstance(data, list):
        return list(map(decode, data))
    if not isinstance(data, dict):
        return data
    try:
        (kind, content), = data.items()
        if kind in _SEQUENCES:
            return _SEQUENCES[kind](map(decode, content))
        return _READERS[kind](content)
    except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise ValueError(f"this is no value that a rank may send: {error}") from None


def can_travel(value) -> bool:
    """Can it be encoded?"""
    try:
        encode(value)
    except Exception:  # the learner's own classes may raise anything
        return False
    return True


def _content(tensor: torch.Tensor) -> str | None:
    """A tensor's bytes in base64; None on the meta device."""
    if tensor.device.type == "meta":
        return None
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().reshape(-1).clone(memory_format=torch.contiguous_format)
    return base64.b64encode(flat.view(torch.uint8).numpy().tobytes()).decode()


def _tensor(dtype: str, shape: list[int], content: str | None) -> torch.Tensor:
    if content is None:
        return torch.empty(shape, dtype=_dtype(dtype), device="meta")
    raw = bytearray(base64.b64decode(content))
    flat = torch.frombuffer(raw, dtype=_dtype(dtype)) if raw else torch.empty(0, dtype=_dtype(dtype))
    return flat.reshape(shape)


def _array(dtype: str, shape: list[int], content: str) -> numpy.ndarray:
    """Raises ValueError for a dtype that is not of numbers, of which a pickle could be read."""
    if numpy.dtype(dtype).kind not in "biuf":
        raise ValueError(f"{dtype} is no dtype of numbers")
    return numpy.frombuffer(base64.b64decode(content), dtype=dtype).reshape(shape)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"torch.{name} is no dtype")
    return dtype


_SEQUENCES = {"tuple": tuple, "set": set, "frozenset": frozenset}
_READERS = {"dict": lambda pairs: {decode(key): decode(item) for key, item in pairs},
            "complex": lambda parts: complex(*parts), "bytes": base64.b64decode, "range": lambda parts: range(*parts),
            "tensor": lambda parts: _tensor(*parts), "array": lambda parts: _array(*parts), "dtype": _dtype, "device": torch.device,
            "raised": lambda parts: Raised(*map(str, parts))}
