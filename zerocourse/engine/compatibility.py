"""Which names of DeepSpeed there are here: what runs, what changes nothing, what is refused and why. It communicates nothing.

One row a name, sorted, and each once: docs/compatibility.md is written from it (`python -m tools.compatibility`), a name that is
refused raises the row's sentence, and a test holds each row to the code. The keys of a config have a table of their own,
`config.keys`. Names are those of a script that says `import deepspeed` and `engine, *_ = deepspeed.initialize(...)`.
A name that ends in `(argument=)` is an argument.
"""

from enum import Enum
from typing import NamedTuple


class Fate(Enum):
    RUNS = "runs"
    NOTHING = "changes nothing"  # accepted, for scripts that call it
    REFUSED = "refused"


class DeepSpeedName(NamedTuple):
    name: str
    fate: Fate
    why: str = ""  # a remark on what runs; of the others the reason
    instead: str = ""  # of what is refused: the nearest way


def runs(name: str, remark: str = "") -> DeepSpeedName:
    return DeepSpeedName(name, Fate.RUNS, remark)


def nothing(name: str, why: str) -> DeepSpeedName:
    return DeepSpeedName(name, Fate.NOTHING, why)


def refused(name: str, why: str, instead: str) -> DeepSpeedName:
    return DeepSpeedName(name, Fate.REFUSED, why, instead)


