"""Values, calls and lines of code in words, for verdicts."""

import linecache
import math
import os
import re
import sysconfig
import traceback
from collections.abc import Iterator

from .catalogue import sentences

WORDS = 400  # characters of an exception's message
LISTED = 16  # elements of a tensor that are told one by one
CUT = re.compile(r"\.\.\.|a tensor of shape")  # in words for a value: they are not the whole of it
_OURS = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))  # the package
_NOT_THEIRS = (_OURS + os.sep, "<frozen", "<string>",
               *(sysconfig.get_path(key) + os.sep for key in ("stdlib", "platstdlib", "purelib", "platlib")))


def call_text(name: str, args=(), kwargs=None) -> str:
    """A call as the learner would write it: `model_states(7_500_000_000, 2, 64)`."""
    words = [value_text(arg) for arg in args] + [f"{key}={value_text(arg)}" for key, arg in (kwargs or {}).items()]
    return f"{name}({', '.join(words)})"


def value_text(value, longest: int = 160) -> str:
    """A value in few words; large numbers with their thousands apart."""
    if type(value) is int:
        return f"{value:_}" if abs(value) >= 10_000 else str(value)
    if type(value) in (list, tuple):
        inner = ", ".join(value_text(item, longest) for item in value)
        text = f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    elif type(value) is dict:
        text = "{" + ", ".join(f"{key!r}: {value_text(item, longest)}" for key, item in value.items()) + "}"
    elif hasattr(value, "numel") and value.numel() > LISTED:
        text = f"a tensor of shape {tuple(value.shape)}"
    elif callable(value) and hasattr(value, "__name__"):
        text = value.__name__
    else:
        try:
            text = " ".join(repr(value).split())
        except Exception:  # the learner's own __repr__
            text = f"a {type(value).__name__}"
    return text if len(text) <= longest else f"{text[:longest - 3]}..."


def short_text(value) -> str:
    """As `value_text`, with numbers to four places and strings as they are."""
    if hasattr(value, "tolist") and math.prod(value.shape) <= LISTED:
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(short_text, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else value_text(value)


def two_texts(got, want) -> tuple[str, str]:
    """Two values in words, which differ where the values do: where `short_text` says the same of both, with more digits, with their
    dtypes or types, or with the place in a list or a tensor where they differ."""
    short = short_text(got), short_text(want)
    if short[0] != short[1]:
        return short
    if type(got) is type(want) and hasattr(got, "dtype") and got.dtype != want.dtype:
        return f"{short[0]} in {got.dtype}", f"{short[1]} in {want.dtype}"
    if (one := value_text(got)) != (other := value_text(want)):
        return one, other
    if type(got) is not type(want):
        return f"{short[0]} ({a(got)})", f"{short[1]} ({a(want)})"
    for place, one, other in _elements(got, want):
        if len(set(texts := two_texts(one, other))) > 1:
            return f"{short[0]} with {texts[0]} at {place}", f"{short[1]} with {texts[1]} at {place}"
    return short


def _elements(got, want) -> Iterator[tuple[list, object, object]]:
    """(place, what stands there in one, and in the other) of two sequences or tensors of one size, where they differ."""
    if hasattr(got, "tolist") and got.shape == want.shape and len(got.shape):
        yield from ((place.tolist(), got[tuple(place)].item(), want[tuple(place)].item()) for place in (got != want).nonzero())
    elif isinstance(got, (list, tuple)) and len(got) == len(want):
        yield from (([index], one, other) for index, (one, other) in enumerate(zip(got, want, strict=True)))


def a(value) -> str:
    """The type in words: "an int", "a Tensor"."""
    name = type(value).__name__
    return sentences(a)["an" if name.lower().startswith((*"aeiou", "nd")) else "a"].format(type=name)


def ended(text: str) -> str:
    """With a full stop, unless it ends in a mark of its own."""
    return text if text.endswith((".", "?", "!", "。", "？", "！")) else f"{text}."


def own_frame(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame of the learner's own code."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return next((frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)), None)


def message_text(error: BaseException) -> str:
    """What an exception says, in one line, after a colon; or nothing."""
    message = " ".join(str(error).split())
    return f": {message[:WORDS]}{'...' * (len(message) > WORDS)}" if message else ""


def line_text(error: BaseException) -> str:
    """Words for the line of that frame, or nothing."""
    frame = own_frame(error)
    if frame is None:
        return ""
    text = _source(frame)
    return f" (line {frame.lineno}: `{text}`)" if text else f" (line {frame.lineno})"


def blank_of(error: BaseException) -> str | None:
    """The name of the function that is still a blank; None for other errors, torch's NotImplementedError among them."""
    frame = own_frame(error)
    if not isinstance(error, NotImplementedError) or frame is None:
        return None
    return frame.name if "NotImplementedError" in (_source(frame) or "NotImplementedError") else None


def _source(frame: traceback.FrameSummary) -> str:
    return linecache.getline(frame.filename, frame.lineno).strip()
