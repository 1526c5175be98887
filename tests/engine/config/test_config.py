"""ds_config: what it resolves to, and that every mistake is named in one sentence, all of them at once."""

import copy
import json
import math
import warnings

import jsonschema
import pytest
from hypothesis import given as generated
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from zerocourse.engine.config import Config
from zerocourse.engine.config.auto import known_values
from zerocourse.engine.config.json_file import keys_by_line
from zerocourse.engine.config.json_schema import json_schema
from zerocourse.engine.config.keys import CHANGES_NOTHING, FALSE_IS_A_CHOICE, GONE, KEYS, NEVER, NOT_YET, ONLY, WORKS
from zerocourse.errors import BadInput


def load(config, world_size: int = 1, known=None) -> Config:
    """Load it with every warning an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return Config.load(config, world_size, known)


def problems(config, world_size: int = 1, known=None) -> list[str]:
    with pytest.raises(BadInput) as caught:
        load(config, world_size, known)
    return str(caught.value).split("\n")


def refused(config, world_size: int = 1) -> str:
    """The one sentence."""
    found = problems(config, world_size)
    assert len(found) == 1, found
    return found[0]


def batch(train=None, micro=None, steps=None) -> dict:
    names = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
    return {name: value for name, value in zip(names, (train, micro, steps), strict=True) if value is not None}


def at(path: str, value, base: dict | None = None) -> dict:
    """The base, by default the shortest config, with a value at a path."""
    config = copy.deepcopy({"train_batch_size": 8} if base is None else base)
    *sections, last = path.split(".")
    inside = config
    for key in sections:
        inside = inside.setdefault(key, {})
    inside[last] = value
    return config


# --- the batch rule ---

@pytest.mark.parametrize("given, world_size, resolved", [
    (batch(train=24, micro=2, steps=3), 4, (24, 2, 3)),
    (batch(train=24, micro=2), 4, (24, 2, 3)),
    (batch(train=24, steps=3), 4, (24, 2, 3)),
    (batch(micro=2, steps=3), 4, (24, 2, 3)),
    (batch(train=24), 4, (24, 6, 1)),
    (batch(micro=2), 4, (8, 2, 1)),
    (batch(train=1), 1, (1, 1, 1)),
    (batch(train=24.0, micro=2), 4, (24, 2, 3)),
    (batch(train="auto", micro=2, steps=3), 4, (24, 2, 3)),
    (batch(train=24, micro="auto", steps="auto"), 4, (24, 6, 1)),
    ({"train_batch_size": None, **batch(micro=2)}, 4, (8, 2, 1)),
])
def test_any_two_sizes_give_the_third(given, world_size, resolved):
    config = load(given, world_size)
    found = config.train_batch_size, config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps
    assert found == resolved and {type(size) for size in found} == {int}


@pytest.mark.parametrize("given, world_size, words", [
    ({}, 2, ["train_batch_size", "train_micro_batch_size_per_gpu", "needed"]),
    (batch(steps=4), 2, ["neither", "train_batch_size", "train_micro_batch_size_per_gpu"]),
    (batch(train="auto", micro="auto", steps="auto"), 2, ["neither", "at least one of them is needed"]),
    (batch(train=8, micro=3), 1, ["8 is not divisible by 3 × 1", "train_micro_batch_size_per_gpu × ranks"]),
    (batch(train=8, steps=3), 1, ["8 is not divisible by 3 × 1", "gradient_accumulation_steps × ranks"]),
    (batch(train=9, micro=2), 3, ["9 is not divisible by 2 × 3"]),
    (batch(train=3), 4, ["3 is not divisible by 1 × 4"]),
    (batch(train=16, micro=2, steps=2), 2, ["16", "micro-batch 2 × accumulation 2 × ranks 2 = 8"]),
    (batch(train=0), 1, ["train_batch_size is 0", "an integer of at least 1"]),
    (batch(train=8, steps=0), 1, ["gradient_accumulation_steps is 0", "an integer of at least 1"]),
])
def test_sizes_that_do_not_fit(given, world_size, words):
    sentence = refused(given, world_size)
    assert all(word in sentence for word in words), sentence


# --- what a good one resolves to ---

def test_defaults():
    assert load({"train_batch_size": 8}).as_dict() == {
        "train_batch_size": 8, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1,
        "gradient_allreduce_op": "mean", "dataloader_drop_last": True,
        "managed_gradient_accumulation": True, "gradient_clipping": 1.0, "bf16": {"enabled": False, "check_grad_overflow": True},
        "communication_data_type": None,
        "zero_optimization": {
            "stage": 0, "reduce_bucket_size": 500_000_000, "overlap_comm": None,
            "offload_optimizer": {"device": "none", "nvme_path": None, "buffer_count": 4, "pin_memory": True,
                                  "ratio": 1.0},
            "offload_param": {"device": "none", "nvme_path": None, "pin_memory": True},
            "leaf_module": {"classes": [], "names": [], "name_suffixes": []},
            "zero_hpz_partition_size": 1, "zero_quantized_weights": False, "zero_quantized_gradients": False},
        "expert_parallel": {"enabled": False, "autoep_size": 1}, "use_data_before_expert_parallelism": False,
        "aio": {"block_size": 1_048_576, "queue_depth": 8, "intra_op_parallelism": 1},
        "fp16": {"enabled": False, "auto_cast": False, "loss_scale": 0.0, "initial_scale_power": 16,
                 "loss_scale_window": 1000, "hysteresis": 2, "consecutive_hysteresis": False, "min_loss_scale": 1.0},
        "data_types": {"grad_accum_dtype": None},
                                   "optimizer": None, "scheduler": None,
        "activation_checkpointing": None,
        "checkpoint": {"tag_validation": "Fail"},
        **{section: {"enabled": False, "output_path": "", "job_name": "DeepSpeedJobName"} for section in ("csv_monitor", "tensorboard")}}


def test_what_was_given():
    given = at("gradient_clipping", 0, at("zero_optimization", {"stage": 3, "reduce_bucket_size": 5e7,
                                                                "overlap_comm": False}))
    given |= {"bf16": {"enabled": True}, "optimizer": {"type": "adam", "params": {"lr": 1, "betas": [0.5, 0.75]}},
              "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0, "cycle_max_lr": [0.1, 0.2]}},
              "activation_checkpointing": {"number_checkpoints": 2}}
    before = copy.deepcopy(given)
    config = load(given)
    assert given == before, "the dictionary is the caller's"
    zero = config.zero_optimization
    assert (zero.stage, zero.reduce_bucket_size, zero.overlap_comm, config.bf16.enabled) == (3, 50_000_000, False, True)
    assert type(zero.reduce_bucket_size) is int, "JSON's 5e7 is a float"
    assert config.gradient_clipping == 0 and type(config.gradient_clipping) is float
    assert (config.optimizer.type, config.optimizer.params.betas) == ("Adam", (0.5, 0.75))
    assert config.scheduler.params.cycle_max_lr == [0.1, 0.2]
    assert load(json.loads(json.dumps(config.as_dict()))) == config, "what is written can be read"
    assert load(at("bf16.enabled", False, given)) != config


# --- mistakes: every key, by hand ---

OPTIMIZERS = {"Adam": {}, "AdamW": {}, "Lion": {}, "SGD": {}}
SCHEDULERS = {"WarmupLR": {}, "WarmupDecayLR": {"total_num_steps": 9}, "WarmupCosineLR": {"total_num_steps": 9},
              "OneCycle": {"cycle_min_lr": 0, "cycle_max_lr": 1}, "LRRangeTest": {}}
BAD = {  # what a value must be: values that are not
    "true or false": [1, 0, "true", "yes", 2.5, [], {}],
    "true or false, or null": [1, "true"],
    "an integer from 0 to 3": [4, -1, True, 2.5, "3", "auto", None, [1], {"value": 3}, float("nan")],
    "an integer from 0 to 127": [128, -1, 1.5],
    "an integer of at least 1": [0, -2, True, 1.5, "8", None, float("inf"), [8]],
    "an integer of at least 1, or null": [0, -2, True, 1.5, "8", float("inf"), [8]],
    "an integer of at least 0": [-1, False, 0.5, "8", None],
    "an integer of at least 0, or null": [-1, False, 0.5, "8"],
    "a number of at least 0": [-1, -1e-9, True, "1.0", None, float("nan"), float("inf"), float("-inf"), [1.0]],
    "a number above 0": [0, -1, True, "1", None, float("inf")],
    "a number": [True, "1", None, float("nan")],
    "a number from 0 to below 1": [1, -0.1, "0.9", None, True],
    "a number from 0 to 1": [1.1, -0.1, "0.5"],
    "a number of at least 0, or a list of such numbers, one for each parameter group": [-1, "1", True, [1, -1], [None],
                                                                                        {}],
    "a number of at least 0, or a list of such numbers, one for each parameter group, or null": [-1, "1", [1, "1"]],
    "a list of 2 numbers from 0 to below 1": [0.9, [0.9], [0.9, 0.99, 0.999], [0.9, 1], ["0.9", 0.9], "0.9", None, {}],
    "one of 'fp32', 'fp16', 'bf16', or null": ["fp8", "float32", 16, True],
    "one of 'none', 'cpu', 'nvme', or null": ["gpu", 1, True],
    "one of 'log', 'linear'": ["cosine", "Log", None, 1],
    "a string, or null": [1, ["x"]],
    "a string": [1, None, ["x"]],
    "a list of strings": [1, None, [1], {}],
    "one of 'mean', 'sum'": ["max", 1, True, None],
    "one of 'Fail', 'Warn', 'Ignore'": ["Perhaps", 1, True, None],
}
COUNT, FLAG, SIZE, RATE = ("an integer of at least 1", "true or false", "a number of at least 0",
                           "a number of at least 0, or a list of such numbers, one for each parameter group")
ADAM = {"lr": SIZE, "betas": "a list of 2 numbers from 0 to below 1", "eps": SIZE, "weight_decay": SIZE}
WARM_UP = {"warmup_num_steps": COUNT, "warmup_type": "one of 'log', 'linear'"}
OF_TYPE = {  # what each optimizer and each schedule has
    "Adam": ADAM | {"adam_w_mode": FLAG}, "AdamW": ADAM | {"adam_w_mode": FLAG}, "Lion": {"lr": SIZE, "betas": ADAM["betas"],
                                                                  "weight_decay": SIZE},
    "SGD": {"lr": SIZE, "momentum": SIZE, "dampening": "a number", "weight_decay": SIZE, "nesterov": FLAG},
    "WarmupLR": WARM_UP | {"warmup_min_lr": RATE, "warmup_max_lr": f"{RATE}, or null"},
    "WarmupDecayLR": WARM_UP | {"warmup_min_lr": RATE, "warmup_max_lr": RATE, "total_num_steps": COUNT},
    "WarmupCosineLR": WARM_UP | {"total_num_steps": COUNT, "warmup_min_ratio": SIZE, "cos_min_ratio": SIZE},
    "OneCycle": {"cycle_min_lr": RATE, "cycle_max_lr": RATE, "decay_lr_rate": SIZE, "cycle_first_step_size": COUNT,
                 "cycle_second_step_size": "an integer of at least 0, or null",
                 "decay_step_size": "an integer of at least 0",
                 "cycle_first_stair_count": "an integer of at least 0", "cycle_momentum": FLAG, "decay_mom_rate": SIZE,
                 "cycle_second_stair_count": "an integer of at least 0, or null",
                 "cycle_min_mom": "a number from 0 to below 1", "cycle_max_mom": "a number from 0 to below 1"},
    "LRRangeTest": {"lr_range_test_min_lr": RATE, "lr_range_test_step_size": COUNT, "lr_range_test_step_rate": SIZE,
                    "lr_range_test_staircase": FLAG},
}
MUST = {
    "train_batch_size": f"{COUNT}, or null", "train_micro_batch_size_per_gpu": f"{COUNT}, or null",
    "gradient_accumulation_steps": f"{COUNT}, or null", "gradient_clipping": SIZE,
    "zero_optimization.stage": "an integer from 0 to 3", "zero_optimization.reduce_bucket_size": COUNT,
    "zero_optimization.overlap_comm": "true or false, or null",
    "managed_gradient_accumulation": FLAG, "bf16.enabled": FLAG, "bf16.check_grad_overflow": FLAG, "fp16.enabled": FLAG, "fp16.auto_cast": FLAG,
    "fp16.loss_scale": SIZE,
    "fp16.initial_scale_power": "an integer from 0 to 127", "fp16.loss_scale_window": COUNT, "fp16.hysteresis": COUNT,
    "fp16.consecutive_hysteresis": FLAG, "fp16.min_loss_scale": "a number above 0",
    "communication_data_type": "one of 'fp32', 'fp16', 'bf16', or null",
    "data_types.grad_accum_dtype": "one of 'fp32', 'fp16', 'bf16', or null",
    "activation_checkpointing.enabled": FLAG, "activation_checkpointing.cpu_checkpointing": FLAG,
    "gradient_allreduce_op": "one of 'mean', 'sum'", "dataloader_drop_last": FLAG,
    **{f"zero_optimization.leaf_module.{key}": "a list of strings" for key in ("classes", "names", "name_suffixes")},
    "checkpoint.tag_validation": "one of 'Fail', 'Warn', 'Ignore'",
    **{f"{section}.{key}": must for section in ("csv_monitor", "tensorboard")
       for key, must in {"enabled": FLAG, "output_path": "a string", "job_name": "a string"}.items()},
    "activation_checkpointing.number_checkpoints": f"{COUNT}, or null",
    **{f"zero_optimization.offload_{of}.{key}": must for of in ("optimizer", "param") for key, must in {
        "device": "one of 'none', 'cpu', 'nvme', or null", "nvme_path": "a string, or null", "pin_memory": FLAG}.items()},
    "zero_optimization.offload_optimizer.buffer_count": "an integer of at least 0",
    "zero_optimization.zero_hpz_partition_size": COUNT, "zero_optimization.zero_quantized_weights": FLAG,
    "zero_optimization.zero_quantized_gradients": FLAG, "aio.block_size": COUNT, "aio.queue_depth": COUNT, "aio.intra_op_parallelism": COUNT,
    "zero_optimization.offload_optimizer.ratio": "a number from 0 to 1",
    "expert_parallel.enabled": FLAG, "expert_parallel.autoep_size": COUNT, "use_data_before_expert_parallelism": FLAG,
}


def of_type(name: str, params: dict | None = None) -> dict:
    """A config with this optimizer or schedule."""
    section = "optimizer" if name in OPTIMIZERS else "scheduler"
    return {"train_batch_size": 8, section: {"type": name, "params": {**(OPTIMIZERS | SCHEDULERS)[name],
                                                                      **(params or {})}}}


def mistakes() -> list[tuple[dict, str, object, str]]:
    """(base, path, bad value, what it must be) of every key that is read."""
    base = {"train_batch_size": 8}
    found = [(base, path, value, must) for path, must in MUST.items() for value in BAD[must]]
    for name, keys in OF_TYPE.items():
        section = "optimizer" if name in OPTIMIZERS else "scheduler"
        found += [(of_type(name), f"{section}.params.{key}", value, must) for key,
                  must in keys.items() for value in BAD[must]]
    found += [(base, path, value, f"{'an' if kind[0] in 'io' else 'a'} {kind}" if kind != "boolean" else FLAG)
              for kind, paths in CHANGES_NOTHING.items() for path in paths if not path.startswith("optimizer")
              for value in {"boolean": [2, "x", [], {}], "integer": [True, "x", 1.5], "number": [True, "x"],
                            "string": [1, []],
                            "object": [1, "x", []]}[kind]]
    sections = [path for path in WORKS if any(other.startswith(f"{path}.") for other in WORKS) and "params" not in path]
    return found + [(base, path, value, "an object" + ", or null" * (path in ("optimizer", "scheduler",
                                                                              "activation_checkpointing")))
                    for path in sections for value in (True, 3, "on", []) if (path, value) != ("zero_optimization", True)]


def finite(must: str, value: object) -> str:
    """inf and nan are numbers, too, so a sentence on them says that it must be a finite one."""
    is_number = isinstance(value, float) and not math.isfinite(value)
    return must.replace("a number", "a finite number", 1) if is_number and "to below" not in must and "to 1" not in must else must


def test_a_wrong_value_of_every_key_is_one_sentence_with_path_value_and_what_would_be_right():
    cases = mistakes()
    assert len(cases) > 500
    left_out = {path for path in WORKS if not any(case[1] == path or case[1].startswith(f"{path}.") for case in cases)}
    assert left_out == {"optimizer.type", "scheduler.type"}, "each key has a wrong value here"
    wrong = {}
    for base, path, value, must in cases:
        found, wanted = problems(at(path, value, base)), f"{path} is {value!r}: it must be {finite(must, value)}"
        if found != [wanted]:
            wrong[wanted] = found
    assert not wrong


@hypothesis_settings(max_examples=120, deadline=None)
@generated(st.data())
def test_several_mistakes_are_several_sentences(data):
    """Wrong values, unknown keys and refused keys in one config: a sentence for each, and none besides."""
    optimizer, scheduler = data.draw(st.sampled_from(list(OPTIMIZERS))), data.draw(st.sampled_from(list(SCHEDULERS)))
    base = {**of_type(optimizer), **of_type(scheduler), "zero_optimization": {"stage": 1}}
    at_once = {f"optimizer.params.{key}": must for key, must in OF_TYPE[optimizer].items()}
    at_once |= {f"scheduler.params.{key}": must for key, must in OF_TYPE[scheduler].items()} | MUST
    wanted, config = [], base
    for path in data.draw(st.lists(st.sampled_from(sorted(at_once)), max_size=5, unique=True)):
        value = data.draw(st.sampled_from(BAD[at_once[path]]))
        config = at(path, value, config)
        wanted.append(f"{path} is {value!r}: it must be {finite(at_once[path], value)}")
    for section in data.draw(st.lists(st.sampled_from(["", "zero_optimization.", "bf16."]), max_size=2, unique=True)):
        key = data.draw(st.text("xyz", min_size=7, max_size=9))
        config = at(section + key, 1, config)
        wanted.append(f"{section[:-1] or 'the config'} has the unknown key {key!r}; known here: ")
    for path in data.draw(st.lists(st.sampled_from(sorted(GONE | NEVER)), max_size=2, unique=True)):
        if ".type." not in path and not path.startswith("optimizer."):
            config = at(path, {"enabled": True}, config)
            wanted.append(f"{path} is {KEYS[path].group.value}: {KEYS[path].does}")
    try:
        found = problems(config) if wanted else load(config) and []
    except BaseException as error:
        raise AssertionError(config) from error
    assert len(found) == len(wanted), (config, found)
    assert all(any(sentence.startswith(start) for sentence in found) for start in wanted), (wanted, found)


@pytest.mark.parametrize("given, words", [
    ({"train_batch_sise": 8, "train_batch_size": 8}, ["the config", "'train_batch_sise'",
                                                      "did you mean 'train_batch_size'?"]),
    (at("gradient_cliping", 1), ["'gradient_cliping'", "did you mean 'gradient_clipping'?"]),
    (at("fp_16", {}), ["'fp_16'", "did you mean 'fp16'?"]),
    ({"train_batch_size": 8, "a.b": 1}, ["unknown key 'a.b'"]),
    ({"train_batch_size": 8, "bf16.check_grad_overflow": 1}, ["key 'bf16.check_grad_overflow'; it belongs in bf16"]),
    ({"train_batch_size": 8, "zero_optimization.stage": "auto"}, ["it belongs in zero_optimization, as 'stage'"]),
    ({"train_batch_size": 8, 3: "auto"}, ["unknown key 3"]),
    ({"train_batch_size": 8, None: 1}, ["unknown key 'None'"]),
    ({"train_batch_size": 8, 1.5: 1}, ["unknown key '1.5'"]),
    (at("bf16", {(1, 2): 1}), ["bf16 has the unknown key '(1, 2)'"]),
    (at("banana", 1), ["'banana'", "known here: train_batch_size"]),
    ({"train_batch_size": 8, 3: 1}, ["unknown key 3"]),
    (at("stage", 3), ["unknown key 'stage'; it belongs in zero_optimization"]),
    (at("zero_optimization.gradient_clipping", 3), ["zero_optimization has the unknown key",
                                                    "it belongs at the top level"]),
    (at("zero_optimization.stag", 3), ["zero_optimization", "'stag'", "did you mean 'stage'?"]),
    (at("zero_optimization.overlap_com", True), ["did you mean 'overlap_comm'?"]),
    (at("zero_optimization.contiguous_gradient", True), ["did you mean 'contiguous_gradients'?"]),
    (at("zero_optimization.banana", True), ["zero_optimization", "'banana'", "known here: stage, reduce_bucket_size"]),
    (at("bf16.enable", True), ["bf16", "'enable'", "did you mean 'enabled'?"]),
    (at("activation_checkpointing.partitioned_activations", True), ["did you mean 'partition_activations'?"]),
    (of_type("SGD", {"eps": 1}), ["optimizer.params has the unknown key 'eps'; known here of SGD: lr, momentum"]),
    (of_type("AdamW", {"bias_correction": False}), ["optimizer.params.bias_correction is False: it must be true, or left out, because Adam's"]),
    (at("checkpoint.use_node_local_storage", True),
     ["use_node_local_storage is True: it must be false, or left out, because a checkpoint is one folder"]),
    (at("zero_optimization", {"stage": 2, "cpu_offload": "yes"}), ["zero_optimization.cpu_offload is 'yes': it must be true or false"]),
    (at("zero_optimization", {"stage": 2, "cpu_offload": True, "offload_optimizer": {"device": "cpu"}}),
     ["cpu_offload is an old form of zero_optimization.offload_optimizer", "keep one of them"]),
    (at("gradient_allreduce_op", "sum", at("zero_optimization.stage", 3)), ["gradient_allreduce_op is 'sum' at stage 3"]),
    ({"train_batch_size": 8, "\ud800": 1}, ["the config has the key '\\ud800', which has half of a character"]),
    (at("optimizer.params.lr", 1e300, of_type("AdamW")), ["optimizer.params.lr is 1e+300: it must be at most 1e+38"]),
    ({"train_batch_size": 1e308}, ["train_batch_size is 1e+308: it must be at most 9.22e+18"]),
    *((at("zero_optimization", {"stage": 1, "offload_optimizer": {"device": "nvme", "nvme_path": path}}), ["the path of a file, without NUL"])
      for path in ("\0", "a/\ud800")),
    (at("fp16", {"enabled": True, "loss_scale": 1e300}), ["fp16.loss_scale is 1e+300: it must be at most 1e+38"]),
    (at("fp16", {"enabled": True, "loss_scale": 1e-300}), ["fp16.loss_scale is 1e-300: it must be 0, for a dynamic one, or at least 1e-37"]),
    (at("fp16", {"enabled": True, "initial_scale_power": 2, "min_loss_scale": 1000}),
     ["fp16.min_loss_scale is 1000, above the first scale, 2^2 = 4"]),
    (of_type("WarmupLR", {"warmup_min_lr": []}), ["scheduler.params.warmup_min_lr is []: it must have a rate for each parameter group"]),
    (of_type("OneCycle", {"cycle_min_lr": [0, 0], "cycle_max_lr": [1, 1, 1]}), ["cycle_min_lr has 2 rates and scheduler.params.cycle_max_lr has 3"]),
    (at("b" * 100_000, 1), ["unknown key 'bbbb", "...; known here"]),
    (of_type("Adam", {"leaning_rate": 1}), ["optimizer.params has the unknown key", "known here of Adam: lr, betas"]),
    (of_type("WarmupLR", {"total_num_steps": 3}), ["scheduler.params", "'total_num_steps'",
                                                   "did you mean 'warmup_num_steps'?"]),
    (of_type("Adam", {"max_grad_norm": 1}), ["optimizer.params.max_grad_norm is not supported: set gradient_clipping"]),
    (at("optimizer.type", "Admw"), ["optimizer.type is 'Admw': did you mean 'AdamW'?"]),
    (at("optimizer.type", "RMSprop"), ["optimizer.type is 'RMSprop'",
                                       "Adam, AdamW, Lion, SGD, or give initialize an optimizer"]),
    (at("optimizer.type", "muon"), ["optimizer.type is 'muon', which is not supported yet: it orthogonalises",
                                    "give initialize torch.optim.Muon"]),
    (at("optimizer.type", "OneBitAdam"), ["optimizer.type is 'OneBitAdam', which is gone upstream: its momentum", "use Adam"]),
    (at("optimizer.type", None), ["optimizer.type is None: it must be one of Adam, AdamW, Lion, SGD"]),
    (at("optimizer.params", {"lr": 1}), ["optimizer.type is missing: it must be one of Adam"]),
    (at("optimizer", {}), ["optimizer.type is missing"]),
    (at("scheduler.type", "StepLR"), ["scheduler.type is 'StepLR'", "WarmupLR", "or give initialize an lr_scheduler"]),
    (at("scheduler.type", "WarmupDecayLR"), ["scheduler.params.total_num_steps is missing: it must be an integer"]),
    (of_type("SGD", {"nesterov": True, "momentum": -1}), ["optimizer.params.momentum is -1"]),
    (of_type("SGD", {"nesterov": True}), ["optimizer.params.nesterov is true with momentum 0", "a momentum above 0"]),
    ({"train_batch_size": 8, "bf16": {"enabled": True}, "fp16": {"enabled": True}},
     ["fp16.enabled and bf16.enabled are both true"]),
    (at("zero_optimization", {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"},
                              "offload_param": {"device": "nvme"}}), [
        "zero_optimization.offload_param.nvme_path is missing", "a folder on the disk"]),
    (at("zero_optimization", {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"},
                              "offload_param": {"device": "cpu"}}), ["offload_param.device is 'cpu'", "set both alike"]),
    (at("zero_optimization", {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"},
                              "offload_param": {"device": "nvme", "nvme_path": "/var"}}), ["nvme_path differ", "one folder for both"]),
    (at("zero_optimization", {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp", "buffer_count": 1}}),
     ["buffer_count is 1", "at least 2"]),
    (at("zero_optimization", {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp", "ratio": 0.5}}),
     ["ratio is 0.5", "'cpu' alone"]),
    (at("zero_optimization", {"stage": 2, "zero_quantized_weights": True}), ["zero_quantized_weights is true at stage 2", "set the stage to 3"]),
    (at("zero_optimization", {"stage": 3, "zero_hpz_partition_size": 2, "offload_optimizer": {"device": "cpu"}}),
     ["zero_hpz_partition_size is 2 and zero_optimization.offload_optimizer.device is 'cpu'", "leave one of them out"]),
    (at("expert_parallel", {"enabled": True, "autoep_size": 2}), ["autoep_size is 2, and 1 ranks are no whole number of groups"]),
    *((at("expert_parallel", {"enabled": False, key: value}), [f"expert_parallel.{key} is not supported: the router is the model's own"])
      for key, value in (("route_norm", False), ("route_scale", 2.0), ("top_k", 2), ("score_func", "sigmoid"))),
    (at("expert_parallel.expert_tensor_parallel_size", 2), ["expert_tensor_parallel_size is not supported yet"]),
    (at("hybrid_engine.enabled", True), ["hybrid_engine is not supported: the engine trains", "zerocourse.rl.Sampler"]),
    (at("aio.block_size", 1000), ["aio.block_size is 1000", "a multiple of 4096"]),
    (at("zero_optimization", {"stage": 0, "offload_optimizer": {"device": "cpu"}}), ["'cpu' at stage 0", "from stage 1 on"]),
    (at("zero_optimization", {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5}, "offload_param": {"device": "cpu"}}),
     ["ratio is 0.5", "without offload_param"]),
    (at("zero_optimization", {"stage": 2, "offload_optimizer": {"device": "nvme"}}),
     ["zero_optimization.offload_optimizer.nvme_path is missing"]),
    (7, ["the config is an int", "dictionary or a JSON file"]),
    (None, ["the config is None"]),
])
def test_a_mistake_is_named(given, words):
    sentence = refused(given)
    assert all(word in sentence for word in words), sentence


def test_all_mistakes_are_named_at_once():
    given = {"train_batch_size": 7, "gradient_clipping": -1, "amp": {"enabled": True}, "pipeline": {"stages": 2},
             "zero_optimization": {"stage": 4, "stag": 1}, "optimizer": {"type": "Adam", "params": {"lr": "x",
                                                                                                    "betas": [1]}},
             "scheduler": {"params": {}}, "bananas": 1}
    found = problems(given, world_size=2)
    starts = ["train_batch_size 7 is not divisible", "gradient_clipping is -1", "amp is gone",
              "pipeline is not supported yet",
              "zero_optimization.stage is 4", "zero_optimization has", "optimizer.params.lr is 'x'",
              "optimizer.params.betas is [1]",
              "scheduler.type is missing", "the config has the unknown key 'bananas'"]
    assert len(found) == len(starts) and all(any(each.startswith(start) for each in found) for start in starts), found


# --- what else DeepSpeed's files hold ---

def test_what_deepspeed_has_removed_is_gone_and_what_it_has_is_not():
    """By 0.19.8. What it has still, or has anew, is served, ignored or refused, and never called gone or unknown."""
    removed = ["zero_optimization.mics_shard_size", "zero_optimization.mics_hierarchical_params_gather",
               "zero_optimization.zeropp_loco_param", "elasticity", "sparse_attention",
               *(f"optimizer.type.{name}" for name in ("OneBitAdam", "ZeroOneAdam", "OneBitLamb"))]
    there = ["autotuning", "compression_training", "pipeline", "tensor_parallel", "expert_parallel", "hybrid_engine", "compile",
             "optimizer.type.Muon",
             *(f"zero_optimization.{key}" for key in (
                 "zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients", "zenflow",
                 "offload_optimizer.super_offload", "compute_grad_norm", "parameter_alignment", "leaf_module",
                 "save_muon_momentum_buffer_in_memory", "stage3_allgather_sequential",
                 "stage3_use_all_reduce_for_fetch_params"))]
    assert set(removed) <= GONE.keys() and set(there) <= KEYS.keys() - GONE.keys()


NOTHING = [(path, kind) for kind, paths in CHANGES_NOTHING.items() for path in paths]
GOOD = {"boolean": True, "integer": 7, "number": 0.5, "string": "WARN", "object": {"x": 1}}


def test_keys_that_change_nothing_are_accepted_with_one_warning():
    given = {"train_batch_size": 8, "steps_per_print": 10, "wall_clock_breakdown": False, "bf16": {"enabled": False},
             "zero_optimization": {"stage": 2, "contiguous_gradients": True, "reduce_scatter": True,
                                   "allgather_partitions": True, "allgather_bucket_size": 5e8,
                                   "round_robin_gradients": "auto", "stage3_max_live_parameters": 1e9}}
    with pytest.warns(UserWarning) as caught:
        config = Config.load(given, 1)
    assert len(caught) == 1 and str(caught[0].message) == (
        "these keys of the config change nothing here and are ignored: steps_per_print, wall_clock_breakdown, "
        "zero_optimization.contiguous_gradients, zero_optimization.reduce_scatter, "
        "zero_optimization.allgather_partitions, zero_optimization.allgather_bucket_size, "
        "zero_optimization.round_robin_gradients, "
        "zero_optimization.stage3_max_live_parameters")
    assert config == load(at("zero_optimization.stage", 2))


@pytest.mark.parametrize("path, kind", NOTHING)
def test_each_of_them(path, kind):
    base = of_type("Adam") if path.startswith("optimizer") else {"train_batch_size": 8}
    for value in (ONLY.get(path, GOOD[kind]), "auto", None):
        if not (kind == "object" and value == "auto"):
            with pytest.warns(UserWarning, match=f"ignored: {path}$"):
                config = Config.load(at(path, value, base), 1)
            assert config == load(base) or path.startswith("activation_checkpointing")


@pytest.mark.parametrize("path", [path for table in (NOT_YET, GONE, NEVER) for path in table
                                  if ".type." not in path and not path.startswith("optimizer")])
def test_what_is_not_supported_is_refused_by_name_unless_it_is_off(path):
    for wanted in ({"enabled": True}, {"device": "cpu"}, {"type": "Adam"}, True, 4, 0):
        assert refused(at(path, wanted)) == f"{path} is {KEYS[path].group.value}: {KEYS[path].does}"
    for off in ({"enabled": False, "loss_scale": 0}, {"device": "none"}, {}, None, *[False] * (path not in FALSE_IS_A_CHOICE)):
        assert load(at(path, off)) == load({"train_batch_size": 8})


def test_parts_that_are_off_may_stay():
    whole = {"fp16": {"enabled": False, "loss_scale": 0, "initial_scale_power": 16}, "communication_data_type": None,
             "zero_optimization": {"offload_optimizer": {"device": "none"}, "offload_param": None,
                                   "zero_hpz_partition_size": 1,
                                   "mics_shard_size": -1}, "tensor_parallel": {"autotp_size": 1}, "data_types": {"grad_accum_dtype": None},
                                   "optimizer": None,
             "scheduler": None, "activation_checkpointing": {"enabled": False}, "bf16": False,
             "gradient_allreduce_op": "mean"}
    config = load({"train_batch_size": 8} | whole)
    assert config.activation_checkpointing.enabled is False
    assert config.as_dict() | {"activation_checkpointing": None} == load({"train_batch_size": 8}).as_dict()


def test_the_commonest_keys_of_public_configs_are_known():
    """Those that occur in one of ten public files and more: none of them may be called unknown."""
    common = ["train_batch_size", "gradient_clipping", "train_micro_batch_size_per_gpu", "fp16", "steps_per_print",
              "wall_clock_breakdown", "optimizer", "gradient_accumulation_steps", "prescale_gradients", "bf16",
              "scheduler",
              *(f"zero_optimization.{key}" for key in (
                  "stage", "overlap_comm", "reduce_bucket_size", "contiguous_gradients",
                  "stage3_param_persistence_threshold",
                  "reduce_scatter", "allgather_bucket_size", "stage3_prefetch_bucket_size"))]
    assert set(common) <= set(KEYS)


def test_every_key_that_is_read_has_its_sentence():
    read = {path for path, _ in keys_by_line(json.dumps(load({"train_batch_size": 8}).as_dict()))}
    read |= {f"{section}.{key}" for section in ("optimizer", "scheduler") for key in ("type", "params")}
    read |= {f"{'optimizer' if name in OPTIMIZERS else 'scheduler'}.params.{key}" for name,
             keys in OF_TYPE.items() for key in keys}
    assert read <= set(WORKS) and {path for path in WORKS if path not in read} == {
        path for path in MUST if path.startswith("activation_checkpointing")}
    assert all(each.does and not each.does.endswith(".") for each in KEYS.values())


# --- forms that upstream takes, too ---

def with_warnings(given: dict) -> tuple[Config, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return Config.load(given, 1), [str(each.message) for each in caught]


@pytest.mark.parametrize("old, now, said", [
    ({"zero_optimization": True}, {"zero_optimization": {"stage": 1}}, 'zero_optimization is true, an old form: it means {"stage": 1}'),
    (*({"zero_optimization": {"stage": 2, **offload}} for offload in ({"cpu_offload": True}, {"offload_optimizer": {"device": "cpu"}})),
     'zero_optimization.cpu_offload is an old form: it means zero_optimization.offload_optimizer: {"device": "cpu"}'),
    ({"zero_optimization": {"stage": 2, "cpu_offload": 0, "cpu_offload_param": False}}, {"zero_optimization": {"stage": 2}}, None),
    ({"bfloat16": {"enabled": True}}, {"bf16": {"enabled": True}}, "bfloat16 is an old form: it means bf16"),
    ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, {"zero_optimization": {"stage": 2}},
     "zero_optimization.offload_param changes nothing below stage 3, where every rank has all parameters"),
    (*({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/d"}, **more}} for more in (
        {"offload_optimizer": {"device": "none"}}, {"offload_optimizer": {"device": "nvme", "nvme_path": "/d"}})),
     "zero_optimization.offload_param is there without offload_optimizer: what optimizer states there are lie with their parameters, on 'nvme'"),
    ({"_comment": 1, "//": [2], "#x": {}, "comment": "a", "$schema": "s", "bf16": {"_why": "not", "enabled": False}},
     {"bf16": {"enabled": False}}, None),
    ({"gradient_allreduce_op": "Mean", "checkpoint": {"tag_validation": "WARN"}}, {"checkpoint": {"tag_validation": "Warn"}}, None),
    (of_type("AdamW", {"adam_w_mode": True}), of_type("AdamW"), None),
    ({"compression_training": {"weight_quantization": {"shared_parameters": {"enabled": False}, "different_groups": {"a": {"params": {}}}}}}, {},
     None),
])
def test_other_forms_mean_what_they_mean_upstream(old, now, said):
    config, warned = with_warnings({"train_batch_size": 8} | old)
    assert config == load({"train_batch_size": 8} | now) and warned == ([said] if said else [])
    if old != {"zero_optimization": True} and not {"gradient_allreduce_op", "compression_training"} & old.keys():  # which editors underline
        SCHEMA.validate({"train_batch_size": 8} | old)


def test_zero_and_one_are_false_and_true_where_nothing_changes():
    config, warned = with_warnings({"train_batch_size": 8, "zero_allow_untested_optimizer": 1})
    assert config == load({"train_batch_size": 8}) and "ignored: zero_allow_untested_optimizer" in warned[0]


# --- "auto" ---

class TrainingArguments:
    """As Hugging Face's, as far as a config looks at them."""

    per_device_train_batch_size, gradient_accumulation_steps, max_grad_norm, bf16, fp16 = 4, 2, 0.5, True, False
    learning_rate, adam_beta1, adam_beta2, adam_epsilon, weight_decay = 1e-4, 0.8, 0.98, 1e-7, 0.1
    warmup_steps, max_steps = 0.1, 50  # a share of the steps


