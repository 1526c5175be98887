"""The check of 2.4: numbers that follow from a name and a seed alone, on every rank and in every process."""

import zlib
from itertools import combinations
from unittest import mock

import torch
import torch.distributed as dist

from ....checks import Trial, When, exercise
from ....checks.observers.stage_runs import WatchedComm

MATERIALISING = ("zerocourse.init.deferred:materialize_model", "zerocourse.init.deferred:Materializer.module",
                 "zerocourse.init.deferred:Materializer.stream")
NAMES = ("h.12.attn.weight", "h.21.attn.weight", "h.34.attn.weight", "h.3.c_attn.weight", "wte.weight",
         "h.12.c_proj.bias")  # the same letters, ends, or lengths
JOINED = [((1, "11.weight"), (11, "1.weight")), ((1, "w.1"), (11, "w.")), ((1, "w.1"), (11, "w"))]  # seed, name
SHAPE = (40, 50)


class Salted(str):
    """A name whose hash is that of another process: Python salts the hash of text anew in each."""

    def __hash__(self) -> int:
        return zlib.crc32(b"salt" + self.encode())


def without_numbers(value):
    """A tensor's shape and dtype, as a tensor of zeros; another value as it is."""
    return torch.zeros_like(value, device="cpu") if torch.is_tensor(value) else value


def equal_pairs(drawn):
    return [pair for pair in combinations(drawn, 2) if torch.equal(*map(drawn.get, pair))]


def draws_on_a_rank(answer):
    """What draws with names and seeds give."""
    comm, name = WatchedComm(), NAMES[0]
    torch.manual_seed(100 + comm.rank)
    torch.rand(comm.rank + 1)  # ranks have drawn differently often before
    before = torch.get_rng_state()
    first, small = answer(name, SHAPE, 7), answer("ln_f.bias", (3,), 7)
    kept = torch.equal(before, torch.get_rng_state())
    device = str(getattr(first, "device", "cpu"))
    kinds = {"device": device, "kind": without_numbers(first), "small": without_numbers(small)}
    if device != "cpu" or not torch.is_tensor(first):
        return kinds
    first = first.detach()
    names = {f'"{other}"': answer(other, SHAPE, 7) for other in NAMES}
    at_0 = {other: answer(other, SHAPE, 0) for other in NAMES}
    seeds = {seed: answer(name, SHAPE, seed) for seed in (0, 1, 2, 7)}
    alike = [pair for pair in JOINED if torch.equal(*(answer(other, SHAPE, seed) for seed, other in pair))]
    again = [names[f'"{name}"'], seeds[7], answer(name, SHAPE, 7)]
    with mock.patch("builtins.hash", lambda value: Salted(repr(value)).__hash__()):  # as in another process
        salted = answer(Salted(name), SHAPE, 7)
    with mock.patch("torch.distributed.get_world_size", lambda *_: 5):
        of_five = answer(name, SHAPE, 7)
    pairs = equal_pairs(names), equal_pairs(seeds)
    said = [" and ".join(map(str, same_text[0])) if same_text else "" for same_text in pairs]
    return {**kinds, "again": all(torch.equal(first, other) for other in again), "kept": kept,
            "salted": torch.equal(first, salted), "alike": comm.all_gather_object(first.tolist())[0] == first.tolist(),
            "five": torch.equal(first, of_five), "names": pairs[0], "names at 0": equal_pairs(at_0), "seeds": pairs[1],
            "joined": alike,
            "deviation": first.std().item(), "mean": first.mean(), "tail": bool((first.abs() > 0.04).any()),
            "_names": said[0], "_seeds": said[1],
            "_joined": " and ".join(f'`draw("{other}", (40, 50), {seed})`' for seed, other in (alike or [[]])[0])}


def near(value):
    return lambda got, want: abs(got / value - 1) < 0.1


def numbers(of_text):
    """How a number comes from a name and a seed."""
    return {"number": lambda name, seed: of_text(name) + 1_000_003 * seed}


def text(choose):
    """Draws from a part of the name."""
    return {"number": lambda name, seed: crc(choose(name), seed)}


def crc(name, seed):
    return zlib.crc32(f"{seed}:{name}".encode())


def normal(shape, generator):
    return torch.randn(shape, generator=generator) * 0.02


def between(most):
    return {"values": lambda shape, generator: (2 * torch.rand(shape, generator=generator) - 1) * most}


@exercise(
    "2.4", "Numbers from a name", minutes=20, difficulty=2, replaces=MATERIALISING,
    trials=[Trial(observe=draws_on_a_rank, worlds=(1, 2, 3), close={"deviation": 0.1, "mean": 0.002})],
    mistakes={
        "not seeded anew": ({"generator": lambda number: torch.default_generator},
                            {"generator": lambda number: torch.Generator().manual_seed(torch.seed())},
                            When("again")),
        "torch's generator": {"generator": torch.manual_seed},
        "hash": {"number": lambda name, seed: hash((name, seed)) % 2**32},
        "rank": {"number": lambda name, seed: crc(name, seed + dist.get_rank())},
        "number of ranks": {"number": lambda name, seed: crc(name, seed + dist.get_world_size())},
        "never seeded": {"generator": lambda number: torch.Generator()},
        "no name": {"number": lambda name, seed: seed},
        "letters": numbers(lambda name: sum(map(ord, name))),
        "length": numbers(len),
        "end": (text(lambda name: name.split(".")[-1]), text(lambda name: name.split(".")[-2:])),
        "beginning": (text(lambda name: name.split(".")[0]), text(lambda name: name.split(".")[:2])),
        "product": {"number": lambda name, seed: zlib.crc32(name.encode()) * seed},
        "no seed": ({"number": lambda name, seed: zlib.crc32(name.encode())},
                    {"number": lambda name, seed: seed * 2**32 + zlib.crc32(name.encode())}),
        "no separator": ({"number": lambda name, seed: zlib.crc32(f"{seed}{name}".encode())},
                         {"number": lambda name, seed: zlib.crc32(f"{name}{seed}".encode())}),
        "not scaled": ({"values": lambda shape, generator: torch.randn(shape, generator=generator)},
                       When("deviation", near(1))),
        "variance": ({"values": lambda shape, generator: normal(shape, generator) * 0.02},
                     When("deviation", near(4e-4))),
        "root": ({"values": lambda shape, generator: normal(shape, generator) / 0.02**0.5},
                 When("deviation", near(0.02**0.5))),
        "torch.rand": ({"values": lambda shape, generator: torch.rand(shape, generator=generator) * 0.02},
                       When("deviation", near(0.02 / 12**0.5)), When("deviation", near(12**-0.5)),
                       When("mean", lambda got, want: got > 0.005)),
        "evenly": (between(0.02), When("deviation", near(0.02 / 3**0.5))),
        "other distribution": (between(0.02 * 3**0.5), When("tail")),
    })
def draw(name, shape, seed, *, number=crc, generator=lambda number: torch.Generator().manual_seed(number),
         values=normal):
    """Values of a parameter."""
    return values(shape, generator(number(name, seed)))
