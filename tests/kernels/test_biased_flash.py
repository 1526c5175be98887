"""Attention with two biases and with blocks left out equals the plain one, forward and backward, and reads only what is seen."""

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


def drawn(*shapes):
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=draw).requires_grad_() for shape in shapes]


def plain(q, k, v, key_bias, pair_bias):
    """With all scores at once."""
    scores = torch.einsum("bnthd,bnshd->bnhts", q, k) * q.shape[-1] ** -0.5
    for bias in (key_bias, pair_bias):
        scores = scores if bias is None else scores + bias
    return torch.einsum("bnhts,bnshd->bnthd", scores.softmax(-1), v)


def equals_plain(T, which):
    from zerocourse.kernels.attention.biased_flash import evoformer_attention

    q, k, v, key_bias, pair_bias = drawn(*[(2, 3, T, 2, 16)] * 3, (2, 3, 1, 1, T), (2, 1, 2, T, T))
    with torch.no_grad():
        key_bias[..., -T // 4:] = -1e9  # padding
    biases = [bias if name in which else None for name, bias in (("key", key_bias), ("pair", pair_bias))]
    inputs = [each for each in (q, k, v, *biases) if each is not None]
    ours, exact = evoformer_attention(q, k, v, *biases), plain(q, k, v, *biases)
    torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-5)
    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1))
    for one, other in zip(torch.autograd.grad((ours * weights).sum(), inputs), torch.autograd.grad((exact * weights).sum(), inputs), strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("T, which", ((40, ("key", "pair")), (33, ("pair",)), (64, ("key",)), (17, ())))
def test_two_biases_and_their_gradients(interpreter, T, which):
    interpreter(equals_plain, T, which)


def equals_masked():
    from zerocourse.kernels.attention.biased_flash import BLOCK, block_sparse_attention, near_and_first

    q, k, v = drawn(*[(2, 3, 150, 16)] * 3)
    seen = near_and_first(3, 150, near=1, first=1).clone()
    seen[2] = torch.eye(5, dtype=torch.bool)
    dense = seen.repeat_interleave(BLOCK, 1).repeat_interleave(BLOCK, 2)[:, :150, :150]
    ours, exact = block_sparse_attention(q, k, v, seen), F.scaled_dot_product_attention(q, k, v, attn_mask=dense)
    torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-5)
    for one, other in zip(torch.autograd.grad(ours.square().sum(), (q, k, v)), torch.autograd.grad(exact.square().sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    seen[0, 1] = False  # a block that sees nothing
    blind = block_sparse_attention(q, k, v, seen)
    assert not blind[:, 0, BLOCK : 2 * BLOCK].any() and torch.equal(blind[:, 1], ours[:, 1])
    assert all(each.isfinite().all() for each in torch.autograd.grad(blind.square().sum(), (q, k, v)))


def test_blocks_that_are_left_out(interpreter):
    interpreter(equals_masked)


def bytes_read():
    from zerocourse.kernels.attention.biased_flash import block_sparse_attention
    from zerocourse.kernels.traffic import of_triton

    q, k, v = (each.detach() for each in drawn(*[(1, 2, 128, 16)] * 3))
    found = {}
    for name, seen in (("all", torch.ones(2, 4, 4, dtype=torch.bool)), ("own", torch.eye(4, dtype=torch.bool).expand(2, 4, 4))):
        found[name] = of_triton(lambda seen=seen: block_sparse_attention(q, k, v, seen)).read
    return found, q.nbytes


def test_what_is_left_out_is_not_read(interpreter):
    """Each of four blocks of queries reads four blocks of keys and values, or one; and of the mask a byte for each."""
    found, nbytes = interpreter(bytes_read)
    assert found == {"all": nbytes + 2 * 4 * nbytes + 32, "own": nbytes + 2 * nbytes + 32}


def equals_flex():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    from zerocourse.kernels.attention.biased_flash import BLOCK, block_sparse_attention, near_and_first

    q, k, v = (each.detach() for each in drawn(*[(1, 2, 128, 16)] * 3))
    seen = near_and_first(2, 128, near=1, first=0)
    mask = create_block_mask(lambda b, h, i, j: (i // BLOCK - j // BLOCK).abs() <= 1, None, None, 128, 128, device="cpu", BLOCK_SIZE=BLOCK)
    torch.testing.assert_close(block_sparse_attention(q, k, v, seen), flex_attention(q, k, v, block_mask=mask), rtol=1e-4, atol=1e-5)


def test_torchs_flex_attention_says_the_same(interpreter):
    interpreter(equals_flex)


def refused():
    from zerocourse.kernels.attention.biased_flash import block_sparse_attention, evoformer_attention

    q = torch.randn(1, 2, 8, 2, 16)
    for wrong, words in ((lambda: evoformer_attention(q, q, q, torch.zeros(1, 2, 8)),
                          r"key_bias is \(1, 2, 8\): for queries .* it must be \(1, 2, 1, 1, 8\)"),
                         (lambda: evoformer_attention(q, q[:, :, :4], q), "they must be alike"),
                         (lambda: evoformer_attention(*[q[..., :12]] * 3), "a power of two, 16 at least"),
                         (lambda: evoformer_attention(*[q.bfloat16()] * 3), "multiplies bf16 wrongly"),
                         (lambda: block_sparse_attention(*[q[0]] * 3, torch.ones(2, 2, 2)), "in blocks of 32 it must be")):
        with pytest.raises(BadInput, match=words):
            wrong()


def test_other_shapes_are_refused(interpreter):
    interpreter(refused)


@pytest.mark.parametrize("gpu, has", (("sm_75", True), ("sm_80", True), ("sm_90", True), ("sm_80", False)))
def test_it_compiles_for_gpus_without_spills(gpu, has):
    from zerocourse.kernels.attention.biased_flash import biased_kernel
    from zerocourse.kernels.machine_code import compile_for

    types = {**dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "key_bias_ptr", "pair_bias_ptr", "out_ptr"), "*fp16"), "mask_ptr": "*i8", "lse_ptr": "*fp32",
             **dict.fromkeys("TSNH", "i32"), "scale": "fp32"}
    flags = {"D": 32, "HAS_KEY": has, "HAS_PAIR": has, "HAS_MASK": has, "BLOCK_T": 32, "BLOCK_S": 32}
    code = compile_for(biased_kernel, gpu, types, flags, [name for name in types if name != "scale"])
    assert code.spills == 0 and bool(code.matrix_instructions) == (gpu != "sm_75")
