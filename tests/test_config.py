"""ds_config: what it resolves to, and that every mistake is named in one sentence."""

import copy
import json
import warnings

import pytest

from zerocourse.engine.config import CHANGES_NOTHING, NEVER, NOT_YET, Config, ZeroConfig
from zerocourse.errors import BadInput


def load(config, world_size: int = 1) -> Config:
    """Load it with every warning an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return Config.load(config, world_size)


def refused(config, world_size: int = 1) -> str:
    with pytest.raises(BadInput) as caught:
        load(config, world_size)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def batch(train=None, micro=None, steps=None) -> dict:
    names = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
    return {name: value for name, value in zip(names, (train, micro, steps), strict=True) if value is not None}


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
])
def test_any_two_sizes_give_the_third(given, world_size, resolved):
    config = load(given, world_size)
    found = config.train_batch_size, config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps
    assert found == resolved and {type(size) for size in found} == {int}


@pytest.mark.parametrize("given, world_size, words", [
    ({}, 2, ["train_batch_size", "train_micro_batch_size_per_gpu", "needed"]),
    (batch(steps=4), 2, ["neither", "train_batch_size", "train_micro_batch_size_per_gpu"]),
    (batch(train=8, micro=3), 1, ["8 is not divisible by 3 × 1", "train_micro_batch_size_per_gpu × ranks"]),
    (batch(train=8, steps=3), 1, ["8 is not divisible by 3 × 1", "gradient_accumulation_steps × ranks"]),
    (batch(train=9, micro=2), 3, ["9 is not divisible by 2 × 3"]),
    (batch(train=3), 4, ["3 is not divisible by 1 × 4"]),
    (batch(train=16, micro=2, steps=2), 2, ["16", "micro-batch 2 × accumulation 2 × ranks 2 = 8"]),
    (batch(train=0), 1, ["train_batch_size is 0", "at least 1"]),
    (batch(micro=-2), 1, ["train_micro_batch_size_per_gpu is -2", "at least 1"]),
    (batch(train=8, steps=0), 1, ["gradient_accumulation_steps is 0", "at least 1"]),
    (batch(train=True), 1, ["train_batch_size is True", "integer"]),
    (batch(train="8"), 1, ["train_batch_size is '8'", "integer"]),
    (batch(train="auto"), 1, ["train_batch_size is 'auto'", "integer"]),
    (batch(train=8.5), 1, ["train_batch_size is 8.5", "integer"]),
    (batch(train=float("inf")), 1, ["train_batch_size is inf", "integer"]),
    ({"train_batch_size": None}, 1, ["train_batch_size is None", "integer"]),
])
def test_sizes_that_do_not_fit(given, world_size, words):
    sentence = refused(given, world_size)
    assert all(word in sentence for word in words), sentence


# --- keys ---

def zero(**keys) -> dict:
    return {"train_batch_size": 8, "zero_optimization": keys}


def test_defaults():
    assert load({"train_batch_size": 8}).as_dict() == {
        "train_batch_size": 8, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0, "bf16": {"enabled": False},
        "zero_optimization": {"stage": 0, "reduce_bucket_size": 500_000_000, "overlap_comm": None}}


def test_what_was_given():
    given = {**zero(stage=3, reduce_bucket_size=5e7, overlap_comm=False), "gradient_clipping": 0,
             "bf16": {"enabled": True}}
    before = copy.deepcopy(given)
    config = load(given)
    assert given == before, "the dictionary is the caller's"
    assert config.zero_optimization == ZeroConfig(3, 50_000_000, False) and config.bf16.enabled is True
    assert type(config.zero_optimization.reduce_bucket_size) is int, "JSON's 5e7 is a float"
    assert config.gradient_clipping == 0 and type(config.gradient_clipping) is float
    assert load(json.loads(json.dumps(config.as_dict()))) == config, "what is written can be read"


@pytest.mark.parametrize("given, words", [
    ({"train_batch_sise": 8}, ["the config", "'train_batch_sise'", "did you mean 'train_batch_size'?"]),
    ({"train_batch_size": 8, "gradient_cliping": 1}, ["'gradient_cliping'", "did you mean 'gradient_clipping'?"]),
    ({"train_batch_size": 8, "fp_16": {}}, ["'fp_16'", "did you mean 'fp16'?"]),
    ({"train_batch_size": 8, "banana": 1}, ["'banana'", "known here: train_batch_size"]),
    ({"train_batch_size": 8, 3: 1}, ["unknown key 3"]),
    (zero(stag=3), ["zero_optimization", "'stag'", "did you mean 'stage'?"]),
    (zero(overlap_com=True), ["did you mean 'overlap_comm'?"]),
    (zero(contiguous_gradient=True), ["did you mean 'contiguous_gradients'?"]),
    (zero(banana=True), ["zero_optimization", "'banana'", "known here: stage, reduce_bucket_size, overlap_comm"]),
    ({"train_batch_size": 8, "bf16": {"enable": True}}, ["bf16", "'enable'", "did you mean 'enabled'?"]),
    (zero(stage="3"), ["zero_optimization.stage is '3'", "integer from 0 to 3"]),
    (zero(stage=4), ["zero_optimization.stage is 4", "from 0 to 3"]),
    (zero(stage=-1), ["zero_optimization.stage is -1", "from 0 to 3"]),
    (zero(stage=True), ["zero_optimization.stage is True", "from 0 to 3"]),
    (zero(stage=2.5), ["zero_optimization.stage is 2.5", "integer"]),
    (zero(stage=float("nan")), ["zero_optimization.stage is nan", "integer"]),
    (zero(stage=None), ["zero_optimization.stage is None", "integer"]),
    (zero(stage="auto"), ["zero_optimization.stage is 'auto'"]),
    (zero(reduce_bucket_size=0), ["zero_optimization.reduce_bucket_size is 0", "at least 1"]),
    (zero(reduce_bucket_size=True), ["zero_optimization.reduce_bucket_size is True"]),
    (zero(overlap_comm=1), ["zero_optimization.overlap_comm is 1", "true or false"]),
    (zero(overlap_comm=0), ["zero_optimization.overlap_comm is 0", "true or false"]),
    (zero(overlap_comm="true"), ["zero_optimization.overlap_comm is 'true'", "true or false"]),
    ({"train_batch_size": 8, "zero_optimization": True}, ["zero_optimization is True", "object"]),
    ({"train_batch_size": 8, "zero_optimization": 3}, ["zero_optimization is 3", "object"]),
    ({"train_batch_size": 8, "bf16": True}, ["bf16 is True", "object"]),
    ({"train_batch_size": 8, "bf16": {"enabled": "auto"}}, ["bf16.enabled is 'auto'", "true or false"]),
    ({"train_batch_size": 8, "bf16": {"enabled": 1}}, ["bf16.enabled is 1", "true or false"]),
    ({"train_batch_size": 8, "gradient_clipping": -1}, ["gradient_clipping is -1", "0 (off) or more"]),
    ({"train_batch_size": 8, "gradient_clipping": float("nan")}, ["gradient_clipping is nan"]),
    ({"train_batch_size": 8, "gradient_clipping": float("inf")}, ["gradient_clipping is inf"]),
    ({"train_batch_size": 8, "gradient_clipping": True}, ["gradient_clipping is True", "number"]),
    ({"train_batch_size": 8, "gradient_clipping": "1.0"}, ["gradient_clipping is '1.0'", "number"]),
    ({"train_batch_size": 8, "gradient_clipping": None}, ["gradient_clipping is None", "number"]),
    (7, ["the config is a int", "dictionary or a JSON file"]),
    (None, ["NoneType"]),
])
def test_a_mistake_is_named(given, words):
    sentence = refused(given)
    assert all(word in sentence for word in words), sentence


# --- what else DeepSpeed's files hold ---

def at(section: str, key: str, value) -> dict:
    return {"train_batch_size": 8, **({section: {key: value}} if section else {key: value})}


def pairs(table: dict) -> list[tuple[str, str]]:
    return [(section, key) for section, keys in table.items() for key in keys]


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
    assert config == load(zero(stage=2))


@pytest.mark.parametrize("section, key", pairs(CHANGES_NOTHING))
def test_each_of_them(section, key):
    with pytest.warns(UserWarning, match=f"ignored: {section and section + '.'}{key}$"):
        assert Config.load(at(section, key, 1), 1) == load({"train_batch_size": 8})


@pytest.mark.parametrize("section, key", pairs(NOT_YET) + pairs(NEVER))
def test_what_is_not_supported_is_refused_by_name_unless_it_is_off(section, key):
    name, yet = f"{section}.{key}" if section else key, " yet" if key in NOT_YET[section] else ""
    for wanted in ({"enabled": True}, {"device": "cpu"}, {"type": "Adam"}, True, 4, 0):
        assert refused(at(section, key, wanted)).startswith(f"{name} is not supported{yet}: ")
    for off in ({"enabled": False, "loss_scale": 0}, {"device": "none"}, {}, False, None):
        assert load(at(section, key, off)) == load({"train_batch_size": 8})


def test_some_of_them_have_a_way_out():
    for section, key, way in (("", "optimizer", "give initialize an optimizer"), ("", "fp16", "use bf16"),
                              ("zero_optimization", "offload_param", "leave it out")):
        assert refused(at(section, key, {"enabled": True})).endswith(f"{key} is not supported yet: {way}")


def test_the_commonest_keys_of_public_configs_are_known():
    """Those that occur in one of ten public files and more: none of them may be called unknown."""
    common = {"": ["train_batch_size", "gradient_clipping", "train_micro_batch_size_per_gpu", "fp16", "steps_per_print",
                   "wall_clock_breakdown", "optimizer", "gradient_accumulation_steps", "prescale_gradients", "bf16",
                   "scheduler"],
              "zero_optimization": ["stage", "overlap_comm", "reduce_bucket_size", "contiguous_gradients",
                                    "stage3_param_persistence_threshold", "reduce_scatter", "allgather_bucket_size",
                                    "stage3_prefetch_bucket_size"]}
    for section, key in pairs(common):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                Config.load(at(section, key, "?"), 1)
            except BadInput as error:
                assert "unknown" not in str(error)


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
    ("", ["line 1, column 1"]),
    ("[8]", ["a list", "JSON object"]),
    ("8", ["a int", "JSON object"]),
    ('{"train_batch_size": 8, "train_batch_size": 9}', ["'train_batch_size' twice"]),
    ('{"train_batch_size": 8, "zero_optimization": {"stage": 1, "stage": 2}}', ["'stage' twice"]),
    ('{"train_batch_size": 8, "gradient_clipping": NaN}', ["gradient_clipping is nan"]),
    (b"\xff\xfe{\x00", ["UTF-8"]),
])
def test_a_bad_file(tmp_path, text, words):
    path = written(tmp_path / "ds_config.json", text)
    sentence = refused(path)
    assert all(word in sentence for word in words), sentence
    assert str(path) in sentence or "gradient_clipping" in sentence


def test_a_file_that_is_none(tmp_path):
    none = tmp_path / "none.json"
    assert refused(none) == f"the config {none} cannot be read: No such file or directory"
    assert refused(str(tmp_path)) == f"the config {tmp_path} cannot be read: Is a directory"
