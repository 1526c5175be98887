"""What each key of a config does to the bytes that a rank holds and sends: by formula, for a GPT-2 on some ranks."""

from dataclasses import asdict, replace

from ...formulas.activations import layer_activation_bytes
from ...formulas.gpt2_config import GPTConfig
from ...formulas.peak import gpt2_peak_bytes
from ...formulas.shares import share_of
from ...formulas.states import Convention, model_states
from ...formulas.transformer import gpt2_block_params
from ...formulas.two_hop_volumes import SentOver, plus_plus_bytes
from ...formulas.units import gb
from ...formulas.volumes import sent_bytes
from ...formulas.what_fits import DEVICE, DISK, HOST, Arrangement, largest_unit, needs, on_device
from .load import Config
from .rules import nodes_of

STATES = {"Adam": 2, "AdamW": 2, "Lion": 1, "SGD": 0}  # numbers that an optimizer keeps per parameter, in fp32
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


def states_per_parameter(config: Config) -> int:
    """Numbers that the config's optimizer keeps per parameter; Adam's two when the config has none."""
    if config.optimizer is None:
        return STATES["Adam"]
    return STATES[config.optimizer.type] + (config.optimizer.type == "SGD" and config.optimizer.params.momentum > 0)


def convention(config: Config) -> Convention:
    """Bytes per parameter: half precision has fp32 master weights beside the optimizer's states."""
    states, (_, added) = 4 * states_per_parameter(config), gradient_dtypes(config)
    half = config.bf16.enabled or config.fp16.enabled
    return Convention("half", 2, BYTES[added], 4 + states) if half else Convention("fp32", 4, BYTES[added], states)


def gradient_dtypes(config: Config) -> tuple[str, str]:
    """(sent in, added up in), as the file writes them: by the rule of `Precision.of_gradients`, without torch."""
    trains = "bf16" if config.bf16.enabled else "fp16" if config.fp16.enabled else "fp32"
    sent = config.communication_data_type or trains
    return sent, config.data_types.grad_accum_dtype or (trains if sent == trains else "fp32")


def counts(config: Config, model: GPTConfig, ranks: int, **changes) -> dict:
    """Bytes of a rank under the names that `zerocourse memory --json` has.

    changes: a `stage`, an `accumulation` or an `overlap` to suppose in place of the config's.
    """
    stage = changes.get("stage", config.zero_optimization.stage)
    accumulation = changes.get("accumulation", config.gradient_accumulation_steps)
    each = convention(config)
    states = model_states(model.params, stage, ranks, each)
    sent, added = gradient_dtypes(config)
    as_sent = replace(each, gradient=BYTES[sent])
    overlap = int(changes.get("overlap", config.zero_optimization.overlap_comm is not False))
    recompute = {0: "selective", model.n_layer: "full"}.get(checkpoints(config, model))
    zero = config.zero_optimization
    offloaded = stage > 0 and zero.offload_optimizer.device not in ("none", None)
    known = recompute is not None and sent == added and not (offloaded and zero.offload_optimizer.ratio < 1) and not zero.has_slow_links
    volume = sent_bytes(model.params, stage, ranks, accumulation, convention=as_sent)
    if stage == 3 and zero.has_slow_links:
        volume = between_nodes(config, model, ranks, accumulation).total
    peak = None if not known else gpt2_peak_bytes(
        model, stage, ranks, config.train_micro_batch_size_per_gpu, model.block_size, on_device(each, offloaded), recompute, overlap,
        overlap, accumulated=accumulation > 1, offloaded=offloaded,
        offloaded_parameters=offloaded and zero.offload_param.device not in ("none", None))
    return {"params": model.params, "stage": stage, "ranks": ranks, **asdict(states), "total_bytes": states.total_bytes,
            "peak_bytes": peak, "sent_bytes": volume}


def between_nodes(config: Config, model: GPTConfig, ranks: int, accumulation: int) -> SentOver:
    """What a rank sends in a step of ZeRO++, as if all parameters were one buffer. Raises BadInput (see `nodes_of`)."""
    zero, (sent, _) = config.zero_optimization, gradient_dtypes(config)
    nodes, size = nodes_of(zero, ranks)
    return plus_plus_bytes([share_of(model.params, ranks)], nodes, size, accumulation, zero.zero_quantized_weights,
                           zero.zero_hpz_partition_size > 1, zero.zero_quantized_gradients,
                           replace(convention(config), gradient=BYTES[sent]))


