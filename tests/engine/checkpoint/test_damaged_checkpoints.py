"""Damaged checkpoints: every bit that is read is checked, every damage is one sentence on every rank, and nothing changes."""

import json
import os
import random
import shutil
import zlib
from pathlib import Path

import pytest
import torch
from torch import nn
from worlds import Stack, adamw, rows

from zerocourse import load_checkpoint, save_checkpoint, shard, state_dict
from zerocourse.cli import main
from zerocourse.engine.checkpoint.folders.checkpoint_index import read_index
from zerocourse.errors import BadInput

FLIPS = int(os.environ.get("ZEROCOURSE_TEST_FLIPS", 20))


def trained(seed: int = 0, stage: int = 2) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model of one buffer after a step, so that there are averages."""
    torch.manual_seed(seed)
    model = Stack()
    model, optimizer = shard(model, adamw(model.parameters()), stage)
    model(rows(seed, 0, model.zero.comm.rank)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def written(folder: str, seed: int = 0) -> None:
    save_checkpoint(*trained(seed), Path(folder), extra={"seed": seed, "numbers": torch.arange(5)})


def held(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [*state_dict(model).values(), *states, torch.get_rng_state()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.fixture(scope="module")
def good(pool, tmp_path_factory) -> Path:
    """What two ranks have saved."""
    folder = tmp_path_factory.mktemp("good") / "c"
    pool(2).run(written, str(folder))
    return folder


@pytest.fixture
def copy(good, tmp_path) -> Path:
    shutil.copytree(good, tmp_path / "c")
    return tmp_path / "c"


def flip(file: Path, at: int, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1 << bit
    file.write_bytes(content)


def as_format_1(folder: Path) -> dict:
    """Let the index be one of an earlier version, and return it."""
    index = json.loads((folder / "index.json").read_text()) | {"format": 1}
    del index["crc32"]
    for where in [*index["objects"].values(), *(chunk for entry in index["tensors"].values() for chunk in entry["chunks"])]:
        del where["crc32"]
    for name, entry in index["files"].items():
        entry["crc32"] = zlib.crc32((folder / name).read_bytes())
    (folder / "index.json").write_text(json.dumps(index))
    return index


def test_any_flipped_bit_is_one_sentence_for_load_and_for_every_command(copy, tmp_path, capsys):
    (model, optimizer), whole = trained(1), load_and_hold(copy)
    before, moments, loaded = held(model, optimizer), random.Random(FLIPS), 0
    for _ in range(FLIPS):
        file = moments.choice(sorted(copy.iterdir()))
        place = moments.randrange(file.stat().st_size), moments.randrange(8)
        where = f"bit {place[1]} of byte {place[0]} of {file.name}"
        flip(file, *place)
        verified, *others = [main(["checkpoint", *words]) for words in (
            ["verify", str(copy)], ["ls", str(tmp_path)], ["convert", str(copy), str(tmp_path / "out")])]
        assert "weights_only" not in capsys.readouterr().err
        assert verified in ((0,) if file.name == ".metadata" else (1, 2)), f"{where}, which we read, unlike .metadata"
        assert {*others} <= {0, 1, 2}, where
        try:
            load_checkpoint(model, optimizer, copy)
        except BadInput as error:
            assert "is damaged" in str(error) or "has the format" in str(error)
            assert same(held(model, optimizer), before), f"{where}: something has changed"
        else:  # the bit was torch's own, or one of the random states of two ranks, of which one rank has no use
            assert same(held(model, optimizer), whole), where
            (model, optimizer), loaded = trained(1), loaded + 1
        flip(file, *place)
    assert loaded < FLIPS / 2


def refused(folder: str) -> tuple[str, bool]:
    """What this rank hears, and whether its model and optimizer are as they were."""
    model, optimizer = trained(1)
    before = held(model, optimizer)
    with pytest.raises(BadInput) as caught:
        load_checkpoint(model, optimizer, folder)
    return str(caught.value), same(held(model, optimizer), before)


def of_the_same_model(copy: Path, other: Path) -> str:
    shutil.copy(other / "__1_0.distcp", copy)
    return "is damaged, or mixed with another: __1_0.distcp has another checksum than what was written, in 'model/"


def in_a_pickle(copy: Path, other: Path) -> str:
    chunk = read_index(copy)["tensors"]["optimizer/last.weight/exp_avg"]["chunks"][-1]
    file = copy / chunk["file"]
    flip(file, file.read_bytes().index(b"_rebuild_tensor_v2", chunk["at"]) + 3, 0)
    return "__1_0.distcp has another checksum than what was written, in 'optimizer/last.weight/exp_avg'"


def of_another_index(copy: Path, other: Path) -> str:
    shutil.copy(other / "index.json", copy)
    return "has another checksum than what was written, in"


def an_edited_index(copy: Path, other: Path) -> str:
    text = (copy / "index.json").read_text()
    (copy / "index.json").write_text(text.replace('"stage": 2', '"stage": 1'))
    return "index.json is damaged: it has another checksum than what was written"


def without_averages(copy: Path, other: Path) -> str:
    """An index without checksums, which is not what the states of rank 0 speak of."""
    index = as_format_1(copy)
    index["tensors"]["optimizer/last.weight/exp_avg_sp"] = index["tensors"].pop("optimizer/last.weight/exp_avg_sq")
    (copy / "index.json").write_text(json.dumps(index))
    return "has no 'optimizer/last.weight/exp_avg_sq'"


def not_tensors(copy: Path, other: Path) -> str:
    """A whole checkpoint of an earlier version in which an object stands where the states of rank 1 should."""
    index = as_format_1(copy)
    index["objects"]["states/1"] = index["objects"]["groups"]
    (copy / "index.json").write_text(json.dumps(index))
    return "because it is damaged or has something that this version does not expect: ValueError"


@pytest.mark.parametrize("spoil", [of_the_same_model, in_a_pickle, of_another_index, an_edited_index, without_averages, not_tensors])
def test_damage_that_one_rank_meets_is_the_same_sentence_on_all(pool, copy, tmp_path, spoil):
    pool(2).run(written, str(tmp_path / "other"), 3)
    words = spoil(copy, tmp_path / "other")
    (first, as_it_was), second = pool(2).run(refused, str(copy))
    assert words in first and as_it_was and second == (first, True)


class Boom:
    def __reduce__(self):
        return os.mkdir, ("boom",)


def test_a_pickle_that_would_run_code_is_a_sentence_without_torchs_advice(copy, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    index = as_format_1(copy)
    where = index["objects"]["extra"]
    torch.save(Boom(), copy / "evil")
    where |= {"file": "evil", "at": 0, "bytes": (copy / "evil").stat().st_size}
    index["files"]["evil"] = {"bytes": where["bytes"], "crc32": zlib.crc32((copy / "evil").read_bytes())}
    (copy / "index.json").write_text(json.dumps(index))
    with pytest.raises(BadInput, match="has 'extra' in evil in a form that cannot be read without running its code"):
        load_checkpoint(*trained(1), copy)
    assert not Path("boom").exists()


def test_a_checkpoint_of_an_earlier_version_loads_and_verify_says_what_it_lacks(copy, capsys):
    fresh = load_and_hold(copy)
    as_format_1(copy)
    assert same(load_and_hold(copy), fresh)
    assert main(["checkpoint", "verify", str(copy)]) == 0
    assert "has no checksum of its own" in capsys.readouterr().out
    flip(copy / "__1_0.distcp", 5000, 0)
    with pytest.raises(BadInput, match="__1_0.distcp has another checksum than what was written"):
        load_and_hold(copy)
    assert main(["checkpoint", "verify", str(copy)]) == 1


def load_and_hold(folder: Path) -> list[torch.Tensor]:
    model, optimizer = trained(1)
    assert load_checkpoint(model, optimizer, folder)["seed"] == 0
    return held(model, optimizer)


@pytest.mark.parametrize("old, new", [
    ('exp_avg"', 'exp_avh"'), ('"files"', '"filfs"'), ('"about"', '"abouu"'), ('"crc32"', '"crc33"'), ('"bytes"', '"bytfs"'),
    ('"dtype": "float32"', '"dtype": 7'), ('"ranks": 2', '"ranks": 3'), ('"ranks": 2', '"ranks": 1e999'), ('"ranks": 2', '"ranks": 9999999999'),
    ('"size": [36]', '"size": 36'), ('"size": [36]', '"size": [3600000000000]'), ("__0_0.distcp", "../x/__0_0.distcp"),
    ('"at": ', '"at": 1'), ('"offset": [0]', '"offset": [1]'), ('"shape": [6, 6]', '"shape": [6, 7]'), ('"format": 1', '"format": 9'),
    ('"tensors": {', '"tensors": [], "x": {'), ("{", 9999 * "["), ('"format"', '"\ud800"')])
def test_an_index_without_a_checksum_in_which_something_is_wrong(copy, tmp_path, capsys, old, new):
    as_format_1(copy)
    text = (copy / "index.json").read_text()
    assert old in text
    (copy / "index.json").write_bytes(text.replace(old, new).encode(errors="surrogatepass"))
    with pytest.raises(BadInput) as caught:
        load_checkpoint(*trained(1), copy)
    assert "\n" not in str(caught.value)
    for words in (["verify", str(copy)], ["ls", str(tmp_path)], ["convert", str(copy), str(tmp_path / "out")]):
        assert main(["checkpoint", *words]) in (0, 1, 2)


def test_ls_lists_the_others_and_names_the_broken_one(copy, tmp_path, capsys):
    shutil.copytree(copy, tmp_path / "b")
    text = (copy / "index.json").read_text()
    (copy / "index.json").write_text(text.replace('"about"', '"abouu"'))
    assert main(["checkpoint", "ls", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("b ") and "parameters" in line for line in lines)
    assert any(line.startswith("c ") and "broken:" in line and "index.json is damaged" in line for line in lines)
    assert main(["checkpoint", "ls", str(tmp_path), "--json"]) == 1
    listed = json.loads(capsys.readouterr().out)
    assert list(listed["checkpoints"]) == ["b"] and list(listed["broken"]) == ["c"]
