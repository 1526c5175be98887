"""Every key of DeepSpeed's files that is known here: its group, and one sentence that says what it does or why not.

A path is the keys from the top level down, joined by dots: "zero_optimization.stage". Sentences continue "KEY: ...".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Group(Enum):
    WORKS = "works"
    CHANGES_NOTHING = "changes nothing here"  # accepted, with one warning for all of them
    TRANSLATED = "an old form"  # accepted, with a warning that says what it is now (see `old_forms`)
    NOT_YET = "not supported yet"  # refused, unless switched off; so are the next two
    GONE = "gone upstream"
    NEVER = "not supported"


@dataclass(frozen=True)
class Key:
    group: Group
    does: str
    kind: str | None = None  # JSON's type, of a key that changes nothing; None: anything


WORKS = {
    "train_batch_size": "samples in an optimizer step, over all ranks: micro-batch × accumulation × ranks",
    "train_micro_batch_size_per_gpu": "samples that each rank computes at a time, on which activations depend",
    "gradient_accumulation_steps": "micro-batches per optimizer step, whose gradients are averaged",
    "managed_gradient_accumulation": "engine.step counts micro-batches and updates at the end of a window; false: every engine.step updates, "
                                     "and the script counts",
    "gradient_allreduce_op": "mean divides the sum of the ranks' gradients by their number; sum does not",
    "dataloader_drop_last": "true leaves samples that do not fill a batch of all ranks out of an epoch; false fills the last batch up with samples "
                            "of its beginning (upstream: false by default, and the last batch is shorter)",
    "gradient_clipping": "the largest 2-norm of the whole gradient, over all ranks; 0 means no clipping (default 1.0, as in DeepSpeed)",
    "zero_optimization": "what the ranks divide among them instead of keeping copies",
    "zero_optimization.stage": "0 is data parallel; 1 divides the optimizer states, 2 also the gradients, 3 also the "
                               "parameters",
    "zero_optimization.reduce_bucket_size": "the most elements whose gradients are reduced at once",
    "zero_optimization.overlap_comm": "communication goes on while the model computes; null means true, at every stage",
    "zero_optimization.offload_optimizer": "optimizer states and master weights in the host's memory or on the disk, and the step on the "
                                           "host",
    "zero_optimization.offload_param": "this rank's slices of the parameters there too, with stage 3",
    **{f"zero_optimization.{section}.{key}": does for section in ("offload_optimizer", "offload_param")
       for key, does in {"device": "none, cpu or nvme", "nvme_path": "a folder on the disk",
                         "pin_memory": "page-locked memory, which is copied faster"}.items()},
    "zero_optimization.offload_optimizer.buffer_count": "staging buffers between the host and the disk, of the parameters as well",
    "zero_optimization.offload_optimizer.ratio": "the share of the optimizer states that lies on the host, to the element (upstream "
                                                 "counts whole sub-groups of 1e9 elements); the rest is stepped on the device",
    "zero_optimization.leaf_module": "modules that stage 3 gathers and frees as a whole, whatever they compute inside, such as layers of experts",
    "zero_optimization.leaf_module.classes": "by their classes' names",
    "zero_optimization.leaf_module.names": "by their own names",
    "zero_optimization.leaf_module.name_suffixes": "by the ends of their names",
    "zero_optimization.zero_hpz_partition_size": "ranks of a node, which together keep a copy of the weights from the forward to the "
                                                 "update, so that the backward gathers nothing between nodes; 1: no copy",
    "zero_optimization.zero_quantized_weights": "stage 3 gathers weights in 8 bits with a scale per block; what is updated and saved is exact",
    "zero_optimization.zero_quantized_gradients": "stage 3 reduces gradients in 4 bits with a scale per block, in the nodes first, then between them",
    "expert_parallel": "AutoEP: ranks have different experts of a mixture, and tokens travel to theirs and back (zerocourse.parallel.experts)",
    "expert_parallel.enabled": "switches it on, for models whose experts are parameters with three dimensions, as Hugging Face's mixtures "
                               "have them",
    "expert_parallel.autoep_size": "ranks of a group, each with its part of the experts; ZeRO cuts an expert's states among the ranks that have "
                                   "it, and all else among all ranks",
    "use_data_before_expert_parallelism": "neighbouring ranks have the same experts; false: neighbours are a group with different ones",
    "aio": "how the disk is read and written",
    "aio.block_size": "bytes that one call reads or writes",
    "aio.queue_depth": "calls under way at a time, each way, times intra_op_parallelism",
    "aio.intra_op_parallelism": "a factor of queue_depth: each call has a thread here",
    "bf16": "training in bfloat16 with fp32 master weights",
    "bf16.enabled": "parameters and gradients in bfloat16, 2 bytes each; the optimizer keeps fp32 master weights",
    "bf16.check_grad_overflow": "a step whose gradients have inf or NaN, on any rank, is skipped and counted in engine.skipped_steps, at every "
                                "stage (upstream: at stages 1 and 2; at 0 and 3 such a step makes all weights NaN there)",
    "fp16": "training in float16 with fp32 master weights and a loss scale",
    "fp16.enabled": "parameters and gradients in float16, 2 bytes each; the optimizer keeps fp32 master weights",
    "fp16.auto_cast": "casts the model's floating-point inputs to float16",
    "fp16.loss_scale": "the factor on the loss; 0 means dynamic",
    "fp16.initial_scale_power": "a dynamic loss scale begins at 2 to this power",
    "fp16.loss_scale_window": "steps without an overflow after which a dynamic loss scale doubles",
    "fp16.hysteresis": "the overflow of this number halves the loss scale; those before it only skip a step",
    "fp16.consecutive_hysteresis": "a step without an overflow makes hysteresis start again",
    "fp16.min_loss_scale": "the smallest dynamic loss scale",
    "communication_data_type": "the dtype in which gradients are reduced",
    "data_types": "dtypes that differ from the parameters'",
    "data_types.grad_accum_dtype": "the dtype in which the gradients of micro-batches are added up",
    "optimizer": "makes the optimizer, when initialize is given none",
    "optimizer.type": "Adam (which is AdamW unless adam_w_mode is false), AdamW, Lion or SGD",
    "optimizer.params": "the optimizer's hyper-parameters",
    "optimizer.params.lr": "the learning rate, unless a scheduler sets it",
    "optimizer.params.betas": "how much of the averages of the gradient and of its square is kept in each step",
    "optimizer.params.eps": "added to the divisor of Adam's update",
    "optimizer.params.weight_decay": "how fast weights shrink, per unit of learning rate",
    "optimizer.params.adam_w_mode": "decoupled weight decay (AdamW); false means L2 regularisation, in the gradient, of Adam alone: "
                                    "\"AdamW\" always decouples",
    "optimizer.params.momentum": "how much of the last update SGD keeps; above 0 it holds one average per parameter",
    "optimizer.params.dampening": "how much of a new gradient SGD's momentum leaves out",
    "optimizer.params.nesterov": "SGD looks one step ahead along its momentum",
    "scheduler": "makes the schedule of the learning rate, when initialize is given none",
    "scheduler.type": "WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle or LRRangeTest",
    "scheduler.params": "the schedule's numbers; steps are optimizer steps",
    "scheduler.params.warmup_min_lr": "the learning rate at the start of the warm-up",
    "scheduler.params.warmup_max_lr": "the learning rate at the end of the warm-up; null means the optimizer's",
    "scheduler.params.warmup_num_steps": "steps of the warm-up",
    "scheduler.params.warmup_type": "how the learning rate rises: log or linear",
    "scheduler.params.total_num_steps": "steps of the whole training, at whose end the decay is complete",
    "scheduler.params.warmup_min_ratio": "the share of the optimizer's learning rate at the start of the warm-up",
    "scheduler.params.cos_min_ratio": "the share of the optimizer's learning rate at the end",
    "scheduler.params.cycle_min_lr": "the learning rate at both ends of the cycle",
    "scheduler.params.cycle_max_lr": "the learning rate in the middle of the cycle",
    "scheduler.params.decay_lr_rate": "how fast the learning rate falls after the cycle",
    "scheduler.params.cycle_first_step_size": "steps of the rising half",
    "scheduler.params.cycle_second_step_size": "steps of the falling half; null means as many",
    "scheduler.params.cycle_first_stair_count": "stairs in the rising half; 0 means a straight line",
    "scheduler.params.cycle_second_stair_count": "stairs in the falling half; null means as many",
    "scheduler.params.decay_step_size": "steps of one unit of decay after the cycle; 0 means no decay",
    "scheduler.params.cycle_momentum": "moves the first beta against the learning rate",
    "scheduler.params.cycle_min_mom": "the first beta where the learning rate is highest",
    "scheduler.params.cycle_max_mom": "the first beta where the learning rate is lowest",
    "scheduler.params.decay_mom_rate": "how fast the first beta changes after the cycle",
    "scheduler.params.lr_range_test_min_lr": "the learning rate at the start of the test",
    "scheduler.params.lr_range_test_step_size": "steps between two learning rates",
    "scheduler.params.lr_range_test_step_rate": "how fast the learning rate rises",
    "scheduler.params.lr_range_test_staircase": "the learning rate rises in stairs",
    **{section: f"writes the loss, the learning rate and the loss scale of each step {where}" for section, where in {
        "csv_monitor": "into CSV files", "tensorboard": "for TensorBoard, where it is installed"}.items()},
    **{f"{section}.{key}": does for section in ("csv_monitor", "tensorboard") for key, does in {
        "enabled": "switches it on", "output_path": "the folder, by default the present one",
        "job_name": "the folder in that folder"}.items()},
    "checkpoint.tag_validation": "what happens when the ranks give save_checkpoint different tags: Fail (the default) refuses them; Warn and "
                                 "Ignore take rank 0's (upstream the ranks' files then lie in different folders)",
    "checkpoint": "how checkpoints are written; their folder and tag are arguments of engine.save_checkpoint",
    "activation_checkpointing": "blocks keep their inputs alone, and backward computes the rest again; upstream this "
                                "section changes nothing in Hugging Face models, here it is applied to every model",
    "activation_checkpointing.enabled": "false switches the section off (a key of ours, which DeepSpeed ignores)",
    "activation_checkpointing.number_checkpoints": "the first so many blocks are checkpointed; null means all",
    "activation_checkpointing.cpu_checkpointing": "checkpoints wait in the host's memory",
}

EXPERTS_BY_FORM = "experts are known by their form, and the rest of a layer computes as it is"
EXPERTS_OWN_FORWARD = "the model's own experts compute, as `experts_implementation` says where the model is made"
OWN_ROUTER = "the router is the model's own: leave it out, and set it in the model's config"

# By JSON's type.
CHANGES_NOTHING = {
    "boolean": {
        "wall_clock_breakdown": "times are on the timeline (zerocourse.measure)",
        "memory_breakdown": "engine.memory() has the bytes by kind",
        "dump_state": "`zerocourse config` shows the resolved config",
        "prescale_gradients": "each rank always divides its gradient by the number of ranks before the sum",
        "zero_allow_untested_optimizer": "every element-wise optimizer works, and a class that is not known as such gets a warning",
        "zero_force_ds_cpu_optimizer": "there is no other optimizer than torch's",
        "disable_allgather": "parameters are always all-gathered",
        "disable_python_gc": "Python's garbage collector is left alone",
        "bf16.immediate_grad_update": "gradients are added to the sum of their window as they come",
        "activation_checkpointing.synchronize_checkpoint_boundary": "nothing waits at a block's end",
        "activation_checkpointing.profile": "times are on the timeline (zerocourse.measure)",
        "optimizer.legacy_fusion": "there is one implementation",
        "activation_checkpointing.partition_activations": "only ranks that compute the same activations, those of a tensor-parallel group, "
                                                          "have something to divide",
        "activation_checkpointing.contiguous_memory_optimization": "it lays partitioned checkpoints side by side, and nothing is partitioned",
        "optimizer.params.bias_correction": "Adam's averages are always corrected for their start at 0",
        "optimizer.params.torch_adam": "it is always torch's",
        "optimizer.params.fp32_optimizer_states": "the states are fp32",
        "optimizer.params.set_grad_none": "gradients are always freed",
        "zero_optimization.offload_optimizer.pipeline_read": "the next buffers are always read while one is updated",
        "zero_optimization.offload_optimizer.pipeline_write": "the last buffers are always written while one is updated",
        "zero_optimization.offload_optimizer.fast_init": "states are written when they are first there",
        "zero_optimization.offload_optimizer.super_offload": "the host steps buffer by buffer while others are on their way",
        "aio.use_gds": "the disk is read into the host's memory",
        "aio.single_submit": "each call is submitted by itself",
        "aio.overlap_events": "calls always overlap",
        "zero_optimization.contiguous_gradients": "gradients always lie in flat buffers",
        "zero_optimization.reduce_scatter": "stages 1 to 3 always reduce-scatter",
        "zero_optimization.use_multi_rank_bucket_allreduce": "stages 1 to 3 always reduce-scatter",
        "zero_optimization.allgather_partitions": "slices are always all-gathered",
        "zero_optimization.round_robin_gradients": "slices are equal",
        "zero_optimization.load_from_fp32_weights": "master weights are always loaded as they were saved",
        "zero_optimization.elastic_checkpoint": "a checkpoint can be loaded at any number of ranks",
        "zero_optimization.legacy_stage1": "there is one stage 1, here and upstream",
        "zero_optimization.ignore_unused_parameters": "unused parameters are always found, and trained as one process would; false asks upstream "
                                                      "for an error where there are some",
        "zero_optimization.memory_efficient_linear": "torch's linear layers are used as they are",
        "sparse_gradients": "the gradients of embeddings are reduced like others",
        "expert_parallel.async_split_plan": "each rank is told how many rows come before they come",
        "expert_parallel.has_shared_experts": EXPERTS_BY_FORM,
        "expert_parallel.use_grouped_mm": EXPERTS_OWN_FORWARD,
        "expert_parallel.disable_triton_grouped_mm": EXPERTS_OWN_FORWARD,
        "expert_parallel.validate_folding_routing": "there is no tensor parallelism beside it",
        "zero_optimization.gather_16bit_weights_on_model_save": "engine.state_dict() is always whole",
        "zero_optimization.stage3_gather_16bit_weights_on_model_save": "engine.state_dict() is always whole",
        "zero_optimization.stage3_gather_fp16_weights_on_model_save": "engine.state_dict() is always whole",
        **{f"zero_optimization.{prefix}{key}": why for prefix in ("stage3_", "") for key, why in {
            "use_all_reduce_for_fetch_params": "slices are always all-gathered", "allgather_sequential": "a unit is gathered as a whole"}.items()},
        "zero_optimization.override_module_apply": "Module.apply works as it is",
        "zero_optimization.pipeline_loading_checkpoint": "each rank reads its own slices",
        "zero_optimization.log_trace_cache_warnings": "there is no such cache",
        "zero_optimization.enable_sanity_checks": "the ranks always compare notes (ZeroOptions.agreement)",
        "zero_optimization.compute_grad_norm": "engine.get_global_grad_norm() always has it",
        "zero_optimization.parameter_alignment": "slices are padded to equal lengths only",
        "zero_optimization.cpu_offload_use_pin_memory": "offload_optimizer.pin_memory has replaced it",
        "checkpoint.load_universal": "every checkpoint can be loaded at any number of ranks",
        "checkpoint.use_node_local_storage": "a checkpoint is one folder, which the ranks of all machines see",
        "checkpoint.checkpoint_serialization": "checkpoints have one format",
    },
    "integer": {
        "steps_per_print": "engine.step prints nothing",
        "zero_optimization.offload_param.buffer_count": "offload_optimizer.buffer_count counts for both",
        "zero_optimization.offload_param.buffer_size": "a staging buffer has the size of the largest unit's states",
        "zero_optimization.offload_param.max_in_cpu": "what is read ahead of its gather is all that stays in the host's memory",
        "zero_optimization.allgather_bucket_size": "a unit is gathered as a whole",
        "zero_optimization.sub_group_size": "the step goes buffer by buffer",
        **{f"zero_optimization.{prefix}{key}": why for prefix in ("stage3_", "") for key, why in {  # DeepSpeed takes both names
            "prefetch_bucket_size": "the next unit is gathered ahead",
            "param_persistence_threshold": "small parameters are divided like the others",
            "model_persistence_threshold": "small parameters are divided like the others",
            "max_live_parameters": "the unit that computes is whole, and the next one",
            "max_reuse_distance": "a unit is freed when it has computed",
            "module_granularity_threshold": "a unit is a block of the model"}.items()},
        "vocabulary_size": "the model is used as it is",
        **{f"expert_parallel.{key}": "rows travel by torch.distributed" for key in ("comm_num_sm", "comm_qp_margin", "comm_max_tokens_per_rank")},
    },
    "number": {
        "zero_optimization.offload_optimizer.cpuadam_cores_perc": "the step on the host has torch's threads",
        "gradient_predivide_factor": "each rank always divides its gradient by the number of ranks before the sum",
    },
    "string": {
        "cuda_visible_devices": "which GPUs a rank sees is the launcher's, by CUDA_VISIBLE_DEVICES",
        "log_level": "there are no log messages",
        "seq_parallel_communication_data_type": "there is no sequence parallelism in the engine",
        "expert_parallel.comm_backend": "rows travel by torch.distributed",
        **{f"expert_parallel.{key}": EXPERTS_OWN_FORWARD for key in ("combine_impl", "gate_up_impl", "row_weighting_impl")},
        **{f"expert_parallel.{key}": EXPERTS_BY_FORM for key in (
            "preset_model", "moe_layer_pattern", "expert_pattern", "router_pattern", "expert_w1", "expert_w2", "expert_w3", "num_experts_attr",
            "top_k_attr", "shared_experts_pattern", "shared_experts_gate_pattern")},
    },
    "object": {
        "checkpoint.parallel_write": "all ranks always write",
        "checkpoint.writer": "there is one writer",
        "comet": "the engine writes to csv_monitor and tensorboard alone",
        "comms_logger": "engine.communication() counts",
        "flops_profiler": "no profile is printed: use torch.profiler",
        "wandb": "the engine writes to csv_monitor and tensorboard alone",
        "timers": "times are on the timeline (zerocourse.measure)",
    },
}

# What a key that changes nothing must be, where its other value would change something.
ONLY = {"optimizer.params.bias_correction": True, "zero_optimization.load_from_fp32_weights": True,
        "checkpoint.use_node_local_storage": False, "zero_optimization.legacy_stage1": False}

TRANSLATED = {  # by JSON's type
    "boolean": {
        "zero_optimization.cpu_offload": "zero_optimization.offload_optimizer: {\"device\": \"cpu\"}",
        "zero_optimization.cpu_offload_param": "zero_optimization.offload_param: {\"device\": \"cpu\"}",
    },
    "object": {"bfloat16": "bf16"},
}

NOT_YET = {
    "pipeline": "a PipelineModule says how it is cut, and 1F1B is its schedule: leave it out",
    "tensor_parallel": "there is no tensor parallelism in the engine: leave it out, or cut the model with zerocourse.parallel.tensor",
    "expert_parallel.expert_tensor_parallel_size": "an expert is whole on its rank: leave it out, and take a larger autoep_size",
    "torch_autocast": "parameters and gradients have one dtype: use bf16",
    "zero_optimization.zenflow": "the host steps all gradients together: leave it out",
    "bf16.bf16_master_weights_and_grads": "master weights are fp32: leave it out",
    "bf16.bf16_optimizer_states": "optimizer states are fp32: leave it out",
    "fp16.fp16_master_weights_and_grads": "master weights are fp32: leave it out",
    "data_types.param_dtype": "use bf16",
    "data_types.buffer_dtype": "buffers keep their dtype: leave it out",
    "data_types.keep_in_fp32_modules": "all parameters have one dtype: leave it out",
    "zero_optimization.save_muon_momentum_buffer_in_memory": "Muon needs whole matrices: leave it out",
    "optimizer.type.Muon": "it orthogonalises whole matrices, and DeepSpeed's takes AdamW for all else; where every parameter is a "
                           "matrix, give initialize torch.optim.Muon, with which each tensor stays whole on one rank, else use AdamW",
    "optimizer.type.Lamb": "its trust ratio is a norm over a whole parameter, and torch has none: give initialize a class Lamb, with "
                           "which each tensor stays whole on one rank, or use AdamW",
    "optimizer.type.Adagrad": "use Adam",
}

GONE = {  # since DeepSpeed 0.19.8
    "elasticity": "engine.load_checkpoint loads at any number of ranks",
    "sparse_attention": "attention is the model's own: leave it out",
    "amp": "use bf16",
    "nebula": "checkpoints are files: leave it out",
    "graph_harvesting": "no CUDA graphs are made: leave it out",
    "progressive_layer_drop": "every layer runs in every step: leave it out",
    "eigenvalue": "it is not computed: leave it out",
    "curriculum_learning": "samples are the data loader's: leave it out",
    "zero_optimization.mics_shard_size": "give zerocourse.shard a shard_group and a replicate_group",
    "zero_optimization.mics_hierarchical_params_gather": "leave it out",
    "zero_optimization.zeropp_loco_param": "the errors of quantised gradients are not carried on: leave it out",
    "optimizer.type.OneBitAdam": "its momentum is sent in 1 bit, with the error carried on: use Adam",
    "optimizer.type.ZeroOneAdam": "its momentum is sent in 1 bit, with the error carried on: use Adam",
    "optimizer.type.OneBitLamb": "its momentum is sent in 1 bit, with the error carried on: use AdamW",
}

NEVER = {
    "autotuning": "nothing is tuned by itself: `zerocourse plan` says what fits, so leave it out",
    "compression_training": "nothing is quantised, pruned or distilled: leave it out",
    "data_efficiency": "samples are the data loader's, and every token goes through every layer: leave it out",
    "hybrid_engine": "the engine trains, and zerocourse.rl.Sampler writes on the same weights, which it gathers once: leave it out, and call that",
    **{f"expert_parallel.{key}": OWN_ROUTER for key in (
        "route_norm", "route_scale", "routed_scaling_factor", "score_apply", "score_func", "top_k", "num_expert_groups", "num_limited_groups")},
    "expert_parallel.load_balance_coeff": "DeepSpeed refuses it, too: leave it out",
    "expert_parallel.expert_activation": "experts compute as the model has them: leave it out",
    "compile": "the engine compiles nothing: call torch.compile on the model before initialize",
    "weight_quantization": "nothing is quantised: leave it out",
    "datastates": "checkpoints are written by one writer: leave it out",
    "zero_optimization.zero_quantized_nontrainable_weights": "frozen parameters are kept in full: leave it out",
    "optimizer.params.max_grad_norm": "set gradient_clipping, at the top level",
    "optimizer.params.amsgrad": "DeepSpeed refuses it, too: leave it out",
    "optimizer.type.MuAdam": "give initialize an optimizer",
    "optimizer.type.MuAdamW": "give initialize an optimizer",
    "optimizer.type.MuSGD": "give initialize an optimizer",
}

FALSE_IS_A_CHOICE = {"expert_parallel.route_norm"}  # where false does not switch off
REFUSED = (Group.NOT_YET, Group.GONE, Group.NEVER)
KEYS: dict[str, Key] = (
    {path: Key(Group.WORKS, does) for path, does in WORKS.items()}
    | {path: Key(Group.CHANGES_NOTHING, why, kind) for kind, keys in CHANGES_NOTHING.items()
       for path, why in keys.items()}
    | {path: Key(Group.TRANSLATED, f"write {now}", kind) for kind, keys in TRANSLATED.items() for path, now in keys.items()}
    | {path: Key(group, instead) for group, keys in zip(REFUSED, (NOT_YET, GONE, NEVER), strict=True)
       for path, instead in keys.items()})


def is_off(value: object) -> bool:
    """Whether a value switches its feature off: `{"enabled": false}`, `{"device": "none"}`, false, null or nothing; or an object of
    objects, none of which is enabled."""
    if not isinstance(value, dict):
        return value is None or value is False
    if not value or "device" in value:
        return not value or value["device"] in ("none", None)
    if "enabled" in value:
        return value["enabled"] is False
    switches = list(switches_in(value))
    return bool(switches) and not any(switches)


def switches_in(value: dict) -> Iterator[object]:
    """The values of all keys `enabled`, however deep."""
    for key, each in value.items():
        if key == "enabled":
            yield each
        elif isinstance(each, dict):
            yield from switches_in(each)