AUTOS = {  # Hugging Face's own example
    "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto", "loss_scale": 0},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_min_lr": "auto",
                                                      "warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "overlap_comm": "auto"},
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto"}


def test_auto_comes_from_the_arguments():
    config = load(AUTOS, 2, known_values(TrainingArguments()))
    sizes = config.train_batch_size, config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps
    assert sizes == (16, 4, 2)
    assert (config.gradient_clipping, config.bf16.enabled, config.fp16.enabled) == (0.5, True, False)
    assert config.optimizer.params.model_dump() == {"lr": 1e-4, "betas": (0.8, 0.98), "eps": 1e-7, "weight_decay": 0.1,
                                                    "adam_w_mode": True}
    assert config.scheduler.params.model_dump() == {"total_num_steps": 50, "warmup_min_lr": 0.0, "warmup_max_lr": 1e-4,
                                                    "warmup_num_steps": 5, "warmup_type": "log"}
    assert config.zero_optimization.reduce_bucket_size == 500_000_000 and config.zero_optimization.overlap_comm is None


def test_auto_comes_from_the_optimizer_and_what_nothing_says_is_refused_by_name():
    given = at("train_batch_size", 8, AUTOS)
    known = known_values(None, {"lr": 0.25, "betas": (0.5, 0.75), "momentum": 0.9})
    rest = ["bf16.enabled", "fp16.enabled", "gradient_clipping", "optimizer.params.eps",
            "optimizer.params.weight_decay",
            "scheduler.params.total_num_steps", "scheduler.params.warmup_num_steps"]
    found = problems(given, 1, known)
    assert sorted(found) == [f"{path} is 'auto', and neither initialize's args nor its optimizer says what it is: "
                             "write its value" for path in rest]
    schedule = load(at("scheduler", {"type": "WarmupLR", "params": {"warmup_max_lr": "auto"}}, of_type("SGD",
                                                                                                       {"lr": 0.5})))
    assert schedule.scheduler.params.warmup_max_lr == 0.5, "the config's own optimizer says it, too"


