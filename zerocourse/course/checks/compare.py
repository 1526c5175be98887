"""Is what an answer returned what it should have returned? And if not, in words: where not."""

import math
import numbers
import sys

from .words import a, value_text

CLOSE = 1e-9  # relative, between floats


def same(got, want, **how) -> bool:
    """Equal in value and kind. Lists and tuples count as one kind; floats may differ by 1e-9 of their size.

    exact=False: an int may also come as a float. tolerance: of elements of tensors. close: instead of 1e-9.
    nan=True: NaN is like NaN. (Else it is like nothing.)
    """
    return difference(got, want, **how) is None


def difference(got, want, at: str = "", *, exact: bool = True, verb: str = "it returned",
               tolerance: float = 1e-6, close: float = CLOSE, nan: bool = False) -> str | None:
    """The first difference in words, "it returned 3 where 4 is right"; None when there is none.

    tolerance: of elements of tensors, relative where they are larger than 1.   close: of floats, relative.
    """
    how = {"exact": exact, "verb": verb, "tolerance": tolerance, "close": close, "nan": nan}
    here = f"at `{at}` {verb}" if at else verb

    def plain() -> str:  # in words only where they are wanted: most comparisons only ask whether there is a difference
        return f"{here} {value_text(got)} where {value_text(want)} is right"

    if got is None and want is not None:
        hint = ": does it end without `return`?" if here == "it returned" else ""
        return f"{here} None where {value_text(want)} is right{hint}"
    if _is_tensor(want):
        return _tensor_difference(got, want, here, tolerance, nan)
    if isinstance(want, dict):
        return _dict_difference(got, want, at, here, how)
    if isinstance(want, (list, tuple)):
        if not isinstance(got, (list, tuple)):
            return f"{here} {a(got)} where {a(want)} is right: {value_text(got)} instead of {value_text(want)}"
        if len(got) != len(want):
            counts = f"{len(got)} entries where {len(want)} are right"
            return f"{here} {counts}: {value_text(got)} instead of {value_text(want)}"
        pairs = enumerate(zip(got, want, strict=True))
        return next((text for i, (g, w) in pairs if (text := difference(g, w, f"{at}[{i}]", **how))), None)
    if isinstance(want, bool) or not isinstance(want, numbers.Real):
        return None if type(got) is type(want) and got == want else plain()
    if isinstance(got, bool) or not isinstance(got, numbers.Real):
        return f"{here} {value_text(got)}, {a(got)}, where {value_text(want)} is right"
    if isinstance(want, numbers.Integral) and exact:
        if isinstance(got, numbers.Integral):
            return None if got == want else plain()
        if got == want:
            return (f"{here} {value_text(got)}, {a(got)}: the number is right, but it has to be an int, because a "
                    "float loses whole numbers above 2^53; divide with // and not with /")
        return plain()
    if nan and math.isnan(got) and math.isnan(want):
        return None
    return None if math.isclose(got, want, rel_tol=close) else plain()


def _dict_difference(got, want: dict, at: str, here: str, how: dict) -> str | None:
    if not isinstance(got, dict):
        return f"{here} {value_text(got)}, {a(got)}, where a dictionary is right: {value_text(want)}"
    for key in want:
        if key not in got:
            return f"{here} no entry {key!r}: it has {', '.join(map(repr, got)) or 'none'}"
    for key in got:
        if key not in want:
            return f"{here} an entry {key!r} that should not be there: {', '.join(map(repr, want))} are right"
    return next((text for key in want if (text := difference(got[key], want[key], f"{at}[{key!r}]", **how))), None)


def _is_tensor(value) -> bool:
    return "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor)


def _tensor_difference(got, want, here: str, tolerance: float, nan: bool) -> str | None:
    if not _is_tensor(got):
        return f"{here} {value_text(got)}, {a(got)}, where a tensor of shape {tuple(want.shape)} is right"
    if got.shape != want.shape:
        return f"{here} a tensor of shape {tuple(got.shape)} where {tuple(want.shape)} is right"
    if got.dtype != want.dtype:
        return f"{here} a tensor of {got.dtype} where {want.dtype} is right"
    equal = got == want  # infinities are equal too
    if bool(equal.all()):
        return None
    alike = equal | (got.isnan() & want.isnan() & nan)
    gap = (got.double() - want.double()).abs().masked_fill(alike, 0.0)
    near = (gap <= tolerance * want.double().abs().clamp(min=1)) & gap.isfinite()  # an infinite bound allows nothing
    if bool((alike | near).all()):
        return None
    place = tuple(int(i) for i in (gap.nan_to_num(math.inf) == gap.nan_to_num(math.inf).max()).nonzero()[0])
    return f"{here} {got[place].item():.6g} at index {list(place)} where {want[place].item():.6g} is right"
