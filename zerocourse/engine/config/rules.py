"""Rules between the keys of a config: the batch sizes, and what cannot be switched on together."""

import os
from collections.abc import Callable, Iterator

from ...errors import BadInput
from .schema import ConfigFile, ZeroConfig

DISK_BLOCK = 4096  # bytes
LEAST_BUFFERS = 2
SMALLEST_SCALE = 1e-37  # its inverse is a number in fp32
SIZES = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


def batch_sizes(train: int | None, micro: int | None, steps: int | None, world_size: int) -> tuple[int, int, int]:
    """The three sizes, in the order of `SIZES`. Any two of them give the third. Raises BadInput."""
    if train is None and micro is None:
        raise BadInput(f"neither {SIZES[0]} nor {SIZES[1]} is given: at least one of them is needed")
    if train is None:
        steps = steps or 1
        train = micro * steps * world_size
    elif micro is None:
        steps = steps or 1
        micro = divided(train, steps, SIZES[2], world_size)
    elif steps is None:
        steps = divided(train, micro, SIZES[1], world_size)
    if train != micro * steps * world_size:
        raise BadInput(f"train_batch_size {train} is not micro-batch {micro} × accumulation {steps} × "
                       f"ranks {world_size} = {micro * steps * world_size}")
    return train, micro, steps


def divided(train: int, by: int, what: str, world_size: int) -> int:
    if train % (by * world_size):
        raise BadInput(f"train_batch_size {train} is not divisible by {by} × {world_size} ({what} × ranks)")
    return train // (by * world_size)


def one_precision(config: ConfigFile) -> str | None:
    if config.fp16.enabled and config.bf16.enabled:
        return "fp16.enabled and bf16.enabled are both true: a model trains in one of them"
    return None


def scales_in_fp32(config: ConfigFile) -> str | None:
    """The loss is multiplied and the gradients are divided in fp32, so a scale and its inverse must be numbers there."""
    fp16 = config.fp16
    if not fp16.enabled:
        return None
    if 0 < fp16.loss_scale < SMALLEST_SCALE:
        return f"fp16.loss_scale is {fp16.loss_scale:g}: it must be 0, for a dynamic one, or at least {SMALLEST_SCALE:g}"
    if fp16.min_loss_scale < SMALLEST_SCALE:
        return f"fp16.min_loss_scale is {fp16.min_loss_scale:g}: it must be at least {SMALLEST_SCALE:g}"
    if not fp16.loss_scale and fp16.min_loss_scale > 2.0**fp16.initial_scale_power:
        return (f"fp16.min_loss_scale is {fp16.min_loss_scale:g}, above the first scale, 2^{fp16.initial_scale_power} = "
                f"{2.0**fp16.initial_scale_power:g} (fp16.initial_scale_power): it must not be larger")
    return None


def rates_of_groups(config: ConfigFile) -> str | None:
    """Lists of rates have one for each parameter group, whose number only `initialize` knows."""
    params = None if config.scheduler is None else config.scheduler.params
    lists = {name: value for name, value in (params or ()) if isinstance(value, list)}
    empty = next((name for name, value in lists.items() if not value), None)
    if empty is not None:
        return f"scheduler.params.{empty} is []: it must have a rate for each parameter group"
    if len(set(map(len, lists.values()))) > 1:
        said = " and ".join(f"scheduler.params.{name} has {len(value)} rates" for name, value in lists.items())
        return f"{said}: each must have one for each parameter group"
    return None


def one_reduction(config: ConfigFile) -> str | None:
    if config.gradient_allreduce_op == "sum" and config.zero_optimization.stage == 3:
        return "gradient_allreduce_op is 'sum' at stage 3, for which DeepSpeed has no sum: use 'mean', and a larger learning rate"
    return None


def wide_sums(config: ConfigFile) -> str | None:
    trains = "fp16" if config.fp16.enabled else "bf16" if config.bf16.enabled else "fp32"
    added = config.data_types.grad_accum_dtype
    if added in (None, trains, "fp32"):
        return None
    return (f"data_types.grad_accum_dtype is {added!r}, and the model trains in {trains}: gradients must be added up "
            f"in {'that or in ' * (trains != 'fp32')}'fp32'")


def offloaded_states(config: ConfigFile) -> str | None:
    zero = config.zero_optimization
    states, of_params = zero.offload_optimizer, zero.offload_param.device
    if states.device not in ("none", None):
        if not zero.stage:
            return (f"zero_optimization.offload_optimizer.device is {states.device!r} at stage 0: optimizer states can be "
                    "offloaded from stage 1 on")
        if states.ratio != 1 and (states.device != "cpu" or of_params not in ("none", None)):
            return (f"zero_optimization.offload_optimizer.ratio is {states.ratio:g}: a part of the states can be offloaded to 'cpu' "
                    "alone, without offload_param, so leave it out, and all of them are offloaded")
        if of_params not in ("none", None) and of_params != states.device:
            return (f"zero_optimization.offload_param.device is {of_params!r} and zero_optimization.offload_optimizer.device is "
                    f"{states.device!r}: parameters and their optimizer states are offloaded together, so set both alike")
        if states.device == of_params == "nvme" and zero.offload_param.nvme_path not in (None, states.nvme_path):
            return ("zero_optimization.offload_param.nvme_path and zero_optimization.offload_optimizer.nvme_path differ: a rank has "
                    "one folder for both, so set them alike")
        if states.device == "nvme" and states.buffer_count < LEAST_BUFFERS:
            return (f"zero_optimization.offload_optimizer.buffer_count is {states.buffer_count}: the disk needs at least "
                    f"{LEAST_BUFFERS} staging buffers, and 4 to read, step and write at once")
    return None