ROWS = [
    refused("deepspeed.DeepSpeedConfig", "initialize reads the config itself", "zerocourse.engine.config.Config.load(file, world_size)"),
    runs("deepspeed.DeepSpeedEngine", "the class of what the bridge's initialize returns; without the bridge it is zerocourse.Engine"),
    runs("deepspeed.OnDevice", "device=meta is zero.Init"),
    runs("deepspeed.PipelineModule", "1F1B over num_stages × data-parallel ranks, in fp32 or bf16; no checkpoints: "
         "zerocourse.parallel.three_d saves"),
    runs("deepspeed.__version__", "the bridge gives the version of DeepSpeed whose names it has, and `+zerocourse`"),
    runs("deepspeed.accelerator.get_accelerator"),
    runs("deepspeed.add_config_arguments"),
    refused("deepspeed.add_tuning_arguments", "schedules have no arguments of their own", "give initialize lr_scheduler="),
    runs("deepspeed.checkpoint.utils.clone_tensors_for_torch_save"),
    runs("deepspeed.checkpointing.checkpoint", "by torch's, without reentrance"),
    nothing("deepspeed.checkpointing.configure", "torch's checkpointing needs none; what would save more memory is refused"),
    runs("deepspeed.checkpointing.is_configured"),
    runs("deepspeed.checkpointing.non_reentrant_checkpoint"),
    nothing("deepspeed.checkpointing.reset", "nothing is kept between two steps"),
    runs("deepspeed.comm.ReduceOp"),
    runs("deepspeed.comm.all_gather"),
    runs("deepspeed.comm.all_gather_into_tensor"),
    runs("deepspeed.comm.all_gather_object"),
    runs("deepspeed.comm.all_reduce"),
    runs("deepspeed.comm.all_to_all"),
    runs("deepspeed.comm.all_to_all_single"),
    runs("deepspeed.comm.barrier"),
    runs("deepspeed.comm.broadcast"),
    runs("deepspeed.comm.broadcast_object_list"),
    runs("deepspeed.comm.destroy_process_group"),
    runs("deepspeed.comm.gather"),
    runs("deepspeed.comm.get_backend"),
    runs("deepspeed.comm.get_global_rank"),
    runs("deepspeed.comm.get_local_rank"),
    runs("deepspeed.comm.get_rank"),
    runs("deepspeed.comm.get_world_size"),
    runs("deepspeed.comm.init_distributed"),
    runs("deepspeed.comm.irecv"),
    runs("deepspeed.comm.is_available"),
    runs("deepspeed.comm.is_initialized"),
    runs("deepspeed.comm.isend"),
    runs("deepspeed.comm.monitored_barrier"),
    runs("deepspeed.comm.new_group"),
    runs("deepspeed.comm.recv"),
    runs("deepspeed.comm.reduce"),
    runs("deepspeed.comm.reduce_scatter"),
    runs("deepspeed.comm.reduce_scatter_tensor"),
    runs("deepspeed.comm.scatter"),
    runs("deepspeed.comm.send"),
    runs("deepspeed.get_accelerator"),
    runs("deepspeed.init_distributed", "by the variables of torchrun, DeepSpeed's launcher, a notebook, mpirun or srun"),
    nothing("deepspeed.init_distributed(config=)", "it is about logging what is sent, which engine.communication() counts"),
    nothing("deepspeed.init_distributed(verbose=)", "there are no log messages"),
    refused("deepspeed.init_inference", "the engine trains, and a server generates",
            "zerocourse.inference.Server(model, blocks), after model.to(dtype), and after zerocourse.parallel.tensor.tensor_parallel(model, "
            "comm) for a tp_size"),
    runs("deepspeed.initialize"),
    refused("deepspeed.initialize(mesh_param=)", "the engine has data parallelism alone", "zerocourse.shard(..., shard_group=...)"),
    refused("deepspeed.initialize(mpu=)", "the engine has data parallelism alone", "zerocourse.shard(..., shard_group=...)"),
    runs("deepspeed.log_dist"),
    refused("deepspeed.moe", "its layers drop tokens beyond a capacity and draw second experts at random",
            "zerocourse.parallel.experts.MixtureOfExperts in the model, and expert_parallel with autoep_size in the config for its ep_size"),
    runs("deepspeed.ops.adam.DeepSpeedCPUAdam", "torch's fused Adam and AdamW, by adamw_mode; bias_correction=False, amsgrad=True and "
         "fp32_optimizer_states=False are refused"),
    runs("deepspeed.ops.adam.FusedAdam", "the same, by adam_w_mode"),
    refused("deepspeed.ops.transformer", "its kernels are DeepSpeed's own", "use torch's modules, such as nn.TransformerEncoderLayer"),
    runs("deepspeed.pipe.LayerSpec"),
    runs("deepspeed.pipe.PipelineModule"),
    runs("deepspeed.pipe.TiedLayerSpec", "the whole layer is shared"),
    runs("deepspeed.runtime.dataloader.RepeatingLoader"),
    runs("deepspeed.runtime.engine.DeepSpeedEngine", "the class of what the bridge's initialize returns, a torch module around the model"),
    runs("deepspeed.runtime.lr_schedules.VALID_LR_SCHEDULES"),
    runs("deepspeed.runtime.zero.partition_parameters.ZeroParamStatus", "parameters of stage 3 have ds_status, ds_id, ds_shape and ds_numel"),
    refused("deepspeed.tp_model_init", "there is no tensor parallelism in the engine", "use zerocourse.parallel.tensor"),
    runs("deepspeed.utils.OnDevice", "device=meta is zero.Init"),
    runs("deepspeed.utils.RepeatingLoader"),
    runs("deepspeed.utils.get_z3_leaf_modules"),
    refused("deepspeed.utils.groups", "its groups are of sequence parallelism and of DeepSpeed's own mixtures, which the engine has not",
            "use zerocourse.parallel, or torch.distributed"),
    runs("deepspeed.utils.log_dist"),
    runs("deepspeed.utils.logger"),
    runs("deepspeed.utils.safe_get_full_fp32_param"),
    runs("deepspeed.utils.safe_get_full_grad", "times the loss scale in fp16, as in DeepSpeed"),
    runs("deepspeed.utils.safe_get_full_optimizer_state"),
    runs("deepspeed.utils.safe_get_local_fp32_param", "at every stage"),
    runs("deepspeed.utils.safe_get_local_grad", "at every stage"),
    runs("deepspeed.utils.safe_get_local_optimizer_state", "at every stage"),
    runs("deepspeed.utils.safe_set_full_fp32_param"),
    runs("deepspeed.utils.safe_set_full_grad"),
    runs("deepspeed.utils.safe_set_full_optimizer_state"),
    runs("deepspeed.utils.safe_set_local_fp32_param", "at stage 3, as in DeepSpeed"),
    runs("deepspeed.utils.safe_set_local_grad", "at every stage"),
    runs("deepspeed.utils.safe_set_local_optimizer_state", "at every stage"),
    runs("deepspeed.utils.safe_update_full_grad_vectorized"),
    runs("deepspeed.utils.set_z3_leaf_module"),
    runs("deepspeed.utils.set_z3_leaf_modules", "a leaf is a unit of its own"),
    runs("deepspeed.utils.set_z3_leaf_modules_by_name"),
    runs("deepspeed.utils.set_z3_leaf_modules_by_suffix"),
    runs("deepspeed.utils.unset_z3_leaf_modules"),
    runs("deepspeed.utils.z3_leaf_module"),
    runs("deepspeed.utils.z3_leaf_parameter"),
    runs("deepspeed.utils.zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict", "of our checkpoints and of DeepSpeed's"),
    runs("deepspeed.utils.zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint", "of our checkpoints and of DeepSpeed's"),
    runs("deepspeed.utils.zero_to_fp32.load_state_dict_from_zero_checkpoint", "of our checkpoints and of DeepSpeed's"),
    runs("deepspeed.zero.GatheredParameters"),
    runs("deepspeed.zero.Init"),
    refused("deepspeed.zero.MiCS_Init", "its groups are arguments of shard", "zerocourse.shard(..., shard_group=..., replicate_group=...)"),
    runs("deepspeed.zero.TiledLinear", "in_features, out_features, bias, in_splits, out_splits"),
    nothing("deepspeed.zero.register_external_parameter", "inside of the model's forward stage 3 gathers a parameter wherever it is used"),
    nothing("deepspeed.zero.unregister_external_parameter", "inside of the model's forward stage 3 gathers a parameter wherever it is used"),
    refused("engine.allreduce_gradients", "the stages reduce gradients in backward()", "leave it out"),
    refused("engine.autotuning_enabled", "nothing is tuned by itself", "`zerocourse plan` says what fits"),
    runs("engine.backward", "several before a step add up"),
    runs("engine.bfloat16_enabled"),
    refused("engine.coalesce_grad_reduction", "gradients of several backwards are reduced at the step", "call backward several times, then step"),
    refused("engine.compile", "the engine compiles nothing", "call torch.compile on the model before initialize"),
    refused("engine.curriculum_enabled_legacy", "samples are the data loader's", "choose samples in your data loader"),
    refused("engine.deepspeed_io", "a loader is made for training data", "give initialize training_data=, or use engine.loader(dataset)"),
    runs("engine.destroy"),
    runs("engine.device"),
    runs("engine.dynamic_loss_scale"),
    refused("engine.eigenvalue", "it is not computed", "leave it out"),
    runs("engine.empty_partition_cache"),
    runs("engine.eval"),
    refused("engine.eval_batch", "only the engine of a PipelineModule has it", "call engine.eval() and engine(batch)"),
    refused("engine.flops_profiler", "there is none", "use torch.profiler"),
    runs("engine.forward"),
    runs("engine.fp16_enabled"),
    runs("engine.get_batch_info"),
    runs("engine.get_global_grad_norm"),
    runs("engine.get_lr"),
    runs("engine.get_mom"),
    runs("engine.global_rank"),
    runs("engine.global_samples"),
    runs("engine.global_steps"),
    runs("engine.gradient_accumulation_steps"),
    runs("engine.gradient_clipping"),
    runs("engine.is_gradient_accumulation_boundary"),
    runs("engine.load_checkpoint"),
    runs("engine.load_checkpoint(load_module_strict=)", "False leaves as they are what the checkpoint lacks, and warns unless it was "
         "left out on purpose"),
    refused("engine.load_module_state_dict", "at stage 3 DeepSpeed's takes slices", "engine.load_state_dict(state) takes whole tensors"),
    runs("engine.load_state_dict"),
    runs("engine.local_rank"),
    runs("engine.loss_scale"),
    runs("engine.micro_steps"),
    runs("engine.module"),
    refused("engine.module_state_dict", "at stage 3 DeepSpeed's has slices", "engine.state_dict() has whole tensors, on every rank"),
    refused("engine.monitor", "its writers are the config's csv_monitor and tensorboard",
            "log what else you need yourself, for example engine.get_global_grad_norm()"),
    runs("engine.named_parameters"),
    runs("engine.no_sync", "at stages 2 and 3 too, where every backward still reduces"),
    refused("engine.offload_states", "states do not move while a training runs",
            "the config's offload_optimizer keeps them on the host for good"),
    runs("engine.optimizer"),
    runs("engine.parameters"),
    refused("engine.quantizer", "nothing is quantised", "leave it out"),
    refused("engine.reload_states", "states do not move while a training runs",
            "the config's offload_optimizer keeps them on the host for good"),
    runs("engine.save_16bit_model"),
    runs("engine.save_checkpoint"),
    runs("engine.save_checkpoint(exclude_frozen_parameters=)"),
    runs("engine.save_fp16_model"),
    runs("engine.scale", "for a script that calls backward() itself"),
    refused("engine.set_custom_curriculum_learning_schedule", "samples are the data loader's", "choose samples in your data loader"),
    refused("engine.set_data_post_process_func", "the engine does not touch batches", "change the batch before engine(batch)"),
    runs("engine.set_gradient_accumulation_boundary"),
    refused("engine.set_train_batch_size", "the sizes are set when the engine is made",
            "initialize a new engine with another config, and load_checkpoint into it"),
    refused("engine.set_train_micro_batch_size", "the sizes are set when the engine is made",
            "initialize a new engine with another config, and load_checkpoint into it"),
    runs("engine.skipped_steps"),
    refused("engine.sparse_allreduce", "embeddings with sparse gradients are reduced like dense ones", "leave it out"),
    runs("engine.state_dict"),
    runs("engine.step"),
    refused("engine.timers", "there are none", "use engine.zero.recorder, or torch.profiler"),
    runs("engine.train"),
    refused("engine.train_batch", "only the engine of a PipelineModule has it", "call engine(batch), backward and step"),
    runs("engine.train_batch_size"),
    runs("engine.train_micro_batch_size_per_gpu"),
    runs("engine.was_step_applied"),
    runs("engine.world_size"),
    runs("engine.zero_grad"),
    runs("engine.zero_optimization"),
    runs("engine.zero_optimization_stage"),
]
BY_NAME = {row.name: row for row in ROWS}


def reason(name: str) -> str | None:
    """Why a name is refused, and what to do instead: its own row's, or that of the module that it would be in. None without one."""
    while name:
        row = BY_NAME.get(name)
        if row is not None and row.fate is Fate.REFUSED:
            return f"{row.why}; {row.instead}"
        name = name.rpartition(".")[0]
    return None


def refusal(who: str, name: str) -> str | None:
    """One sentence on a name of DeepSpeed that is not there, or None where DeepSpeed has no such name, or none that we know of.

    who: what was asked, in words.   name: as in the table.
    """
    said = reason(name)
    if said is None and any(f"{row.name}.".startswith(f"{name}.") for row in ROWS):
        said = "it is there for scripts that import deepspeed, so run them with `zerocourse run`"
    return f"{who} has no {name.rpartition('.')[2]!r}, which DeepSpeed has: {said}" if said is not None else None
