"""One kernel in the interpreter, in a process whose other kernels are compiled: with and without triton's decorator and annotations."""

import pytest
import torch

triton = pytest.importorskip("triton", reason="kernels need triton (Linux; the `triton` extra)")
tl = pytest.importorskip("triton.language")

from zerocourse.kernels.backend import INTERPRETED  # noqa: E402
from zerocourse.kernels.interpreted import interpreted  # noqa: E402
from zerocourse.kernels.traffic import Traffic, of_interpreter  # noqa: E402


def plain(x_ptr, y_ptr, n, BLOCK):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


@triton.jit
def decorated(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


@pytest.mark.parametrize("kernel", (plain, decorated))
@pytest.mark.parametrize("n, block", ((1000, 256), (256, 256), (1, 64)))
def test_it_runs_where_kernels_are_compiled_and_its_bytes_are_counted(kernel, n, block):
    assert not INTERPRETED
    x, y = torch.randn(n + 7), torch.zeros(n + 7)
    moved = of_interpreter(lambda: interpreted(kernel)[(-(-n // block),)](x, y, n, BLOCK=block))
    assert torch.equal(y[:n], 2 * x[:n]) and not y[n:].any()
    assert moved == Traffic(4 * n, 4 * n)


def test_the_kernel_itself_is_as_it_was():
    interpreted(decorated)
    assert isinstance(decorated, triton.JITFunction) and interpreted(plain) is not plain
