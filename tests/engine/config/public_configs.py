"""The forms that public ds_config.json files have, each in a file of our own: DeepSpeed's examples and tests, accelerate's and
transformers' templates, and what people write by hand.

LOADS: they mean what they mean upstream.   REFUSED: with the words of the sentence that names the missing mechanism.
"""

BATCH = {"train_micro_batch_size_per_gpu": 2}


def zero(stage: int, **keys) -> dict:
    return BATCH | {"zero_optimization": {"stage": stage} | keys}


def optimizer(kind: str, **params) -> dict:
    return BATCH | {"optimizer": {"type": kind, "params": {"lr": 3e-5} | params}}


def warm_up(**keys) -> dict:
    return {"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-5, "warmup_num_steps": 500}}} | keys


CPU = {"device": "cpu", "pin_memory": True}
COMPRESSED = {"shared_parameters": {"enabled": True, "schedule_offset": 0}, "different_groups": {"g1": {"params": {"dense_ratio": 0.5}}}}

LOADS = {
    # Adam's switches at their usual values
    "accelerate's stage 2": optimizer("AdamW", weight_decay=0.01, torch_adam=True, adam_w_mode=True) | warm_up()
                            | {"zero_optimization": {"stage": 2, "offload_optimizer": CPU, "allgather_bucket_size": 2e8}},
    "accelerate's stage 3": optimizer("AdamW", adam_w_mode=True) | {"zero_optimization": {
        "stage": 3, "offload_optimizer": CPU, "offload_param": CPU, "sub_group_size": 1e9, "stage3_prefetch_bucket_size": 5e7,
        "stage3_param_persistence_threshold": 1e5, "stage3_gather_16bit_weights_on_model_save": True}},
    "BERT's with bias correction": optimizer("Adam", bias_correction=True, weight_decay=0.01, betas=[0.9, 0.999], eps=1e-8)
                                   | {"gradient_clipping": 1.0, "prescale_gradients": False, "steps_per_print": 100},
    "BERT's in fp16": optimizer("AdamW", bias_correction=True) | {"fp16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 1000,
                                                                           "hysteresis": 2, "min_loss_scale": 1}, "wall_clock_breakdown": False},
    "Adam that is not AdamW": optimizer("Adam", adam_w_mode=False, weight_decay=0.1),
    "AdamW that says it is": optimizer("AdamW", adam_w_mode=True, bias_correction=True, amsgrad=False),
    # parameters that are offloaded alone, or where they cannot be
    "the plugin's at stage 2": zero(2, offload_optimizer={"device": "none"}, offload_param={"device": "cpu"}),
    "both at stage 2": zero(2, offload_optimizer=CPU, offload_param=CPU, cpu_offload_use_pin_memory=True),
    "inference from the host": zero(3, offload_param=CPU, stage3_param_persistence_threshold=0) | {"bf16": {"enabled": True}},
    "inference from a disk": zero(3, offload_param={"device": "nvme", "nvme_path": "/local_nvme", "buffer_count": 5, "buffer_size": 1e8,
                                                    "max_in_cpu": 1e9}) | {"aio": {"block_size": 131072, "queue_depth": 16,
                                                                                   "single_submit": False, "overlap_events": True}},
    # ZeRO-Offload as it was written first
    "the old offload": zero(2, cpu_offload=True, contiguous_gradients=True, overlap_comm=True) | {"zero_allow_untested_optimizer": True},
    "the old offload at stage 3": zero(3, cpu_offload=True, cpu_offload_param=True),
    "the old offload, off": zero(2, cpu_offload=False),
    "stage 1 as it was written first": BATCH | {"zero_optimization": True},
    "bf16 by its old name": BATCH | {"bfloat16": {"enabled": True}},
    # activation checkpointing of models that are cut in no way
    "partitioned activations": zero(2) | {"activation_checkpointing": {"partition_activations": True, "cpu_checkpointing": False,
                                                                       "contiguous_memory_optimization": True, "profile": False,
                                                                       "synchronize_checkpoint_boundary": False}},
    "its defaults": zero(3) | {"activation_checkpointing": {"partition_activations": False, "number_checkpoints": None,
                                                            "contiguous_memory_optimization": False}},
    # what says something of the run, not of the training
    "tensorboard": BATCH | {"tensorboard": {"enabled": True, "output_path": "logs/", "job_name": "run"}},
    "all monitors": BATCH | {"csv_monitor": {"enabled": True, "output_path": "out", "job_name": "j"},
                             "wandb": {"enabled": True, "team": "t", "group": "g", "project": "p"}},
    "profiles": BATCH | {"flops_profiler": {"enabled": True, "profile_step": 1, "module_depth": -1, "top_modules": 3, "detailed": True},
                         "comms_logger": {"enabled": True, "verbose": False, "prof_all": True}},
    "GPUs by number": BATCH | {"cuda_visible_devices": "0,1"},
    "weights to save by the name without stage3_": zero(3, gather_16bit_weights_on_model_save=True, param_persistence_threshold=1e4),
    "GPUDirect Storage": zero(3, offload_optimizer={"device": "nvme", "nvme_path": "/n"}, offload_param={"device": "nvme", "nvme_path": "/n"})
                         | {"aio": {"use_gds": True}},
    "comments": BATCH | {"_comment": "by hand", "bf16": {"//": "not on V100", "enabled": False}},
    "compression that is off": BATCH | {"compression_training": {"sparse_pruning": {"shared_parameters": {"enabled": False}}}},
}

