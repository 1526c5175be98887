"""Rules between the keys of a config: the batch sizes, and what cannot be switched on together."""

from collections.abc import Callable, Iterator

from ...comm.bootstrap import ranks_here
from ...errors import BadInput
from .schema import ConfigFile, ZeroConfig

DISK_BLOCK = 4096  # bytes
LEAST_BUFFERS = 2
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


def wide_sums(config: ConfigFile) -> str | None:
    trains = "fp16" if config.fp16.enabled else "bf16" if config.bf16.enabled else "fp32"
    added = config.data_types.grad_accum_dtype
    if added in (None, trains, "fp32"):
        return None
    return (f"data_types.grad_accum_dtype is {added!r}, and the model trains in {trains}: gradients must be added up "
            f"in {'that or in ' * (trains != 'fp32')}'fp32'")


def offloaded_parameters(config: ConfigFile) -> str | None:
    zero = config.zero_optimization
    if zero.offload_param.device not in ("none", None) and zero.stage < 3:
        return (f"zero_optimization.offload_param.device is {zero.offload_param.device!r} at stage {zero.stage}: "
                "parameters can be offloaded at stage 3 only")
    return None


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
    elif of_params not in ("none", None) and zero.stage == 3:
        return (f"zero_optimization.offload_param.device is {of_params!r} and zero_optimization.offload_optimizer.device is 'none': "
                f"parameters are offloaded together with their optimizer states, so set both to {of_params!r}")
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
        size = ranks_here(ranks)
    if ranks % size:
        raise BadInput(f"zero_optimization.zero_hpz_partition_size is {zero.zero_hpz_partition_size}, and {ranks} ranks are no whole "
                       f"number of nodes with {size} ranks each: set it to the number of ranks of a node")
    return ranks // size, size


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
    (wide_sums, ("data_types", "fp16", "bf16")),
    (offloaded_parameters, ("zero_optimization.offload_param", "zero_optimization.stage")),
    (offloaded_states, ("zero_optimization.offload_optimizer", "zero_optimization.offload_param", "zero_optimization.stage")),
    *((over_slow_links(key), (f"zero_optimization.{key}", "zero_optimization.stage", "zero_optimization.offload_optimizer"))
      for key in ("zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients")),
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
