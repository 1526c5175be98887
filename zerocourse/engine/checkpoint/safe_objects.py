"""Everything in a checkpoint that is not a big tensor, kept so that reading it runs no code. It communicates
nothing."""

import io
import random

import numpy
import torch

from ...errors import BadInput


def packed(value: object, called: str) -> io.BytesIO:
    """The value as bytes. Raises BadInput that names what `unpacked` would refuse to read, before anything is
    written."""
    stream = io.BytesIO()
    try:
        torch.save(value, stream)
        stream.seek(0)
        torch.load(stream, weights_only=True, map_location="cpu")
    except Exception as error:  # of many types, the user's own among them
        if isinstance(value, dict):
            for key, inner in value.items():
                packed(inner, f"{called}[{key!r}]")
        raise BadInput(f"{called} is {_said(value)}, and a checkpoint holds only what can be read without running its code: "
                       "numbers, strings, tensors, and lists, tuples and dictionaries of them") from error
    stream.seek(0)
    return stream


def unpacked(stream: io.IOBase) -> object:
    return torch.load(stream, weights_only=True, map_location="cpu")


def _said(value: object) -> str:
    return f"of type {type(value).__module__}.{type(value).__qualname__}"


def random_states(device: torch.device) -> dict[str, object]:
    """The states of Python's, numpy's and torch's generators."""
    kind, keys, *rest = numpy.random.get_state()
    states = {"python": random.getstate(), "numpy": (kind, keys.tolist(), *rest), "torch": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_random_states(states: dict[str, object], device: torch.device) -> None:
    random.setstate(states["python"])
    numpy.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
