"""Numbers with units, read and written: "7B" parameters, "24 GiB". GB is 10^9 bytes and GiB is 2^30, never mixed."""

import re
from decimal import Decimal

from ..errors import BadInput

COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
BYTE_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
              "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def parse_count(text: str) -> int:
    """A number of parameters: "124439808", "7e9", "1.5B", "124M". Raises BadInput."""
    return _parse(text, COUNT_UNITS, "a count such as 7e9, 7B or 124M")


def parse_bytes(text: str) -> int:
    """A number of bytes: "24GiB", "24 GB", "512MiB". "24G" could be either unit and is refused. Raises BadInput."""
    return _parse(text, BYTE_UNITS, "a size in bytes such as 24GiB (24 x 2^30) or 24GB (24 x 10^9)")


def _parse(text: str, units: dict[str, int], wanted: str) -> int:
    match = re.fullmatch(r"([\d,_]*\.?\d+(?:e\+?\d{1,2})?)\s*([a-z]*)", text.strip(), re.IGNORECASE)
    if match and match[2].lower() in units:
        value = Decimal(re.sub("[,_]", "", match[1])) * units[match[2].lower()]
        if value >= 1:
            return int(value)  # 24.1GiB is no whole number of bytes
    raise BadInput(f"{text!r} is not {wanted}.")


def gb(nbytes: int) -> str:
    """Three digits in decimal units: "31.4 GB"."""
    return _format(nbytes, 1000, ("B", "kB", "MB", "GB", "TB", "PB"))


def gib(nbytes: int) -> str:
    """Three digits in binary units: "29.2 GiB"."""
    return _format(nbytes, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def both(nbytes: int) -> str:
    """Both decimal and binary units: "31.4 GB (29.2 GiB)"."""
    return f"{gb(nbytes)} ({gib(nbytes)})"


def _format(nbytes: int, step: int, units: tuple[str, ...]) -> str:
    value, unit = nbytes, 0
    while value >= step and unit < len(units) - 1:
        value, unit = value / step, unit + 1
    digits = 0 if unit == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {units[unit]}"


def integer(value: object, name: str, least: int, most: int | None = None) -> int:
    """The value as an int. JSON's 5e8 counts as one, true does not. Raises BadInput."""
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(number, bool) or not isinstance(number, int) or number < least or (most is not None and number > most):
        span = f"from {least} to {most}" if most is not None else f"of at least {least}"
        raise BadInput(f"{name} is {value!r}: it must be an integer {span}")
    return number