# --- files ---

def written(path, text: str | bytes):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_file_as_path_and_as_name(tmp_path):
    path = written(tmp_path / "ds_config.json", '{"train_batch_size": 8, "zero_optimization": {"stage": 1}}')
    assert load(path, 2) == load(str(path), 2) == load({"train_batch_size": 8, "zero_optimization": {"stage": 1}}, 2)
    assert load(written(tmp_path / "from_windows.json", b'\xef\xbb\xbf{"train_batch_size": 8}')).train_batch_size == 8


@pytest.mark.parametrize("text, words", [
    ('{"train_batch_size": 8,\n "gradient_clipping": }', ["line 2, column 23"]),
    ('{\n"train_batch_size": 8\n\n"bf16": {}}', ["line 4, column 1"]),
    ('{"train_batch_size": 8,\n}', ["not JSON: line"]),
    ('// a comment\n{"train_batch_size": 8}', ["line 1, column 1"]),
    ("", ["line 1, column 1"]),
    ("[8]", ["a list", "JSON object"]),
    ("8", ["holds a number", "JSON object"]),
    ("null", ["holds null", "JSON object"]),
    ("[" * 100_000, ["inside one another"]),
    ('{"train_batch_size": ' + "9" * 5000 + "}", ["not JSON"]),
    ('{"train_batch_size": 8, "train_batch_size": 9}', ["train_batch_size is given 2 times, on line 1: keep one of"]),
    ('{"train_batch_size": 8, "zero_optimization": {"stage": 1,\n "stage": 2,\n"stage": 3}}', [
        "zero_optimization.stage is given 3 times, on lines 1, 2 and 3: keep one of them"]),
    ('{"train_batch_size": 8, "gradient_clipping": NaN}', ["gradient_clipping is nan", "line 1)"]),
    ('{"train_batch_size": 8,\n "zero_optimization": {\n  "stage":\n 7}}', ["zero_optimization.stage is 7", "line 3)"]),
    ('{"train_batch_size": 8,\n "scheduler": {"type": "WarmupDecayLR"}}',
     ["scheduler.params.total_num_steps is missing", "line 2)"]),
    ("{}", ["at least one of them is needed"]),
    (b"\xff\xfe{\x00", ["UTF-8"]),
])
def test_a_bad_file(tmp_path, text, words):
    path = written(tmp_path / "ds_config.json", text)
    sentence = refused(path)
    assert all(word in sentence for word in words), sentence
    assert str(path) in sentence


