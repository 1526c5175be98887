"""What the sections of a ds_config hold: types, bounds and defaults, as pydantic models. Reads no file, knows no rank.

Names and defaults are DeepSpeed's (0.19.8). What a key does stands in `keys`; rules between keys in `rules`.
"""

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

Name, Params = TypeVar("Name"), TypeVar("Params")


def whole_number(value: object) -> object:
    """JSON's 5e8 is a float; every other float stays one, and is refused where an int is wanted."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


LARGEST, MOST = 2**63 - 1, 1e38  # of integers and of numbers: what 64 bits hold, and fp32


def whole(least: int, most: int = LARGEST):
    """The type of an integer in that range."""
    return Annotated[int, Field(ge=least, le=most), BeforeValidator(whole_number)]


def file_path(value: str) -> str:
    """Raises ValueError for what cannot be the path of a file: NUL, or half of a character."""
    if "\0" in value:
        raise ValueError
    value.encode()  # raises UnicodeEncodeError, which is one
    return value


Count = Annotated[int, Field(ge=1, le=LARGEST), BeforeValidator(whole_number)]
Positive = Annotated[float, Field(gt=0, le=MOST, allow_inf_nan=False)]
Real = Annotated[float, Field(ge=-MOST, le=MOST, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]  # of an average, so below 1
Pair = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)  # JSON has lists only
Betas = Annotated[tuple[Fraction, Fraction], Pair]
Capital = BeforeValidator(lambda value: value.capitalize() if isinstance(value, str) else value)
Small = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
Texts = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
FilePath = Annotated[str, AfterValidator(file_path)]
Rates = NotNegative | list[NotNegative]  # one for all parameter groups, or one for each
Dtype = Literal["fp32", "fp16", "bf16"]
Device = Literal["none", "cpu", "nvme"]


class Section(BaseModel):
    """An object of the file. Unknown keys are refused, and so are true for 1 and "3" for 3."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


# Precision ------------------------------------------------------------------------------------------------------------

class Fp16Config(Section):
    enabled: bool = False
    auto_cast: bool = False
    loss_scale: NotNegative = 0  # 0: dynamic
    initial_scale_power: whole(0, 127) = 16
    loss_scale_window: Count = 1000
    hysteresis: Count = 2
    consecutive_hysteresis: bool = False
    min_loss_scale: Positive = 1


class Bf16Config(Section):
    enabled: bool = False
    check_grad_overflow: bool = True


class DataTypesConfig(Section):
    grad_accum_dtype: Dtype | None = None


# Memory ---------------------------------------------------------------------------------------------------------------

class OffloadOptimizerConfig(Section):
    device: Device | None = "none"
    nvme_path: FilePath | None = None
    buffer_count: whole(0) = 4
    pin_memory: bool = True
    ratio: Annotated[float, Field(ge=0, le=1)] = 1.0


class OffloadParamConfig(Section):
    device: Device | None = "none"
    nvme_path: FilePath | None = None
    pin_memory: bool = True


class AioConfig(Section):
    """`aio`: how the disk is read and written."""

    block_size: Count = 1_048_576  # bytes
    queue_depth: Count = 8
    intra_op_parallelism: Count = 1


class LeafModuleConfig(Section):
    """`leaf_module`: modules that are units of their own at stage 3."""

    classes: Texts = []
    names: Texts = []
    name_suffixes: Texts = []


class ZeroConfig(Section):
    """`zero_optimization`. Bucket sizes are in elements."""

    stage: whole(0, 3) = 0
    reduce_bucket_size: Count = 500_000_000
    overlap_comm: bool | None = None  # None means on, at every stage
    offload_optimizer: OffloadOptimizerConfig = OffloadOptimizerConfig()
    offload_param: OffloadParamConfig = OffloadParamConfig()
    leaf_module: LeafModuleConfig = LeafModuleConfig()
    zero_hpz_partition_size: Count = 1
    zero_quantized_weights: bool = False
    zero_quantized_gradients: bool = False

    @property
    def has_slow_links(self) -> bool:
        """Does one of ZeRO++'s keys ask for less between nodes?"""
        return self.zero_hpz_partition_size > 1 or self.zero_quantized_weights or self.zero_quantized_gradients


class ExpertParallelConfig(Section):
    """`expert_parallel`: groups of ranks that have different experts of a mixture."""

    enabled: bool = False
    autoep_size: Count = 1


class ActivationCheckpointingConfig(Section):
    """`activation_checkpointing`. A file that has the section means it; `enabled` is ours and switches it off."""

    enabled: bool = True
    number_checkpoints: Count | None = None  # None: every block
    cpu_checkpointing: bool = False


class CheckpointConfig(Section):
    """`checkpoint`: most of DeepSpeed's keys in it change nothing here."""

    tag_validation: Annotated[Literal["Fail", "Warn", "Ignore"], Capital] = "Fail"


