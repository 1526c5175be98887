"""Blocks of 8 and 4 bits by the kernels are those of ZeRO++, bit by bit, and so is their sum; bytes are those of the formula."""

import pytest
import torch

from zerocourse.launch import Ranks

triton = pytest.importorskip("triton", reason="kernels need triton (Linux; the `triton` extra)")


@pytest.fixture(scope="module")
def interpreter():
    with Ranks(1, env={"TRITON_INTERPRET": "1"}, timeout=100, quiet=True) as ranks:
        yield lambda function, *args: ranks.run(function, *args)[0]


def rows_of(kind, numel):
    values = torch.randn(3, numel, generator=torch.Generator().manual_seed(numel)) * 1e-2
    if kind == "zeros":
        values[:, : numel // 2] = 0
    if kind == "ties":
        values = (torch.arange(3 * numel).view(3, numel) % 29 - 14) / 2
        values[:, ::256] = 127.0
    if kind == "one large number":
        values[1, numel // 2] = -1e4
    if kind == "infinity":
        values[0, 0], values[1, numel - 1], values[2, numel // 2] = torch.inf, -torch.inf, torch.nan
        values[0, min(1, numel - 1)] = 0
    return values


def apart(kind, numel, bits, dtype=torch.float32):
    """Whether payload and scales are the same, NaN counted as NaN; the largest difference of the sums, where both are finite; whether the
    same ones are not finite."""
    from zerocourse.kernels.quantize import quantize_rows, sum_of_rows
    from zerocourse.parallel.plusplus.blocks import BLOCK, Quantized, dequantize, quantize

    values = rows_of(kind, numel).to(dtype)
    payload, scales = quantize_rows(values, bits, BLOCK)
    plain = quantize(values, bits)
    ours, theirs = sum_of_rows(payload, scales, numel, bits, BLOCK), dequantize(Quantized(plain.payload, plain.scales), numel, bits).sum(0)
    finite = theirs.isfinite()
    return (torch.equal(payload, plain.payload), torch.equal(scales.nan_to_num(-1), plain.scales.nan_to_num(-1)),
            (ours - theirs)[finite].abs().max().item() if finite.any() else 0.0, torch.equal(ours.isfinite(), finite))


@pytest.mark.parametrize("bits", (8, 4))
@pytest.mark.parametrize("kind", ("ordinary", "zeros", "ties", "one large number", "infinity"))
def test_they_are_those_of_plain_pytorch(interpreter, kind, bits):
    for numel in (1, 255, 256, 1001):
        same, scales, sums, finite = interpreter(apart, kind, numel, bits)
        assert same and scales and finite and sums <= 1e-3 * (kind == "one large number") + 1e-5, (kind, numel, bits)


def test_half_precision_comes_in_too(interpreter):
    assert interpreter(apart, "ordinary", 700, 8, torch.float16)[:2] == (True, True)


def traffic_of(numel, bits):
    from zerocourse.kernels.quantize import quantize_bytes, quantize_rows, sum_of_rows
    from zerocourse.kernels.traffic import of_triton

    values, made = rows_of("ordinary", numel), []
    there = of_triton(lambda: made.extend(quantize_rows(values, bits, 256)))
    back = of_triton(lambda: sum_of_rows(*made, numel, bits, 256))
    return (there.read, there.written), (back.read, back.written), quantize_bytes(numel, 4, bits, 256)


@pytest.mark.parametrize("bits", (8, 4))
def test_each_number_is_read_once_and_a_sum_written_once(interpreter, bits):
    for numel in (512, 1001):
        there, back, (read, written) = interpreter(traffic_of, numel, bits)
        assert there == (3 * read, 3 * written)
        assert back == (3 * written, 4 * numel)


def refused():
    from zerocourse.errors import BadInput
    from zerocourse.kernels.quantize import quantize_rows

    said = []
    for bits, block in ((5, 256), (8, 100)):
        try:
            quantize_rows(torch.ones(1, 8), bits, block)
        except BadInput as error:
            said.append(str(error))
    return said


def test_other_sizes_are_refused(interpreter):
    assert interpreter(refused) == ["5 bits in blocks of 256: the kernel has 8 and 4 bits, and blocks of a power of two",
                                    "8 bits in blocks of 100: the kernel has 8 and 4 bits, and blocks of a power of two"]


def test_the_kernels_compile_for_cards_that_are_not_here():
    from zerocourse.kernels.machine_code import GPUS, compile_for
    from zerocourse.kernels.quantize import LARGEST, quantize_kernel, sum_kernel

    pointers = {"x_ptr": "*fp32", "payload_ptr": "*u8", "scales_ptr": "*fp32"}
    for gpu in GPUS:
        for bits in LARGEST:
            code = compile_for(quantize_kernel, gpu, pointers | {"n": "i32"}, {"BLOCK": 256, "BITS": bits, "MOST": LARGEST[bits]},
                               [*pointers, "n"], num_warps=1)
            assert not code.spills and max(code.loads) >= 4
            summing = {"payload_ptr": "*u8", "scales_ptr": "*fp32", "out_ptr": "*fp32"}
            assert not compile_for(sum_kernel, gpu, summing | {"n": "i32", "rows": "i32"}, {"BLOCK": 256, "BITS": bits}, [*summing, "n"],
                                   num_warps=1).spills