def test_problems_stand_in_the_order_of_the_file(tmp_path):
    path = written(tmp_path / "c.json", '{"banana": 1,\n"gradient_clipping": -1,\n"train_batch_size": 8,\n'
                                        '"zero_optimization": {"stage": 9,\n"stage": 9}, "amp": true}')
    starts = ["the config has the unknown key 'banana'", "gradient_clipping is -1",
              "zero_optimization.stage is given 2 times",
              "zero_optimization.stage is 9", "amp is gone upstream"]
    found = problems(path)
    assert len(found) == 5 and all(each.startswith(start) for each, start in zip(found, starts)), found
    assert [each[each.rindex("line "):-1] for each in found] == ["line 1", "line 2", "line 5", "line 5", "line 5"]


def test_a_file_that_is_none(tmp_path):
    none = tmp_path / "none.json"
    assert refused(none) == f"the config {none} cannot be read: No such file or directory"
    assert refused(str(tmp_path)) == f"the config {tmp_path} cannot be read: Is a directory"
    assert "cannot be read" in refused("a\0b")


@pytest.mark.parametrize("text, found", [
    ('{"a": {"b": 1,\n\n"c": [{"d": "e: {"}]},\n"f\\"": 2}', [("a", 1), ("a.b", 1), ("a.c", 3), ("a.c.0.d", 3), ('f"',
                                                                                                                4)]),
    ("{}", []),
    ('{"a\\nb": {"x": {}}, "y": [[1], ["z"]]}', [("a\nb", 1), ("a\nb.x", 1), ("y", 1)]),
    ('[{"a": [1, {"b": 1}]}, {"a": 2}]', [("0.a", 1), ("0.a.1.b", 1), ("1.a", 1)]),
])
def test_where_keys_stand(text, found):
    assert keys_by_line(text) == found


