"""docs/compatibility.md says what the code does: its tables are the code's, and each row of them is tried."""

import re

import pytest
import torch
from torch import nn

import zerocourse
from tools.compatibility import DOCUMENT, is_in_package, tables, written
from zerocourse.comm import Comm
from zerocourse.engine.bridge import stand_in
from zerocourse.engine.bridge.deepspeed_engine import initialize
from zerocourse.engine.compatibility import ROWS, Fate, reason
from zerocourse.errors import BadInput
from zerocourse.inference import Server
from zerocourse.models.gpt2 import build_model
from zerocourse.parallel.tensor import tensor_parallel

NAMES = [row.name for row in ROWS]


def test_the_document_has_the_tables_of_the_code():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert all(f"<!-- {name} -->" in text and f"<!-- /{name} -->" in text for name in tables())
    assert text == written(text), "write it anew: python -m tools.compatibility"


def test_the_rows_are_sorted_and_each_name_has_one():
    assert NAMES == sorted(set(NAMES))
    assert all(row.why and row.instead for row in ROWS if row.fate is Fate.REFUSED)
    assert all(row.why and not row.instead for row in ROWS if row.fate is Fate.NOTHING)


def in_the_bridge(name: str) -> object:
    """What a script that imports deepspeed gets by this name, without putting the bridge in DeepSpeed's place here.

    Raises ModuleNotFoundError or AttributeError.
    """
    module = "deepspeed"
    for part in name.split(".")[1:]:
        below = f"{module}.{part}"
        if part in stand_in.MODULES[module]:
            return stand_in.MODULES[module][part]
        if below not in stand_in.MODULES:
            stand_in._attribute(module, part)
        module = below
    return module


@pytest.mark.parametrize("row", [row for row in ROWS if row.name.startswith("deepspeed.") and "(" not in row.name],
                         ids=lambda row: row.name)
def test_a_name_of_the_package_is_there_or_says_why_not(row):
    if row.fate is not Fate.REFUSED:
        in_the_bridge(row.name)
        return
    said = re.escape(f"{row.why}; {row.instead}")
    with pytest.raises(AttributeError, match=said):
        in_the_bridge(row.name)
    assert not is_in_package(row)
    if row.name.count(".") == 1:
        with pytest.raises(AttributeError, match=said):
            getattr(zerocourse, row.name.removeprefix("deepspeed."))


def engines_names() -> tuple[list[str], list[str]]:
    """(names that an engine should have and has not, names whose refusal is another than the table's)"""
    engine, *_ = initialize(model=nn.Linear(2, 2), config={"train_batch_size": torch.distributed.get_world_size(),
                                                           "optimizer": {"type": "AdamW"}})
    lacking, wrong = [], []
    for row in ROWS:
        where, _, name = row.name.partition(".")
        if where != "engine" or "(" in name:
            continue
        try:
            getattr(engine, name)
            (wrong if row.fate is Fate.REFUSED else []).append(row.name)
        except AttributeError as error:
            if row.fate is not Fate.REFUSED:
                lacking.append(row.name)
            elif f"{row.why}; {row.instead}" not in str(error):
                wrong.append(row.name)
    return lacking, wrong


def test_a_name_of_the_engine_is_there_or_says_why_not(pool):
    assert pool(2).run(engines_names) == [([], [])] * 2


CALLS = {  # by the row of an argument that is refused: a call with it, and the words of its sentence
    f"deepspeed.initialize({name}=)": (lambda name=name: zerocourse.initialize(nn.Linear(2, 2), config={}, **{name: object()}), f"{name}=")
    for name in ("mesh_param", "mpu")}


def test_each_refused_argument_is_tried():
    assert set(CALLS) == {row.name for row in ROWS if row.name.endswith("=)") and row.fate is Fate.REFUSED}


@pytest.mark.parametrize("name", CALLS)
def test_a_refused_argument_is_said(name):
    call, words = CALLS[name]
    with pytest.raises(BadInput, match=re.escape(words)):
        call()


def served(ranks: int) -> list[list[int]]:
    torch.manual_seed(0)
    model = build_model("gpt2-tiny").eval()
    server = Server(tensor_parallel(model, Comm()) if ranks > 1 else model, blocks=8)
    requests = [server.add([1, 2, first], 6) for first in (3, 4)]
    server.run()
    return [request.tokens for request in requests]


def test_a_server_is_the_way_for_init_inference_with_tensor_parallelism_too(pool):
    assert pool(2).run(served, 2) == [served(1)] * 2


def test_what_only_the_bridge_has_is_said():
    with pytest.raises(AttributeError, match="zerocourse has no 'utils', which DeepSpeed has: .* run them with `zerocourse run`"):
        zerocourse.utils
    assert reason("deepspeed.moe.layer.MoE") == reason("deepspeed.moe") and reason("deepspeed.nonsense") is None
