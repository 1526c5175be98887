"""Where a kernel runs: compiled on a GPU, or in Triton's interpreter when that was asked for."""

import torch

from ..errors import BadInput

try:
    import triton
    import triton.language as tl  # noqa: F401  # for the kernels' modules
except ImportError as error:
    raise BadInput("zerocourse.kernels needs triton, which is not installed: pip install triton (on Linux)") from error

INTERPRETED = bool(triton.knobs.runtime.interpret)  # as triton was told when it was imported


def check_device(tensor: torch.Tensor) -> None:
    """Raise BadInput, in one sentence, when a kernel cannot run on the tensor's device."""
    if not INTERPRETED and not tensor.is_cuda:
        raise BadInput(f"this kernel is compiled for a GPU and the tensor is on {tensor.device}: to run it in Triton's "
                       "interpreter, set TRITON_INTERPRET=1 in the environment before Python starts")


def autotuned(kernel, configs: list[triton.Config], key: list[str], restore_value: tuple[str, ...] = ()):
    """The kernel, trying all `configs` the first time that `key` has new values; in the interpreter, the first config.

    restore_value: arguments that the kernel changes, put back after each trial.
    """
    if INTERPRETED:
        return lambda grid, *args: kernel[grid(configs[0].kwargs)](*args, **configs[0].kwargs)
    tuned = triton.autotune(configs, key=key, restore_value=list(restore_value))(kernel)
    return lambda grid, *args: tuned[grid](*args)