# --- the JSON schema ---

SCHEMA = jsonschema.Draft202012Validator(json_schema())


def test_the_schema_is_one_and_explains_every_key():
    jsonschema.Draft202012Validator.check_schema(json_schema())
    text = json.dumps(json_schema(), ensure_ascii=False)
    assert all(json.dumps(each.does, ensure_ascii=False)[1:-1] in text for path, each in KEYS.items()
               if ".type." not in path), "each sentence is there"
    assert "$ref" not in text and len(text) < 200_000


def test_the_schema_accepts_and_refuses_what_load_does():
    for config in [load({"train_batch_size": 8}).as_dict(), AUTOS, *map(of_type, OF_TYPE)]:
        SCHEMA.validate(config)
    for path, kind in NOTHING:
        SCHEMA.validate(at(path, ONLY.get(path, GOOD[kind]), of_type("Adam")))
    for path in NOT_YET | GONE | NEVER:
        if ".type." not in path:
            base = of_type("Adam") if path.startswith("optimizer") else None
            assert not SCHEMA.is_valid(at(path, {"on": 1}, base)), path
            SCHEMA.validate(at(path, {"enabled": False}, base))
    assert not any(SCHEMA.is_valid(at(path, False)) for path in FALSE_IS_A_CHOICE)
    for base, path, value, must in mistakes():
        if value == value and value not in (float("inf"), float("-inf")):  # JSON has neither NaN nor infinity
            assert not SCHEMA.is_valid(at(path, value, base)), (path, value, must)
    assert not SCHEMA.is_valid(at("zero_optimization.stag", 1)) and not SCHEMA.is_valid(of_type("SGD", {"eps": 1}))


