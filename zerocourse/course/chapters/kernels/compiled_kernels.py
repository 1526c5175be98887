"""The package's kernels in the machine code of a GPU that is not here."""

from collections.abc import Iterable

STATES = "p_ptr", "g_ptr", "m_ptr", "v_ptr"
SCALARS = "kept", "step_size", "one_minus_beta1", "beta2", "one_minus_beta2", "root_correction2", "eps"
BLOCK = 1024  # elements of a program, for which it has 4 · 32 threads


def adamw_code(gpu: str, not_aligned: Iterable[str] = ()):
    """AdamW in fp32 as `kernels.machine_code.compile_for` gives it.   not_aligned: of STATES and "n", those that are no multiples of 16."""
    from ....kernels.adamw_kernel import adamw_kernel
    from ....kernels.machine_code import compile_for

    types = {**dict.fromkeys(STATES, "*fp32"), "n": "i32", **dict.fromkeys(SCALARS, "fp32")}
    return compile_for(adamw_kernel, gpu, types, {"BLOCK": BLOCK}, [name for name in (*STATES, "n") if name not in not_aligned])


def int8_product_code(gpu: str):
    """A matrix of 8-bit numbers times a vector; the loads of its loop are counted once: ROWS rows of 256 weights."""
    from ....kernels.int8_product import CONFIG, int8_product_kernel
    from ....kernels.machine_code import compile_for

    pointers = {"payload_ptr": "*u8", **dict.fromkeys(("scales_ptr", "x_ptr", "out_ptr"), "*fp32")}
    return compile_for(int8_product_kernel, gpu, pointers | {"O": "i32", "I": "i32"}, CONFIG.kwargs, [*pointers, "I"], CONFIG.num_warps)


def flash_code(gpu: str, dtype: str = "fp16", width: int = 64):
    """Attention of heads with `width` features; loops are counted once."""
    from ....kernels.flash import CONFIG, flash_kernel
    from ....kernels.machine_code import compile_for

    pointers = {**dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "out_ptr"), f"*{dtype}"), "lse_ptr": "*fp32"}
    return compile_for(flash_kernel, gpu, pointers | {"T": "i32", "S": "i32", "scale": "fp32"},
                       {"D": width, "CAUSAL": True, **CONFIG.kwargs}, pointers, CONFIG.num_warps)