def over_slow_links(key: str) -> Callable[[ConfigFile], str | None]:
    def rule(config: ConfigFile) -> str | None:
        zero = config.zero_optimization
        value = getattr(zero, key)
        if value == type(zero).model_fields[key].default:
            return None
        given = f"zero_optimization.{key} is {str(value).lower()}"
        if zero.stage < 3:
            return f"{given} at stage {zero.stage}: ZeRO++ is stage 3 over slow links, so set the stage to 3 or leave it out"
        if zero.offload_optimizer.device not in ("none", None):
            return (f"{given} and zero_optimization.offload_optimizer.device is {zero.offload_optimizer.device!r}: ZeRO++ keeps its "
                    "slices on the device, so leave one of them out")
        return None

    return rule


def nodes_of(zero: ZeroConfig, ranks: int) -> tuple[int, int]:
    """(nodes, ranks of each) of ZeRO++: a node has zero_hpz_partition_size ranks, and where it keeps no copy as many as the launcher
    started on a machine. Raises BadInput where such nodes do not divide the ranks."""
    size = zero.zero_hpz_partition_size
    if size == 1:
        size = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))  # torchrun's
    if ranks % size:
        raise BadInput(f"zero_optimization.zero_hpz_partition_size is {zero.zero_hpz_partition_size}, and {ranks} ranks are no whole "
                       f"number of nodes with {size} ranks each: set it to the number of ranks of a node")
    return ranks // size, size


def groups_of_experts(config: ConfigFile, ranks: int) -> dict[str, int]:
    """Sizes of the axes, the slowest first: "ep", along which ranks have different experts, and "dp", along which they have the same.

    A group of experts has neighbours, unless use_data_before_expert_parallelism gives neighbours the same experts. Raises BadInput where
    groups do not divide the ranks.
    """
    size = config.expert_parallel.autoep_size
    if ranks % size:
        raise BadInput(f"expert_parallel.autoep_size is {size}, and {ranks} ranks are no whole number of groups with {size} ranks each: set "
                       "it to a divisor of the number of ranks")
    same, different = {"dp": ranks // size}, {"ep": size}
    return different | same if config.use_data_before_expert_parallelism else same | different


def experts_over_slow_links(config: ConfigFile) -> str | None:
    if config.has_groups_of_experts and config.zero_optimization.has_slow_links:
        return (f"expert_parallel.autoep_size is {config.expert_parallel.autoep_size}, and zero_optimization asks for ZeRO++, whose nodes cut "
                "parameters that all ranks have: leave one of them out")
    return None


def path_of_the_disk(section: str) -> Callable[[ConfigFile], str | None]:
    def rule(config: ConfigFile) -> str | None:
        offload = getattr(config.zero_optimization, section)
        if offload.device == "nvme" and not offload.nvme_path:
            return (f"zero_optimization.{section}.nvme_path is missing: it must name a folder on the disk, "
                    "because device is 'nvme'")
        return None

    return rule


def whole_blocks(config: ConfigFile) -> str | None:
    if config.aio.block_size % DISK_BLOCK:
        return f"aio.block_size is {config.aio.block_size}: it must be a multiple of {DISK_BLOCK} bytes, the block of a disk"
    return None


def nesterov_needs_momentum(config: ConfigFile) -> str | None:
    if config.optimizer is not None and config.optimizer.type == "SGD":
        params = config.optimizer.params
        if params.nesterov and (not params.momentum or params.dampening):
            return (f"optimizer.params.nesterov is true with momentum {params.momentum:g} and dampening "
                    f"{params.dampening:g}: it needs a momentum above 0 and no dampening")
    return None


RULES = [  # with the keys that each looks at: when one of them is wrong by itself, the rule is silent
    (one_precision, ("fp16", "bf16")),
    (scales_in_fp32, ("fp16",)),
    (rates_of_groups, ("scheduler",)),
    (one_reduction, ("gradient_allreduce_op", "zero_optimization.stage")),
    (wide_sums, ("data_types", "fp16", "bf16")),
    (offloaded_states, ("zero_optimization.offload_optimizer", "zero_optimization.offload_param", "zero_optimization.stage")),
    *((over_slow_links(key), (f"zero_optimization.{key}", "zero_optimization.stage", "zero_optimization.offload_optimizer"))
      for key in ("zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients")),
    (experts_over_slow_links, ("expert_parallel", "zero_optimization")),
    (path_of_the_disk("offload_param"), ("zero_optimization.offload_param",)),
    (path_of_the_disk("offload_optimizer"), ("zero_optimization.offload_optimizer",)),
    (whole_blocks, ("aio.block_size",)),
    (nesterov_needs_momentum, ("optimizer",)),
]


def broken(config: ConfigFile, wrong: set[str]) -> Iterator[tuple[str, str]]:
    """(path, sentence) of every rule that does not hold. wrong: paths that have been complained about already."""
    for rule, looks_at in RULES:
        if not any(concerns(path, key) for path in wrong for key in looks_at):
            sentence = rule(config)
            if sentence is not None:
                yield looks_at[0], sentence


def concerns(path: str, key: str) -> bool:
    """Is one of the two inside of the other, or are they the same?"""
    return f"{path}.".startswith(f"{key}.") or f"{key}.".startswith(f"{path}.")