def slow_link_effects(config: Config, model: GPTConfig, ranks: int) -> dict[str, str]:
    """What ZeRO++'s keys keep from the links between nodes."""
    section, zero = "zero_optimization.", config.zero_optimization
    nodes, size = nodes_of(zero, ranks)
    accumulation, as_sent = config.gradient_accumulation_steps, replace(convention(config), gradient=BYTES[gradient_dtypes(config)[0]])
    sent = between_nodes(config, model, ranks, accumulation).between
    plain = sent_bytes(model.params, 3, ranks, accumulation, convention=as_sent) * (ranks - size) // max(ranks - 1, 1)
    said = (f"of {nodes} nodes with {size} ranks each a rank sends {gb(sent)} to the others per step, where stage 3 alone sends {gb(plain)}"
            if nodes > 1 else f"all {ranks} ranks are on one node, so nothing goes between nodes")
    copy = convention(config).parameter * share_of(model.params, size)
    return {f"{section}zero_hpz_partition_size": f"each rank keeps {gb(copy)} of its node's copy until the update; {said}",
            f"{section}zero_quantized_weights": said, f"{section}zero_quantized_gradients": said}


def checkpoints(config: Config, model: GPTConfig) -> int:
    """The number of blocks whose activations are computed again."""
    section = config.activation_checkpointing
    if section is None or not section.enabled:
        return 0
    return model.n_layer if section.number_checkpoints is None else min(section.number_checkpoints, model.n_layer)


def activations(config: Config, model: GPTConfig, checkpointed: int) -> int:
    """Bytes that all blocks keep for a backward, when the first `checkpointed` keep their input alone."""
    shape = config.train_micro_batch_size_per_gpu, model.block_size, model.n_embd, model.n_head
    full, kept = (layer_activation_bytes(*shape, recompute=recompute, element=convention(config).parameter)
                  for recompute in ("full", "selective"))
    return checkpointed * full + (model.n_layer - checkpointed) * kept


def offload_effects(config: Config, now: dict, model: GPTConfig) -> dict[str, str]:
    """What the host's memory and the disk take over; `now`: the bytes of `counts`, wherever they lie."""
    section, zero = "zero_optimization.offload", config.zero_optimization
    states, raised = zero.offload_optimizer, zero.offload_param.device not in ("none", None)
    place = HOST if states.device == "cpu" else DISK
    each, accumulation = convention(config), config.gradient_accumulation_steps
    need, alone = (needs(Arrangement(zero.stage, place, parameters), now["params"], now["ranks"], each, accumulation, states.ratio,
                         largest_unit=largest_unit(model) * (place == DISK), buffers=states.buffer_count)
                   for parameters in (place if raised else DEVICE, DEVICE))
    kept = f"the device keeps {1 - states.ratio:.0%}" if states.ratio < 1 else "the device none"
    where = f"the host holds {gb(need.host_bytes)} per rank at the step" if place == HOST else (
        f"the disk holds {gb(need.disk_bytes)} per rank (what is written replaces the old file when it is whole), the host "
        f"{gb(need.host_bytes)} of staging buffers and gradients")
    io = f", and reads and writes {gb(need.io_bytes)} on the disk" if need.io_bytes else ""
    found = {f"{section}_optimizer.device": f"{where}, and {kept} of the {gb(now['optimizer_bytes'])} of optimizer states; a step "
                                            f"moves {gb(need.link_bytes)} over the link{io}",
             f"{section}_optimizer.ratio": f"a step moves {gb(need.link_bytes)} over the link, and the host holds {gb(need.host_bytes)}"}
    if raised:
        takes = "" if need.held(place) > alone.held(place) else ", where in fp32 the master weights are they"
        found[f"{section}_param.device"] = (f"{gb(now['parameters_bytes'])} of parameters per rank leave the device{takes}, and go "
                                            f"up for each of the {2 * accumulation} gathers of a step")
    return found


