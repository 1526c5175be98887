"""Other people's counts of memory. They count as the originals do, which explains their results. No torch."""

from fractions import Fraction


def deepspeed_zero2_gpu_bytes(params: int, ranks: int) -> int:
    """DeepSpeed's estimate_zero2_model_states_mem_needs without offload."""
    return 2 * params + 18 * params // ranks


def deepspeed_zero3_gpu_bytes(params: int, largest_layer: int, ranks: int) -> int:
    """DeepSpeed's estimate_zero3_model_states_mem_needs without offload; `largest_layer` in parameters."""
    return 4 * largest_layer + 18 * params // ranks


def deepspeed_host_bytes(params: int, ranks_per_node: int) -> int:
    """Host memory by the same two estimators: each process first builds the model in fp32, with half as much spare.

    params: those of the largest layer, if ZeRO-3 builds the model under zero.Init.
    """
    return 6 * params * ranks_per_node


def accelerate_bytes(params: int, dtype: str = "float16") -> int:
    """Accelerate's `estimate-memory` for training with Adam, which takes the largest of its numbers, not their sum.

    It divides by 2^30 and prints "GB".
    """
    model = 4 * params
    gradients = model if dtype == "float32" else model + model // 2
    optimizer = 2 * model
    step = 4 * model if dtype == "float32" else optimizer
    return max(model, gradients, optimizer, step)


def deepspeed_offloaded_share(ratio: float, elements: int, sub_group: int = 10**9) -> Fraction:
    """The share of a rank's optimizer states on the host, where `offload_optimizer.ratio` asks for `ratio`.

    elements: of the rank's part. DeepSpeed cuts it into sub-groups of `sub_group` elements, which are taken as equal here, and
    keeps the first int((1 - ratio) * sub-groups) on the device. Read in runtime/zero/stage3.py (commit edaa722).
    """
    groups = -(-elements // sub_group)
    return Fraction(groups - int((1 - ratio) * groups), groups)