REFUSED = {
    **{kind: (BATCH | {"compression_training": {kind: COMPRESSED}}, "compression_training is not supported: nothing is quantised, pruned")
       for kind in ("weight_quantization", "activation_quantization", "sparse_pruning", "row_pruning", "head_pruning")},
    "layer reduction": (BATCH | {"compression_training": {"layer_reduction": {"enabled": True, "keep_number_layer": 5}}}, "or distilled"),
    "no bias correction": (optimizer("Adam", bias_correction=False), "bias_correction is False: it must be true, or left out, because Adam's"),
    "1-bit Adam": (optimizer("OneBitAdam", freeze_step=400, cuda_aware=False, comm_backend_name="nccl"), "its momentum is sent in 1 bit"),
    "0/1 Adam": (optimizer("ZeroOneAdam", var_freeze_step=1000), "its momentum is sent in 1 bit"),
    "1-bit LAMB": (optimizer("OneBitLamb", max_coeff=0.3, min_coeff=0.01), "its momentum is sent in 1 bit"),
    "LAMB": (optimizer("Lamb", max_coeff=0.3, min_coeff=0.01), "its trust ratio is a norm over a whole parameter"),
    "autotuning": (BATCH | {"autotuning": {"enabled": True, "fast": False}}, "autotuning is not supported: nothing is tuned by itself"),
    "data efficiency": (BATCH | {"data_efficiency": {"enabled": True, "data_routing": {"enabled": True}}}, "samples are the data loader's"),
    "curriculum": (BATCH | {"curriculum_learning": {"enabled": True, "curriculum_type": "seqlen"}}, "curriculum_learning is gone upstream"),
    "a compiler": (BATCH | {"compile": {"deepcompile": True}}, "the engine compiles nothing: call torch.compile on the model"),
    "sparse attention": (BATCH | {"sparse_attention": {"mode": "fixed", "block": 16}}, "attention is the model's own"),
    "layers that drop": (BATCH | {"progressive_layer_drop": {"enabled": True, "theta": 0.5}}, "every layer runs in every step"),
    "autocast": (BATCH | {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}, "parameters and gradients have one dtype: use bf16"),
    "ZenFlow": (zero(2, offload_optimizer=CPU, zenflow={"topk_ratio": 0.1}), "the host steps all gradients together"),
    "tensor parallelism": (BATCH | {"tensor_parallel": {"autotp_size": 4}}, "there is no tensor parallelism in the engine"),
    "eigenvalues": (BATCH | {"eigenvalue": {"enabled": True, "max_iter": 50}}, "eigenvalue is gone upstream: it is not computed"),
    "old and new offload": (zero(2, cpu_offload=True, offload_optimizer=CPU), "keep one of them"),
}
