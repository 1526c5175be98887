"""A product of 8-bit weights that are read as they are is that of the restored weights; bytes are those of the formula."""

import pytest
import torch
import torch.nn.functional as F

from zerocourse.launch import Ranks

triton = pytest.importorskip("triton", reason="kernels need triton (Linux; the `triton` extra)")

SHAPES = ((1, 256), (15, 256), (16, 512), (17, 768), (100, 1024))


@pytest.fixture(scope="module")
def interpreter():
    with Ranks(1, env={"TRITON_INTERPRET": "1"}, timeout=100, quiet=True) as ranks:
        yield lambda function, *args: ranks.run(function, *args)[0]


def matrix(outputs, inputs, kind="ordinary"):
    """(O, I), and a vector, with which every scale and every place counts."""
    draw = torch.Generator().manual_seed(outputs)
    weights = torch.randn(outputs, inputs, generator=draw) * torch.logspace(-3, 3, inputs // 256).repeat_interleave(256)
    if kind == "zeros":
        weights[:, :256] = 0
    if kind == "infinity":
        weights[0, 3], weights[outputs - 1, inputs - 1] = torch.inf, torch.nan
    return weights * torch.logspace(0, 2, outputs)[:, None], torch.randn(inputs, generator=draw)


def apart(outputs, inputs, kind="ordinary", dtype=torch.float32):
    """The largest relative difference to fp64 where that is finite, whether the same ones are, and what lies before and behind the result."""
    from zerocourse.kernels.int8_product import int8_product
    from zerocourse.parallel.plusplus.blocks import dequantize, quantize

    weights, x = matrix(outputs, inputs, kind)
    x = x.to(dtype)
    kept = quantize(weights.reshape(1, -1), 8)
    restored = dequantize(kept, weights.numel(), 8).view_as(weights).double()
    exact, ours = restored @ x.double(), int8_product(kept.payload, kept.scales, x)
    finite = exact.isfinite()
    bound = (restored.abs() @ x.double().abs()).clamp(min=1e-30)  # of the terms of a sum
    off = ((ours - exact).abs() / bound)[finite].max().item() if finite.any() else 0.0
    return off, torch.equal(ours.isfinite(), finite), ours.dtype is torch.float32 and ours.shape == (outputs,)


@pytest.mark.parametrize("kind", ("ordinary", "zeros", "infinity"))
def test_it_is_the_product_of_the_restored_weights(interpreter, kind):
    for shape in SHAPES:
        off, finite, right = interpreter(apart, *shape, kind)
        assert off < 1e-6 and finite and right, (shape, off)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_a_vector_in_half_precision_is_multiplied_in_fp32(interpreter, dtype):
    assert interpreter(apart, 17, 512, "ordinary", dtype)[0] < 1e-6


def poisoned():
    """Nothing before or behind a payload, scales or a vector is used, whatever it is; is anything else of the result's memory written?"""
    from zerocourse.kernels import int8_product as module

    O, I = 19, 512  # noqa: E741
    weights, x = matrix(O, I)
    kept = module_quantize(weights)
    payload, scales, vector = (torch.cat([poison(each), each.view(-1), poison(each)])[64:-64] for each in (*kept, x))
    held = torch.full((O + 128,), 7.0)
    out, empty = held[64:-64], torch.empty
    try:
        torch.empty = lambda *args, **kwargs: out
        module.int8_product(payload, scales, vector)
    finally:
        torch.empty = empty
    return torch.equal(out, module.int8_product(*kept, x)), bool((held[:64] == 7).all() and (held[-64:] == 7).all())


def module_quantize(weights):
    from zerocourse.parallel.plusplus.blocks import quantize

    kept = quantize(weights.reshape(1, -1), 8)
    return kept.payload, kept.scales


def poison(tensor):
    return torch.full((64,), 113 if tensor.dtype is torch.uint8 else torch.nan, dtype=tensor.dtype)


def test_what_lies_beside_is_neither_read_into_it_nor_written(interpreter):
    assert interpreter(poisoned) == (True, True)


def traffic_of(outputs, inputs):
    from zerocourse.kernels.int8_product import int8_product, int8_product_bytes
    from zerocourse.kernels.traffic import of_triton

    weights, x = matrix(outputs, inputs)
    kept = module_quantize(weights)
    moved = of_triton(lambda: int8_product(*kept, x))
    return (moved.read, moved.written), int8_product_bytes(outputs, inputs)


def test_a_weight_is_read_once_in_one_byte(interpreter):
    for shape in SHAPES:
        moved, formula = interpreter(traffic_of, *shape)
        assert moved == formula, shape
    outputs, inputs = 32, 768
    _, (read, written) = interpreter(traffic_of, outputs, inputs)
    assert read == outputs * inputs + 4 * outputs * 3 + 4 * inputs * 2 and written == 4 * outputs


def test_restored_by_pytorch_a_weight_moves_31_bytes():
    from zerocourse.kernels.int8_product import int8_product_bytes
    from zerocourse.kernels.traffic import of_torch
    from zerocourse.parallel.plusplus.blocks import Quantized, dequantize

    weights, x = matrix(64, 1024)
    kept = module_quantize(weights)
    plain = of_torch(lambda: F.linear(x, dequantize(Quantized(*kept), weights.numel(), 8).view(64, 1024)))
    assert 31 < plain.total / weights.numel() < 31.1 and sum(int8_product_bytes(64, 1024)) < 1.3 * weights.numel()


def refused():
    from zerocourse.errors import BadInput
    from zerocourse.kernels.int8_product import int8_product

    said = []
    for payload, scales, inputs in ((512, 2, 200), (600, 2, 256), (512, 1, 256), (512, 2, 0)):
        try:
            int8_product(torch.zeros(payload, dtype=torch.uint8), torch.zeros(scales), torch.zeros(inputs))
        except BadInput as error:
            said.append(str(error))
    return said


def test_what_is_no_matrix_of_whole_scales_is_refused(interpreter):
    said = interpreter(refused)
    assert len(said) == 4 and said[0] == ("512 weights, 2 scales and 200 inputs: a row must be as long as the inputs, and have a scale for each "
                                          "256 of its weights")


def nothing():
    from zerocourse.kernels.int8_product import int8_product

    return int8_product(torch.zeros(0, dtype=torch.uint8), torch.zeros(0), torch.zeros(256)).shape


def test_no_rows_are_no_numbers(interpreter):
    assert interpreter(nothing) == (0,)


def test_it_compiles_for_cards_that_are_not_here():
    """Weights come 16 at a time, nothing spills, and places are counted in 64 bits: a head of 2**31 weights is one of those that exist."""
    from zerocourse.course.chapters.kernels.compiled_kernels import int8_product_code
    from zerocourse.kernels.int8_product import BLOCK, CONFIG, ROWS, int8_product_kernel
    from zerocourse.kernels.machine_code import GPUS, compile_for

    pointers = {"payload_ptr": "*u8", "scales_ptr": "*fp32", "x_ptr": "*fp32", "out_ptr": "*fp32"}
    for gpu in GPUS:
        code = int8_product_code(gpu)
        assert not code.spills and code.loads[16] * 16 * code.threads == ROWS * BLOCK.value, "all weights of a turn, and nothing else"
        odd = compile_for(int8_product_kernel, gpu, pointers | {"O": "i32", "I": "i32"}, CONFIG.kwargs, [*pointers], CONFIG.num_warps)
        assert max(odd.loads) < 16, "rows of any length could begin anywhere"
        assert "mul.lo.s64" in code.ptx and "mul.lo.s32" not in code.ptx
