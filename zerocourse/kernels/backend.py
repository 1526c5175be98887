"""Where a kernel runs: compiled on a GPU, or in Triton's interpreter when that was asked for."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from ..errors import BadInput

try:
    import triton
    import triton.language as tl  # noqa: F401  # for the kernels' modules
except ImportError as error:
    raise BadInput("zerocourse.kernels needs triton, which is not installed: pip install triton (on Linux)") from error

INTERPRETED = bool(triton.knobs.runtime.interpret)  # as triton was told when it was imported


BF16_CAPABILITY = (8, 0)  # below it bf16 is emulated (so `shard` does not train in it), and ptxas of older tritons has no cvt for it


def check_device(*tensors: torch.Tensor) -> None:
    """Raise BadInput, in one sentence, when a kernel cannot run on the tensors' device, or not with their dtypes."""
    where = tensors[0].device
    if not INTERPRETED and where.type != "cuda":
        raise BadInput(f"this kernel is compiled for a GPU and the tensor is on {where}: to run it in Triton's "
                       "interpreter, set TRITON_INTERPRET=1 in the environment before Python starts")
    if INTERPRETED or all(tensor.dtype is not torch.bfloat16 for tensor in tensors):
        return
    capability = torch.cuda.get_device_capability(where)
    if capability < BF16_CAPABILITY:
        raise BadInput(f"this kernel does not take bf16 on {torch.cuda.get_device_name(where)}, whose compute capability is "
                       f"{'.'.join(map(str, capability))}, below 8.0: train in fp16 or fp32 there, or take torch's own operation")


def on_device_of(tensor: torch.Tensor) -> AbstractContextManager:
    """Triton launches on the current device, whatever device its arguments are on: inside, it is the tensor's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def launcher(kernel, config: triton.Config):
    """run(grid, *args): the kernel with this config, on the device of the first argument.   grid(settings): of the config."""
    def run(grid, *args) -> None:
        options = {} if INTERPRETED else {"num_warps": config.num_warps}
        with on_device_of(args[0]):
            kernel[grid(config.kwargs)](*args, **config.kwargs, **options)

    return run


def autotuned(kernel, configs: list[triton.Config], key: list[str],
              prune: Callable[[list[triton.Config], dict], list[triton.Config]]):
    """The same with the fastest config, all of which are tried the first time that `key` has new values. The kernel must
    write nothing that it reads. In the interpreter: the first config.

    prune(configs, arguments by name): those that are worth a try for these.
    """
    if INTERPRETED:
        return launcher(kernel, configs[0])

    early = {"early_config_prune": lambda configs, arguments, **kwargs: prune(configs, arguments | kwargs)}
    tuned = triton.autotune(configs, key=key, prune_configs_by=early)(kernel)

    def run(grid, *args) -> None:
        with on_device_of(args[0]):
            tuned[grid](*args)

    return run