class MonitorConfig(Section):
    """`csv_monitor` and `tensorboard`: where a step's loss, learning rate and loss scale are written."""

    enabled: bool = False
    output_path: FilePath = ""
    job_name: FilePath = "DeepSpeedJobName"


# The optimizer and its schedule ---------------------------------------------------------------------------------------

class AdamParams(Section):
    lr: NotNegative = 1e-3
    betas: Betas = (0.9, 0.999)
    eps: NotNegative = 1e-8
    weight_decay: NotNegative = 0.0  # DeepSpeed's default, where torch's AdamW has 0.01
    adam_w_mode: bool = True  # DeepSpeed's default: "Adam" is AdamW unless this is switched off, and "AdamW" always


class LionParams(Section):
    lr: NotNegative = 1e-3
    betas: Betas = (0.9, 0.999)
    weight_decay: NotNegative = 0.0


class SGDParams(Section):
    lr: NotNegative = 1e-3
    momentum: NotNegative = 0.0
    dampening: Real = 0.0
    weight_decay: NotNegative = 0.0
    nesterov: bool = False


class WarmupLRParams(Section):
    warmup_min_lr: Rates = 0.0
    warmup_max_lr: Rates | None = None  # None: the optimizer's
    warmup_num_steps: Count = 1000
    warmup_type: Literal["log", "linear"] = "log"


class WarmupDecayLRParams(WarmupLRParams):
    total_num_steps: Count
    warmup_max_lr: Rates = 0.001


class WarmupCosineLRParams(Section):
    total_num_steps: Count
    warmup_min_ratio: NotNegative = 0.0
    warmup_num_steps: Count = 1000
    cos_min_ratio: NotNegative = 0.0001
    warmup_type: Literal["log", "linear"] = "log"


class OneCycleParams(Section):
    cycle_min_lr: Rates
    cycle_max_lr: Rates
    decay_lr_rate: NotNegative = 0.0
    cycle_first_step_size: Count = 2000
    cycle_second_step_size: whole(0) | None = None  # None: as long as the first
    cycle_first_stair_count: whole(0) = 0  # 0: no stairs
    cycle_second_stair_count: whole(0) | None = None  # None: as many as in the first
    decay_step_size: whole(0) = 0  # 0: no decay
    cycle_momentum: bool = True
    cycle_min_mom: Fraction = 0.8
    cycle_max_mom: Fraction = 0.9
    decay_mom_rate: NotNegative = 0.0


class LRRangeTestParams(Section):
    lr_range_test_min_lr: Rates = 1e-3
    lr_range_test_step_size: Count = 2000
    lr_range_test_step_rate: NotNegative = 1.0
    lr_range_test_staircase: bool = False


class Typed(Section, Generic[Name, Params]):
    """{"type": ..., "params": {...}}; what `params` may hold depends on the type."""

    type: Name
    params: Params = Field(default={}, validate_default=True)


OptimizerConfig = Annotated[
    Typed[Literal["Adam"], AdamParams] | Typed[Literal["AdamW"], AdamParams] | Typed[Literal["Lion"], LionParams]
    | Typed[Literal["SGD"], SGDParams], Field(discriminator="type")]
SchedulerConfig = Annotated[
    Typed[Literal["WarmupLR"], WarmupLRParams] | Typed[Literal["WarmupDecayLR"], WarmupDecayLRParams]
    | Typed[Literal["WarmupCosineLR"], WarmupCosineLRParams] | Typed[Literal["OneCycle"], OneCycleParams]
    | Typed[Literal["LRRangeTest"], LRRangeTestParams], Field(discriminator="type")]


class ConfigFile(Section):
    """The top level, as a file has it: of the three batch sizes one is enough."""

    train_batch_size: Count | None = None
    train_micro_batch_size_per_gpu: Count | None = None
    gradient_accumulation_steps: Count | None = None
    managed_gradient_accumulation: bool = True
    gradient_allreduce_op: Annotated[Literal["mean", "sum"], Small] = "mean"
    dataloader_drop_last: bool = True
    gradient_clipping: NotNegative = 1.0  # the largest 2-norm of the gradient; 0 means no clipping
    zero_optimization: ZeroConfig = ZeroConfig()
    expert_parallel: ExpertParallelConfig = ExpertParallelConfig()
    use_data_before_expert_parallelism: bool = False
    aio: AioConfig = AioConfig()
    bf16: Bf16Config = Bf16Config()
    fp16: Fp16Config = Fp16Config()
    communication_data_type: Dtype | None = None
    data_types: DataTypesConfig = DataTypesConfig()
    optimizer: OptimizerConfig | None = None
    scheduler: SchedulerConfig | None = None
    activation_checkpointing: ActivationCheckpointingConfig | None = None
    checkpoint: CheckpointConfig = CheckpointConfig()
    csv_monitor: MonitorConfig = MonitorConfig()
    tensorboard: MonitorConfig = MonitorConfig()

    @property
    def has_groups_of_experts(self) -> bool:
        """Do ranks have different experts?"""
        return self.expert_parallel.enabled and self.expert_parallel.autoep_size > 1
