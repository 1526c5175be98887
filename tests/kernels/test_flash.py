"""The small flash attention equals torch's, its lse merges as a ring merges, and it reads what the formula says."""

import pytest
import torch
import torch.nn.functional as F

from zerocourse.errors import BadInput
from zerocourse.launch.ranks import Ranks

triton = pytest.importorskip("triton", reason="kernels need triton (Linux; the `triton` extra)")


@pytest.fixture(scope="module")
def interpreter():
    with Ranks(1, env={"TRITON_INTERPRET": "1"}, timeout=100, quiet=True) as ranks:
        yield lambda fn, *args: ranks.run(fn, *args)[0]


def drawn(T, S, D=16, heads=3, dtype=torch.float32):
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(2, heads, rows, D, generator=draw).to(dtype) for rows in (T, S, S)]


def equals_torch():
    from zerocourse.kernels.flash import flash_attention
    from zerocourse.parallel.context.score_block import block_forward

    for T, S, D, causal in ((80, 80, 16, True), (1, 1, 16, True), (64, 64, 32, True), (70, 33, 16, False), (5, 130, 64, False)):
        q, k, v = drawn(T, S, D)
        out, lse = flash_attention(q, k, v, causal=causal)
        exact, exact_lse = block_forward(q, k, v, D**-0.5, causal)
        torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, is_causal=causal), rtol=1e-5, atol=2e-6)
        torch.testing.assert_close(out, exact, rtol=1e-5, atol=2e-6)
        torch.testing.assert_close(lse, exact_lse, rtol=1e-5, atol=2e-6)
    half = drawn(40, 40, dtype=torch.float16)
    out, lse = flash_attention(*half)
    assert out.dtype is torch.float16 and lse.dtype is torch.float32
    exact = F.scaled_dot_product_attention(*(each.float() for each in half), is_causal=True)
    torch.testing.assert_close(out.float(), exact, rtol=2e-3, atol=2e-3)
    large = [each * 40 for each in drawn(40, 40)]  # exp of such scores is no number
    assert flash_attention(*large)[0].isfinite().all()


def test_it_equals_torchs_attention(interpreter):
    interpreter(equals_torch)


def merges():
    """Keys in two halves, each by the kernel, are all keys: the second half of the queries sees the first half of the keys whole."""
    from zerocourse.kernels.flash import flash_attention
    from zerocourse.parallel.context.score_block import merge

    q, k, v = drawn(64, 64)
    own, own_lse = flash_attention(q[:, :, 32:], k[:, :, 32:], v[:, :, 32:])
    earlier, earlier_lse = flash_attention(q[:, :, 32:], k[:, :, :32], v[:, :, :32], causal=False)
    out, lse = merge(own, own_lse, earlier, earlier_lse)
    whole, whole_lse = flash_attention(q, k, v)
    torch.testing.assert_close(out, whole[:, :, 32:], rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(lse, whole_lse[:, :, 32:], rtol=1e-5, atol=2e-6)


def test_its_log_sum_exp_merges_as_a_ring_does(interpreter):
    interpreter(merges)


def bytes_of_flash():
    from zerocourse.kernels.flash import flash_attention, flash_reads
    from zerocourse.kernels.traffic import of_triton

    found = []
    for T, S, causal in ((80, 80, True), (200, 200, True), (70, 33, False)):
        q, k, v = drawn(T, S)
        counted = of_triton(lambda q=q, k=k, v=v, causal=causal: flash_attention(q, k, v, causal=causal))
        found.append((counted.read, flash_reads(6, T, S, 16, 4, causal), counted.written, q.nbytes + 4 * 6 * T))
    return found


def test_it_reads_and_writes_what_the_formula_says(interpreter):
    for read, formula, written, whole in interpreter(bytes_of_flash):
        assert read == formula and written == whole


def refused():
    from zerocourse.kernels.flash import flash_attention

    q, k, v = drawn(8, 8)
    for wrong, words in ((lambda: flash_attention(q, k, v[..., :8]), "must be alike"),
                         (lambda: flash_attention(*drawn(8, 9)), "as many keys as queries"),
                         (lambda: flash_attention(*drawn(8, 8, D=24)), "a power of two, 16 at least"),
                         (lambda: flash_attention(*drawn(8, 8, dtype=torch.bfloat16)), "multiplies bf16 wrongly")):
        with pytest.raises(BadInput, match=words):
            wrong()


def test_other_shapes_are_refused(interpreter):
    interpreter(refused)


@pytest.mark.parametrize("gpu, products", (("sm_75", False), ("sm_80", True), ("sm_90", True)))
def test_its_products_are_matrix_instructions_where_triton_has_them(gpu, products):
    from zerocourse.kernels.flash import flash_kernel
    from zerocourse.kernels.machine_code import compile_for

    types = {**dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "out_ptr"), "*fp16"), "lse_ptr": "*fp32", "T": "i32", "S": "i32", "scale": "fp32"}
    code = compile_for(flash_kernel, gpu, types, {"D": 64, "CAUSAL": True, "BLOCK_T": 64, "BLOCK_S": 32}, [name for name in types if name != "scale"])
    assert bool(code.matrix_instructions) == products