# --- anything at all ---

NAMES = sorted({part for path in KEYS for part in path.split(".")} | {"banana", "", "bf16.enabled", "a.b"})
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-3, 10**20), st.floats(), st.text(max_size=3), st.just("auto"),
                   st.sampled_from([*OF_TYPE, "a.b", "Muon", "cpu", "nvme", "none", "bf16", "linear"]))
VALUES = st.recursive(LEAVES, lambda inside: st.lists(inside, max_size=3) | st.dictionaries(
    st.sampled_from(NAMES), inside, max_size=6), max_leaves=12)


@hypothesis_settings(max_examples=200, deadline=None)
@generated(st.dictionaries(
    st.sampled_from([path for path in KEYS if ".type." not in path] + ["banana", "zero_optimization."]), VALUES, max_size=8),
           st.integers(1, 3))
def test_whatever_a_config_holds_it_is_resolved_or_refused_in_sentences(places, world_size):
    config: dict = {"train_batch_size": 8}
    for path, value in places.items():
        *sections, last = path.split(".")
        inside = config
        for key in sections:
            if not isinstance(inside.get(key), dict):
                inside[key] = {}
            inside = inside[key]
        inside[last] = value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            resolved = Config.load(config, world_size)
        except BadInput as error:
            sentences = str(error).split("\n")
            assert len(set(sentences)) == len(sentences), "none is said twice"
            assert all(": " in each or ";" in each or "divisible" in each for each in sentences), sentences
        else:
            assert Config.load(json.loads(json.dumps(resolved.as_dict())), world_size) == resolved