def effects(config: Config, model: GPTConfig, ranks: int) -> dict[str, str]:
    """By the path of a key, what it does to a rank's bytes, in words."""
    now, each, zero = counts(config, model, ranks), convention(config), config.zero_optimization
    alone, whole = counts(config, model, ranks, stage=0), counts(config, model, ranks, accumulation=1)
    bucket = each.gradient * min(zero.reduce_bucket_size, gpt2_block_params(model.n_embd, model.bias))
    made, states = checkpoints(config, model), states_per_parameter(config)
    sizes = (f"{config.train_batch_size} = {config.train_micro_batch_size_per_gpu} × "
             f"{config.gradient_accumulation_steps} × {ranks} ranks")
    sends_norm, sent = ranks > 1 and zero.stage > 0, gradient_dtypes(config)[0]
    found = {
        "train_batch_size": sizes,
        "train_micro_batch_size_per_gpu":
            f"the blocks keep {gb(activations(config, model, made))} of activations; {sizes}",
        "gradient_accumulation_steps": f"a step sends {gb(now['sent_bytes'])} per rank, and {gb(whole['sent_bytes'])} "
                                       f"without accumulation; {sizes}",
        "gradient_clipping": f"holds nothing, and sends {'one number per step' if sends_norm else 'nothing'}",
        "zero_optimization.stage":
            f"a rank holds {gb(now['total_bytes'])} ({gb(now['parameters_bytes'])} of parameters, "
            f"{gb(now['gradients_bytes'])} of gradients, {gb(now['optimizer_bytes'])} of optimizer states), where data "
            f"parallel holds {gb(alone['total_bytes'])}; a step sends {gb(now['sent_bytes'])}, where data parallel "
            f"sends {gb(alone['sent_bytes'])}",
        "zero_optimization.reduce_bucket_size":
            f"a bucket closes at the end of a block, so the largest of a block has {gb(bucket)}",
        "fp16.enabled" if config.fp16.enabled else "bf16.enabled":
            f"a parameter costs {each.parameter} bytes, its gradient {each.gradient}, and the optimizer "
            f"{each.optimizer}: {sum(each.sizes)} in all",
        "communication_data_type": f"a gradient is sent as {BYTES[sent]} bytes",
        "data_types.grad_accum_dtype": f"a gradient is kept as {each.gradient} bytes",
    }
    if zero.offload_optimizer.device not in ("none", None):
        found |= offload_effects(config, now, model)
    if zero.stage == 3 and zero.has_slow_links:
        found |= slow_link_effects(config, model, ranks)
    calls = config.aio.queue_depth * config.aio.intra_op_parallelism
    found["aio"] = f"at most {calls} calls of {gb(config.aio.block_size)} are under way each way"
    if now["peak_bytes"] is not None:
        overlapping, waiting = (gb(counts(config, model, ranks, overlap=each)["peak_bytes"]) for each in (True, False))
        found["zero_optimization.overlap_comm"] = (f"the peak of a step is about {overlapping} per rank with overlap, "
                                                   f"and {waiting} without; what is sent is the same")
    if config.optimizer is not None:
        masters = " with the master weights" if each.parameter == 2 else ""
        found["optimizer.type"] = (f"{states} number{'s' * (states != 1)} per parameter, "
                                   f"{gb(now['optimizer_bytes'])} per rank{masters}")
    if config.activation_checkpointing is not None:
        kept, would_keep = (gb(activations(config, model, number)) for number in (made, 0))
        found["activation_checkpointing"] = (f"{made} of {model.n_layer} blocks: all blocks keep {kept} of "
                                             f"activations, where they would keep {would_keep}")
        if config.activation_checkpointing.cpu_checkpointing:
            inputs = activations(config, model, made) - activations(config, model, 0) * (model.n_layer - made) // model.n_layer
            found["activation_checkpointing.cpu_checkpointing"] = (
                f"{gb(inputs)} of checkpoints wait on the host, and a step moves "
                f"{gb(2 * config.gradient_accumulation_steps * inputs)} of them over the link, down and up")
    return found
