"""Kernels compiled for GPUs that are not here: the bytes in their code are those of the formulas, in pieces of 16, without spills."""

import pytest

from zerocourse.errors import BadInput

triton = pytest.importorskip("triton", reason="kernels need triton (Linux; the `triton` extra)")
tl = pytest.importorskip("triton.language")

from zerocourse.kernels.adamw_kernel import adamw_kernel  # noqa: E402
from zerocourse.kernels.layernorm import backward_kernel, forward_kernel  # noqa: E402
from zerocourse.kernels.machine_code import GPUS, compile_for  # noqa: E402
from zerocourse.kernels.traffic import adamw_bytes  # noqa: E402

STATES = ("p_ptr", "g_ptr", "m_ptr", "v_ptr")
ADAMW = {**dict.fromkeys(STATES, "*fp32"), "n": "i32",
         **dict.fromkeys(("kept", "step_size", "one_minus_beta1", "beta2", "one_minus_beta2", "root_correction2", "eps"), "fp32")}
N = 1024
ROWS = {**dict.fromkeys(("x_ptr", "weight_ptr", "bias_ptr", "y_ptr", "mean_ptr", "rstd_ptr"), "*fp32"), "R": "i32", "C": "i32", "eps": "fp32"}
BACK = {**dict.fromkeys(("dy_ptr", "x_ptr", "weight_ptr", "mean_ptr", "rstd_ptr", "dx_ptr", "dweights_ptr", "dbiases_ptr"), "*fp32"),
        "R": "i32", "C": "i32"}


@triton.jit
def product(a_ptr, b_ptr, out_ptr, SIDE: tl.constexpr):
    at = tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    tl.store(out_ptr + at, tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at)))


def adamw_for(gpu, aligned=(*STATES, "n"), dtype="*fp32"):
    return compile_for(adamw_kernel, gpu, ADAMW | dict.fromkeys(STATES[:2], dtype), {"BLOCK": N}, aligned)


@pytest.mark.parametrize("gpu", GPUS)
def test_the_code_of_adamw_moves_what_the_formula_says(gpu):
    code, formula = adamw_for(gpu), adamw_bytes(N)
    assert (code.read_bytes, code.written_bytes) == (formula.read, formula.written) == (16 * N, 12 * N)
    assert code.widest == 16 and not code.spills and 0 < code.registers < 256


def test_a_shard_that_begins_at_an_odd_element_moves_as_much_in_more_pieces():
    whole, odd = adamw_for("sm_75"), adamw_for("sm_75", (*STATES[1:], "n"))
    assert (odd.read_bytes, odd.written_bytes) == (whole.read_bytes, whole.written_bytes)
    assert dict(whole.loads) == {16: 8} and dict(odd.loads) == {16: 6, 4: 8}
    assert set(adamw_for("sm_75", STATES).loads) == {4}, "n is no multiple of 16: a mask may cut through four neighbours"


def test_half_precision_moves_half_of_what_is_half():
    code, formula = adamw_for("sm_80", dtype="*bf16"), adamw_bytes(N, 2)
    assert (code.read_bytes, code.written_bytes) == (formula.read, formula.written)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("centred", (True, False))
def test_norms_read_pieces_of_16_bytes_and_do_not_spill(gpu, centred):
    for kernel, types in ((forward_kernel, ROWS), (backward_kernel, BACK)):
        aligned = [name for name in types if name not in ("R", "eps")]
        code = compile_for(kernel, gpu, types, {"BLOCK_C": 1024, "CENTRED": centred, "BLOCK_R": 1}, aligned)
        assert max(code.loads) == max(code.stores) == 16 and not code.spills, kernel.__name__
        assert not code.matrix_instructions


def test_matrix_instructions_are_those_of_newer_cards():
    """Triton computes a product on a T4 number by number, in fp16 too."""
    types = {"a_ptr": "*fp16", "b_ptr": "*fp16", "out_ptr": "*fp32"}
    found = {gpu: compile_for(product, gpu, types, {"SIDE": 64}, tuple(types)).matrix_instructions for gpu in GPUS}
    assert found["sm_75"] == 0 and found["sm_80"] > 0 and found["sm_90"] > 0


@pytest.mark.parametrize("change, words", (({"gpu": "sm_60"}, "gpu is 'sm_60': it must be one of sm_75, sm_80, sm_90"),
                                           ({"types": {"p_ptr": "*fp32"}}, "g_ptr, m_ptr, .* of adamw_kernel: each argument must be in types or"),
                                           ({"aligned": ("q_ptr",)}, "adamw_kernel has no argument q_ptr")))
def test_what_cannot_be_compiled_is_refused(change, words):
    given = {"gpu": "sm_75", "types": ADAMW, "constants": {"BLOCK": N}} | change
    with pytest.raises(BadInput, match=words):
        compile_for(adamw_kernel, **given)
