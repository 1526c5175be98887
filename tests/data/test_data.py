"""The data: the same everywhere, every sample once an epoch, as many batches on every rank, and an exact resume."""

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from zerocourse.data import text as data
from zerocourse.data.sampler import ShardSampler
from zerocourse.data.text import TextDataset, batches, decode, encode, load_text, read_tokens, write_tokens
from zerocourse.errors import BadInput

sizes = {"length": st.integers(1, 60), "world_size": st.integers(1, 5), "micro_batch": st.integers(1, 4),
         "shuffle": st.booleans(), "seed": st.integers(0, 99), "drop_last": st.booleans()}


def samplers(world_size, **options) -> list[ShardSampler]:
    return [ShardSampler(rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def steps(ranks) -> list[list[int]]:
    """One epoch, each step's global batch in rank order; all ranks must have as many."""
    epochs = [list(rank) for rank in ranks]
    assert len({len(epoch) for epoch in epochs}) == 1
    return [sum(step, []) for step in zip(*epochs)]


# --- the sampler ---

@settings(deadline=None)
@given(**sizes)
def test_every_sample_once_an_epoch(length, world_size, micro_batch, drop_last, **options):
    global_batch = world_size * micro_batch
    assume(not drop_last or length >= global_batch)
    ranks = samplers(world_size, length=length, micro_batch=micro_batch, drop_last=drop_last, **options)
    epoch = steps(ranks)
    assert len(epoch) == len(ranks[0])
    assert all(len(step) == global_batch for step in epoch)
    seen = sum(epoch, [])
    if drop_last:
        assert len(set(seen)) == len(seen) > length - global_batch  # disjoint, and less than one batch left over
    else:
        assert set(seen) == set(range(length))
        assert len(seen) - length < global_batch  # repeated only to fill the last batch
        order = seen[:length]
        assert len(set(order)) == length and seen == (order * len(seen))[:len(seen)]  # from the start of the order
    assert set(seen) <= set(range(length))


@settings(deadline=None)
@given(ranks=st.sampled_from([2, 3, 4, 6]), micro_batch=st.integers(1, 3), length=st.integers(1, 100),
       seed=st.integers(0, 99), drop_last=st.booleans())
def test_the_global_batch_does_not_depend_on_the_ranks(ranks, micro_batch, length, seed, drop_last):
    global_batch = ranks * micro_batch
    assume(not drop_last or length >= global_batch)
    options = {"length": length, "seed": seed, "drop_last": drop_last}
    alone = steps(samplers(1, micro_batch=global_batch, **options))
    assert steps(samplers(ranks, micro_batch=micro_batch, **options)) == alone  # the same order even
    # One rank that accumulates `ranks` micro-batches sees them too.
    accumulated = sum(steps(samplers(1, micro_batch=micro_batch, **options)), [])
    assert accumulated[:len(alone) * global_batch] == sum(alone, [])[:len(accumulated)]


@settings(deadline=None)
@given(**sizes, taken=st.integers(0, 70), others=st.sampled_from([None, 1, 2, 3]))
def test_resume_equals_uninterrupted(length, world_size, micro_batch, drop_last, taken, others, **options):
    """Stop after any number of batches, also between epochs, and continue on as many ranks or on others."""
    assume(not drop_last or length >= world_size * micro_batch)
    options |= {"length": length, "micro_batch": micro_batch, "drop_last": drop_last}

    def endless(sampler):
        while True:
            yield from sampler

    whole = [list(islice(endless(rank), taken + 20)) for rank in samplers(world_size, **options)]
    first = samplers(world_size, **options)
    for rank in first:
        list(islice(endless(rank), taken))
    states = [rank.state_dict() for rank in first]
    assert all(state == states[0] for state in states)

    resumed = samplers(world_size, **options)
    for rank, sampler in enumerate(resumed):
        sampler.load_state_dict(states[0])
        assert sampler.state_dict() == states[0]
        sampler.set_epoch(states[0]["epoch"])  # as a training loop does
        assert list(islice(endless(sampler), 20)) == whole[rank][taken:]

    if others and states[0]["seen"] < length and (not drop_last or length >= others * micro_batch):
        elastic = samplers(others, **options)
        for sampler in elastic:
            sampler.load_state_dict(states[0])
        rest = sum(steps(elastic), [])
        one = ShardSampler(rank=0, world_size=1, **{**options, "micro_batch": 1, "drop_last": True})
        one.epoch = states[0]["epoch"]
        order = sum(one, [])[states[0]["seen"]:]
        assert rest[:len(order)] == order[:len(rest)]  # the samples not yet seen, in order


def test_epochs_differ_and_repeat():
    options = {"length": 40, "world_size": 2, "micro_batch": 5}
    (first, _), (second, _) = samplers(**options), samplers(**options)
    epochs = [list(first) for _ in range(3)]  # each iteration is the next epoch
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    for epoch in (2, 0, 1):
        second.set_epoch(epoch)
        assert list(second) == epochs[epoch]
    assert list(samplers(seed=1, **options)[0]) != epochs[0]
    assert list(samplers(shuffle=False, **options)[1]) == [[*range(k + 5, k + 10)] for k in range(0, 40, 10)]


def test_epochs_of_neighbouring_seeds_differ():
    """Were the order drawn from seed + epoch, a run with the next seed would see this one's second epoch first."""
    options = {"length": 40, "world_size": 1, "micro_batch": 5}
    (one,), (next_seed,) = samplers(seed=0, **options), samplers(seed=1, **options)
    first, second = list(one), list(one)
    assert list(next_seed) not in (first, second)


def test_an_interrupted_epoch_starts_anew():
    sampler = ShardSampler(12, 0, 1, 3)
    beginning = list(islice(sampler, 2))
    assert list(islice(sampler, 2)) == beginning
    assert sampler.state_dict()["seen"] == 6
    sampler.load_state_dict(sampler.state_dict())
    assert next(iter(sampler)) not in beginning
    assert list(islice(sampler, 2)) == beginning  # a restored position holds for one iteration
    sampler.set_epoch(1)
    assert sampler.state_dict()["seen"] == 0


@pytest.mark.parametrize("args, words", [
    ((10, 2, 2, 1), "rank must be in 0..world_size-1, not 2 of 2"),
    ((10, -1, 2, 1), "not -1 of 2"),
    ((10, 0, 2, 0), "micro_batch must be at least 1"),
    ((7, 0, 2, 4), "7 samples make no batch of world_size x micro_batch = 2 x 4 = 8"),
])
def test_sampler_bad_input(args, words):
    with pytest.raises(BadInput, match=words):
        ShardSampler(*args)


def test_a_state_of_other_data_is_refused():
    state = ShardSampler(10, 0, 1, 2).state_dict()
    with pytest.raises(BadInput, match="saved with length = 10, and this one has 12"):
        ShardSampler(12, 0, 1, 2).load_state_dict(state)
    with pytest.raises(BadInput, match="saved with seed = 0, and this one has 3"):
        ShardSampler(10, 0, 1, 2, seed=3).load_state_dict(state)


# --- windows and batches ---

@settings(deadline=None)
@given(length=st.integers(2, 200), block_size=st.integers(1, 20))
def test_windows(length, block_size):
    assume(length > block_size)
    tokens = np.arange(length, dtype=np.uint8)
    windows = list(TextDataset(tokens, block_size))
    x_T, y_T = (torch.cat(side) for side in zip(*windows))
    assert x_T.dtype == y_T.dtype == torch.int64
    assert x_T.tolist() == list(range(len(x_T))) and torch.equal(y_T, x_T + 1)  # no overlap, no gap
    assert length - 1 - len(x_T) < block_size  # the rest makes no window
    assert all(len(x) == len(y) == block_size for x, y in windows)


def test_batches():
    dataset = TextDataset(np.arange(33, dtype=np.uint16) + 1000, 4)
    shards = [list(batches(dataset, sampler)) for sampler in samplers(2, length=len(dataset), micro_batch=2)]
    assert [len(shard) for shard in shards] == [2, 2]
    for x_BT, y_BT in sum(shards, []):
        assert x_BT.shape == y_BT.shape == (2, 4) and x_BT.dtype == torch.int64
        assert torch.equal(y_BT, x_BT + 1)
    assert sorted(torch.cat([x for x, _ in sum(shards, [])]).flatten().tolist()) == list(range(1000, 1032))
    before = torch.get_rng_state()
    next(batches(dataset, ShardSampler(len(dataset), 0, 1, 2)))
    assert torch.equal(torch.get_rng_state(), before)  # dropout does not depend on how the data is read


# --- sources ---

def test_the_standard_library():
    files = data.standard_library()
    assert files == sorted(files) and len(files) > 300
    parts = {part for file in files for part in file.relative_to(os.path.dirname(os.__file__)).parts}
    assert {"argparse.py", "asyncio"} <= parts
    assert not parts & {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    train, validation = load_text(block_size=64)
    total = len(train.tokens) + len(validation.tokens)
    assert total == sum(file.stat().st_size for file in files) > 5_000_000
    assert len(validation.tokens) == total // 10
    x_T, y_T = train[0]
    assert decode(x_T) == files[0].read_text()[:64] and torch.equal(encode(decode(y_T)), y_T)


def test_the_split_is_the_last_tenth(tmp_path):
    (tmp_path / "a.txt").write_bytes(bytes(range(200)))
    train, validation = load_text(tmp_path / "a.txt", block_size=8)
    assert train.tokens.tolist() == list(range(180)) and validation.tokens.tolist() == list(range(180, 200))
    assert isinstance(train.tokens, np.memmap)
    _, validation = load_text(tmp_path / "a.txt", block_size=30)
    assert len(validation) == 1  # a tenth would be too short for one window


def test_a_folder_is_read_in_order_and_as_bytes(tmp_path):
    files = {"b.bin": b"\xff\x00\r\n", "a/z.txt": b"z", "a/y.txt": "é".encode(), "c": b"",
             ".git/x": b"no", "a/.hidden": b"no"}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    assert read_tokens(tmp_path).tobytes() == "é".encode() + b"z" + b"\xff\x00\r\n"


@pytest.mark.parametrize("tokens", [b"\x00bytes\xff", np.arange(50000, dtype=np.uint16)])
def test_token_files(tmp_path, tokens):
    path = write_tokens(tokens, tmp_path / "new" / "tokens.npy")
    back = read_tokens(path)
    assert isinstance(back, np.memmap)
    assert back.tobytes() == bytes(tokens)
    assert back.dtype == (np.uint8 if isinstance(tokens, bytes) else np.uint16)
    assert os.listdir(path.parent) == ["tokens.npy"]


def test_a_token_file_is_whole_or_absent(tmp_path, monkeypatch):
    path = write_tokens(b"old", tmp_path / "tokens.npy")

    def full_disk(file, tokens):
        file.write(b"half")
        raise OSError("no space left")
    monkeypatch.setattr(np, "save", full_disk)
    with pytest.raises(OSError, match="no space"):
        write_tokens(b"new", path)
    assert read_tokens(path).tobytes() == b"old"
    assert os.listdir(tmp_path) == ["tokens.npy"]


def test_ranks_writing_one_file_do_not_collide(tmp_path):
    path = tmp_path / "tokens.npy"

    def rank(byte):
        for _ in range(100):
            write_tokens(bytes([byte]) * 100_000, path)
            assert len(set(read_tokens(path).tobytes())) == 1
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(rank, (1, 2)))
    assert os.listdir(tmp_path) == ["tokens.npy"]


def write(path, content):
    path.write_bytes(content)
    return path


def saved(path, array):
    np.save(path, array)
    return path


def fifo(path):
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("source, words", [
    (lambda tmp: tmp / "nope.txt", "There is no .*nope.txt: name a file or a folder"),
    (lambda tmp: tmp, "is empty"),
    (lambda tmp: write(tmp / "a.txt", b""), "a.txt is empty"),
    (lambda tmp: write(tmp / "a.txt", b"x" * 17), "a.txt has 17 tokens.* take 18 at block_size = 8"),
    (lambda tmp: write(tmp / "a.npy", b"text"), "a.npy cannot be read"),
    (lambda tmp: saved(tmp / "a.npy", np.zeros(99, np.float32)), "a.npy holds float32 of shape .99"),
    (lambda tmp: saved(tmp / "a.npy", np.zeros((9, 9), np.uint8)), "1-D uint8 or uint16"),
    (lambda tmp: saved(tmp / "a.npy", np.array(["object", None])), "a.npy cannot be read"),
    (lambda tmp: fifo(tmp / "pipe"), "neither a file nor a folder"),
])
def test_bad_sources(tmp_path, source, words):
    with pytest.raises(BadInput, match=words):
        load_text(source(tmp_path), block_size=8)


@pytest.mark.parametrize("module, name", [(data.Path, "read_bytes"), (os, "scandir")])
def test_what_cannot_be_read_is_named(tmp_path, monkeypatch, module, name):
    (tmp_path / "secret").mkdir()
    write(tmp_path / "secret" / "a.txt", b"text")
    real = getattr(module, name)

    def refuse(path, *args):  # root may read everything, whatever the mode
        if "secret" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args)
    monkeypatch.setattr(module, name, refuse)
    with pytest.raises(BadInput, match="cannot be read: .*Permission denied.*secret"):
        read_tokens(tmp_path)


@pytest.mark.parametrize("call, words", [
    (lambda: TextDataset(np.zeros(8, np.uint8), 8), "8 tokens make no window of block_size = 8: use at least 9"),
    (lambda: TextDataset(np.zeros(8, np.uint8), 0), "block_size = 0"),
    (lambda: load_text(block_size=0), "block_size = 0"),
    (lambda: write_tokens(np.zeros(3), "x.npy"), "not float64 of shape"),
    (lambda: write_tokens(b"abc", "x.bin"), "in x.bin"),
])
def test_bad_input(call, words):
    with pytest.raises(BadInput, match=words):
        call()
