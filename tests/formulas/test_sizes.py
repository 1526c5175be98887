"""Numbers with units: what goes in, what comes out, and never GB for GiB."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zerocourse.errors import BadInput
from zerocourse.formulas.units import both, gb, gib, parse_bytes, parse_count


@pytest.mark.parametrize("text, count", [
    ("7e9", 7 * 10**9), ("7B", 7 * 10**9), ("7b", 7 * 10**9), ("1.5B", 15 * 10**8), ("124M", 124 * 10**6),
    ("124439808", 124_439_808), ("124,439,808", 124_439_808), ("1_000", 1000), (".5k", 500), ("1T", 10**12),
    (" 7 B ", 7 * 10**9), ("1.557611200e9", 1_557_611_200), ("4.1B", 4_100_000_000),
])
def test_counts(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize("text, nbytes", [
    ("24GiB", 24 * 2**30), ("24GB", 24 * 10**9), ("24 gib", 24 * 2**30), ("512MiB", 2**29), ("1.5KiB", 1536),
    ("80e9B", 80 * 10**9), ("1TB", 10**12), ("1TiB", 2**40), ("24.1GiB", 25_877_177_958),
])
def test_bytes(text, nbytes):
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "B", "-5", "0", "12 parsecs", "nan", "inf", "0.5", "1e999999999", "1.2.3", "0x10",
                                  "7GiB", ",", "1e-3", "٣e"])
def test_no_counts(text):
    with pytest.raises(BadInput, match="is not a count such as 7e9, 7B or 124M"):
        parse_count(text)


@pytest.mark.parametrize("text", ["24", "24G", "24Gi", "-1GB", "GiB", "0.1B", "24 GiB/s", "7e9"])
def test_no_bytes(text):
    with pytest.raises(BadInput, match="is not a size in bytes such as 24GiB"):
        parse_bytes(text)


@pytest.mark.parametrize("nbytes, decimal, binary", [
    (31_406_250_000, "31.4 GB", "29.2 GiB"), (120 * 10**9, "120 GB", "112 GiB"), (1_875_000_000, "1.88 GB", "1.75 GiB"),
    (24 * 2**30, "25.8 GB", "24.0 GiB"), (512, "512 B", "512 B"), (0, "0 B", "0 B"), (999_999, "1000 kB", "977 KiB"),
    (9_996_000_000, "10.0 GB", "9.31 GiB"), (250 * 10**18, "250000 PB", "222045 PiB"),
])
def test_formats(nbytes, decimal, binary):
    assert (gb(nbytes), gib(nbytes), both(nbytes)) == (decimal, binary, f"{decimal} ({binary})")


@settings(deadline=None)
@given(st.integers(1, 10**18))
def test_a_printed_size_reads_back(nbytes):
    assert parse_count(str(nbytes)) == nbytes
    if nbytes < 10**15:
        for text in (gb(nbytes), gib(nbytes)):
            assert parse_bytes(text) == pytest.approx(nbytes, rel=0.006)
