"""Names of DeepSpeed that this package does not have, each with what to do instead. It communicates nothing."""

OF_THE_PACKAGE = {
    "init_inference": "run the model under torch.no_grad()",
    "PipelineModule": "there are no pipelines in the engine",
    "add_tuning_arguments": "schedules are lr_scheduler= of initialize",
    "tp_model_init": "there is no tensor parallelism in the engine",
    "checkpointing": "use torch.utils.checkpoint, which every stage supports",
    "OnDevice": "use zerocourse.zero.Init or zerocourse.deferred_init",
    "DeepSpeedEngine": "the class is zerocourse.Engine",
    "DeepSpeedConfig": "initialize reads the config",
    "moe": "there are no experts across ranks in the engine",
    "ops": "use torch's optimizers, such as torch.optim.AdamW(fused=True)",
    "utils": "use torch.distributed, and zerocourse.state_dict for whole weights",
    "runtime": "use the public names of zerocourse",
}
OF_THE_ENGINE = {
    "allreduce_gradients": "the stages reduce gradients in backward()",
    "autotuning_enabled": "nothing is tuned by itself",
    "compile": "call torch.compile on the model before initialize",
    "curriculum_enabled_legacy": "choose samples in your data loader",
    "eigenvalue": "there is none",
    "flops_profiler": "use torch.profiler",
    "monitor": "log the losses and engine.get_global_grad_norm() yourself",
    "offload_states": "the config's offload_optimizer keeps states on the host for good",
    "reload_states": "the config's offload_optimizer keeps states on the host for good",
    "quantizer": "nothing is quantised",
    "set_custom_curriculum_learning_schedule": "choose samples in your data loader",
    "set_data_post_process_func": "change the batch before engine(batch)",
    "set_train_batch_size": "initialize a new engine with another config, and load_checkpoint into it",
    "set_train_micro_batch_size": "initialize a new engine with another config, and load_checkpoint into it",
    "sparse_allreduce": "embeddings with sparse gradients are reduced like dense ones",
    "timers": "use engine.zero.recorder, or torch.profiler",
    "train_batch": "there are no pipelines in the engine: call engine(batch), backward and step",
    "eval_batch": "there are no pipelines in the engine: call engine.eval() and engine(batch)",
}


def refusal(who: str, name: str, table: dict[str, str]) -> str | None:
    """One sentence, or None when DeepSpeed has no such name, or none that we know of."""
    return f"{who} has no {name!r}, which DeepSpeed has: {table[name]}" if name in table else None
