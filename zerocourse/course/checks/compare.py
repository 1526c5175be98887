"""Is what an answer returned what it should have returned? And if not, in words: where not."""

import functools
import math
import numbers
import sys
from collections.abc import Callable

from .catalogue import sentences
from .words import a, value_text

CLOSE = 1e-9  # relative, between floats
SETS = set, frozenset


def same(got, want, **how) -> bool:
    """Equal in value and kind. Lists and tuples count as one kind; floats may differ by 1e-9 of their size.

    exact=False: an int may also come as a float. tolerance: of elements of tensors. close: instead of 1e-9.
    nan=True: NaN is like NaN. (Else it is like nothing.)
    """
    return difference(got, want, **how) is None


def difference(got, want, at: str = "", *, exact: bool = True, verb: str | None = None, tolerance: float = 1e-6,
               close: float = CLOSE, nan: bool = False, asks: bool = True) -> str | None:
    """The first difference in words, "it returned 3 where 4 is right"; None when there is none.

    verb: instead of "it returned".   asks: of what returned None, whether it ends without `return`.
    tolerance: of elements of tensors, relative where they are larger than 1.
    close: of floats, relative.
    """
    how = {"exact": exact, "verb": verb, "tolerance": tolerance, "close": close, "nan": nan}
    said = functools.partial(_in_words, got, want, at, verb)  # where words are wanted: most comparisons only ask for a difference
    if got is None and want is not None:
        return said("none", asks=asks)
    if _is_tensor(want):
        return _tensor_difference(got, want, at, verb, said, tolerance, nan)
    if isinstance(want, dict):
        return _dict_difference(got, want, at, said, how)
    if isinstance(want, (list, tuple)):
        if not isinstance(got, (list, tuple)):
            return said("kind of list")
        if len(got) != len(want):
            return said("length", entries=len(got), right=len(want))
        pairs = enumerate(zip(got, want, strict=True))
        return next((text for i, (g, w) in pairs if (text := difference(g, w, f"{at}[{i}]", **how))), None)
    if isinstance(want, bool) or not isinstance(want, numbers.Real):
        return None if type(got) is type(want) and got == want else said("value")
    if isinstance(got, bool) or not isinstance(got, numbers.Real):
        return said("kind")
    if isinstance(want, numbers.Integral) and exact:
        return None if got == want and isinstance(got, numbers.Integral) else said("float" if got == want else "value")
    if nan and math.isnan(got) and math.isnan(want):
        return None
    return None if math.isclose(got, want, rel_tol=close) else said("value")


def same_but_for_type(got, want, *, close: float = CLOSE, tolerance: float = 1e-6, least: float = 0.0, **_) -> bool:
    """Equal in value, of whatever type: a float for an int, 0 for False, a tensor, an array, a range or a set for a list, fp64
    for fp32. Between whole numbers nothing is rounded.   least: an absolute difference that is allowed, as between tensors."""
    if hasattr(got, "tolist") or hasattr(want, "tolist"):
        close = least = tolerance
    unordered = isinstance(got, SETS) or isinstance(want, SETS)
    got, want = _plain(got, unordered), _plain(want, unordered)
    alike = functools.partial(same_but_for_type, close=close, tolerance=tolerance, least=least)
    if isinstance(want, dict):
        return isinstance(got, dict) and got.keys() == want.keys() and all(alike(got[key], want[key]) for key in want)
    if isinstance(want, list):
        return isinstance(got, list) and len(got) == len(want) and all(map(alike, got, want))
    if isinstance(got, numbers.Real) and isinstance(want, numbers.Real) and not isinstance(want, numbers.Integral):
        return math.isclose(got, want, rel_tol=close, abs_tol=least)
    return got == want and isinstance(got, numbers.Real) == isinstance(want, numbers.Real)


def _plain(value, unordered: bool):
    """A sequence of whatever type as a list; a number that a tensor or an array is, as a number."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(value, (list, tuple, range, *SETS)):
        return value
    return sorted(value, key=repr) if unordered else list(value)


def _in_words(got, want, at: str, verb: str | None, name: str, asks: bool = False, **more) -> str:
    words = sentences(difference)
    verb = verb or words["verb"]
    if asks and not at and verb == words["verb"]:
        name = "no return"
    here = words["at"].format(at=at, verb=verb) if at else verb
    return words[name].format(here=here, got=value_text(got), want=value_text(want), a_got=a(got), a_want=a(want), **more)


def _dict_difference(got, want: dict, at: str, said: Callable[..., str], how: dict) -> str | None:
    if not isinstance(got, dict):
        return said("kind of dictionary")
    for key in want:
        if key not in got:
            return said("no entry" if got else "no entries", key=repr(key), keys=", ".join(map(repr, got)))
    for key in got:
        if key not in want:
            return said("other entry", key=repr(key), keys=", ".join(map(repr, want)))
    return next((text for key in want if (text := difference(got[key], want[key], f"{at}[{key!r}]", **how))), None)


def _is_tensor(value) -> bool:
    return "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor)


def _tensor_difference(got, want, at: str, verb: str | None, said: Callable[..., str], tolerance: float, nan: bool) -> str | None:
    if not _is_tensor(got):
        return said("kind of tensor", shape=tuple(want.shape))
    if got.shape != want.shape:
        return said("shape", shape=tuple(got.shape), right=tuple(want.shape))
    if got.dtype != want.dtype:
        return said("dtype", dtype=got.dtype, right=want.dtype)
    equal = got == want  # infinities are equal too
    if bool(equal.all()):
        return None
    alike = equal | (got.isnan() & want.isnan() & nan)
    gap = (got.double() - want.double()).abs().masked_fill(alike, 0.0)
    near = (gap <= tolerance * want.double().abs().clamp(min=1)) & gap.isfinite()  # an infinite bound allows nothing
    if bool((alike | near).all()):
        return None
    place = tuple(int(i) for i in (gap.nan_to_num(math.inf) == gap.nan_to_num(math.inf).max()).nonzero()[0])
    element, right = got[place].item(), want[place].item()
    if not place:
        return _in_words(element, right, at, verb, "value")
    exactly = " exactly" * (f"{element:.6g}" == f"{right:.6g}")
    return said(f"element{exactly}", element=element, place=list(place), right=right)
