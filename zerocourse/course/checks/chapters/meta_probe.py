"""The models of chapter 02's checks, and what a rank sees when an answer works on them."""

import builtins
import zlib
from collections.abc import Callable
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ....measure.ledger import Ledger
from ....init.deferred import Materializer

WIDTH = 64  # of the model of slices: large beside all that a function needs for itself


# Small models -------------------------------------------------------------------------------------------------------

class Tables(nn.Module):
    """An embedding, a layer, a head of the embedding's shape, which may be tied."""

    def __init__(self, tied: bool = True):
        super().__init__()
        self.embed, self.norm = nn.Embedding(10, 4), nn.LayerNorm(4)
        self.head = nn.Linear(4, 10, bias=False)
        if tied:
            self.head.weight = self.embed.weight


class Buffered(nn.Module):
    """Three buffers, of 4, 8 and 1 bytes an element; the second is in no checkpoint."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))
        self.layer = nn.Linear(3, 2)
        self.register_buffer("positions", torch.arange(7), persistent=False)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.bool))


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        self.first.requires_grad_(False)


class ThreeNames(nn.Module):
    """One tensor under three names, another under two; the names are not in alphabetical order."""

    def __init__(self):
        super().__init__()
        self.words, self.target = nn.Embedding(10, 4), nn.Embedding(10, 4)
        self.mix, self.copy = nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 10)
        self.copy.weight = self.mix.weight
        self.target.weight = self.head.weight = self.words.weight


class Twice(nn.Module):
    """One module registered in two places."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.other = nn.Linear(4, 4)
        self.again = self.first


class Both(nn.Module):
    """Real and planned parts: `loaded` is real whatever happens."""

    def __init__(self):
        super().__init__()
        self.planned, self.loaded = nn.Linear(3, 5), nn.Linear(2, 3)


def planned(make: Callable[[], nn.Module], buffers: bool = False) -> nn.Module:
    """The model of `make` as `deferred_init()` leaves it: parameters on the meta device, ties kept, buffers real.

    Made real first, since the first random numbers on the meta device import much of torch, in each process anew.
    buffers: these on the meta device too, as under `torch.device("meta")`.
    """
    model, twins = make(), {}
    for module in model.modules():
        for key, param in module._parameters.items():
            if param is not None and id(param) not in twins:
                meta = nn.Parameter(torch.empty_like(param, device="meta"), param.requires_grad)
                twins[id(param)] = param, meta  # the first is kept, so that no other gets its id
            module._parameters[key] = None if param is None else twins[id(param)][1]
        for key, buffer in module._buffers.items() if buffers else ():
            module._buffers[key] = buffer.to("meta")
    return model


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    """The model of `make`, all of it on the meta device."""
    return planned(make, buffers=True)


def half_planned() -> nn.Module:
    model = planned(Both)
    model.loaded = nn.Linear(2, 3)
    return model


def of_zeros() -> nn.Module:
    """Real, untied, and full of the same value."""
    model = Tables(tied=False)
    for param in model.parameters():
        param.data.zero_()
    return model


COUNTED = {
    "plain": lambda: planned(lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))),
    "bfloat16": lambda: planned(lambda: nn.Sequential(nn.Linear(3, 4, dtype=torch.bfloat16), nn.Linear(4, 2))),
    "tied": lambda: planned(Tables),
    "frozen": lambda: planned(Frozen),
    "buffers": lambda: planned(Buffered),
    "half": half_planned,
    "meta": lambda: on_meta(Buffered),
}
UNTIED = {"random": lambda: Tables(tied=False), "zeros": of_zeros}  # real
TIED = {
    "none": lambda: planned(lambda: Tables(tied=False)),
    "two": lambda: planned(Tables),
    "three": lambda: planned(ThreeNames),
    "module": lambda: planned(Twice),
    "real": Tables,
}
LOST = {  # model, and the names of the checkpoint's tensors
    "full": (lambda: on_meta(lambda: Tables(tied=False)), ["embed.weight", "norm.weight", "norm.bias", "head.weight"]),
    "buffers": (lambda: on_meta(Buffered), ["mean", "layer.weight", "layer.bias", "seen"]),
    "short": (lambda: on_meta(Buffered), ["mean", "layer.weight"]),
    "real": (lambda: planned(Buffered), ["layer.weight", "layer.bias"]),
    "passed over": (lambda: on_meta(Buffered), ["mean", "layer.weight", "layer.bias", "positions", "seen"]),
    "tied": (lambda: on_meta(Tables), ["embed.weight", "norm.weight", "norm.bias"]),
}


def count(answer: Callable) -> dict[str, object]:
    """What the answer says of each model that is counted."""
    return {name: answer(make()) for name, make in COUNTED.items()}


def tie(answer: Callable, models: str) -> dict[str, object]:
    """What the answer says of each model that has ties ("TIED"), or only seems to ("UNTIED")."""
    return {name: answer(make()) for name, make in globals()[models].items()}


def lose(answer: Callable) -> dict[str, tuple]:
    """(what the answer says, whether the model is as it was) for each model and checkpoint."""
    found = {}
    for name, (make, names) in LOST.items():
        model = make()
        tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
        shapes = {key: tensor.shape for key, tensor in tensors}
        said = answer(model, {key: torch.ones(shapes[key]) for key in names})
        now = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
        found[name] = said, all(a is b for (_, a), (_, b) in zip(tensors, now, strict=True))
    return found


# Values from a name --------------------------------------------------------------------------------------------------

NAMES = ("h.12.attn.weight", "h.21.attn.weight", "h.34.attn.weight", "h.3.c_attn.weight", "wte.weight",
         "h.12.c_proj.bias")  # the same letters, ends, or lengths
SHAPE = (40, 50)


class Salted(str):
    """A name whose hash is that of another process: Python salts the hash of text anew in each."""

    def __hash__(self) -> int:
        return zlib.crc32(b"salt" + self.encode())


@contextmanager
def another_process():
    """Inside, `hash` gives what it may give in another process."""
    own = builtins.hash
    builtins.hash = lambda value: own(Salted(repr(value)))
    try:
        yield
    finally:
        builtins.hash = own


def draw(answer: Callable, rank: int) -> dict:
    """What draws with names and seeds give on this rank."""
    torch.manual_seed(100 + rank)
    torch.rand(rank + 1)  # ranks have drawn differently often before
    name = NAMES[0]
    before = torch.get_rng_state()
    found = {"first": answer(name, SHAPE, 7), "kept": bool(torch.equal(before, torch.get_rng_state()))}
    found["names"] = {other: answer(other, SHAPE, 7) for other in NAMES}
    found["seeds"] = {seed: answer(name, SHAPE, seed) for seed in (0, 1, 2, 7)}
    found["again"] = answer(name, SHAPE, 7)
    found["small"] = answer("ln_f.bias", (3,), 7)
    with another_process():
        found["salted"] = answer(Salted(name), SHAPE, 7)
    return found


def draw_here(answer: Callable) -> dict:
    return draw(answer, torch.distributed.get_rank() if torch.distributed.is_initialized() else 0)


# Slices of a model ---------------------------------------------------------------------------------------------------

class Gain(nn.Module):
    """Two small parameters, one of another dtype, and a buffer that only `__init__` can fill."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.empty(())), nn.Parameter(torch.empty(5, dtype=torch.bfloat16))
        self.register_buffer("table", torch.arange(6.0) ** 2, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, 1.5)
        nn.init.normal_(self.shift)


class Stack(nn.Module):
    """Layers of one size, ties, small parameters, and buffers that only `__init__` can fill."""

    def __init__(self, layers: int = 6, words: int = WIDTH + 1):
        super().__init__()
        self.embed = nn.Embedding(words, WIDTH)
        self.gain = Gain()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, words, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("positions", torch.arange(WIDTH) * 3, persistent=False)


def whole_values(seed: int, tied_again: bool = False) -> dict[str, Tensor]:
    """All parameters of a Stack, by name. tied_again: the head has drawn the tied tensor once more."""
    model, names = planned(Stack), {}
    materializer = Materializer(model, seed)
    for name in materializer.modules:
        names |= {key: value.detach().clone() for key, value in materializer.module(name).items()}
    if tied_again:
        with torch.random.fork_rng(devices=[]):
            head = nn.Linear(WIDTH, WIDTH + 1, bias=False)
            torch.manual_seed(zlib.crc32(f"{seed}:head".encode()))
            head.reset_parameters()
        names["embed.weight"] = head.weight.detach()
    return names


def first_layer(answer: Callable, seed: int = 7) -> list[Tensor]:
    """The first layer's weight: as ever, with torch's generator in another state, behind a larger embedding."""
    found = []
    for state, words in ((100, WIDTH + 1), (101, WIDTH + 1), (100, WIDTH + 2)):
        model = planned(lambda words=words: Stack(words=words))
        torch.manual_seed(state)
        found.append(answer(model, 0, 1, seed)["layers.0.weight"])
    return found


def storage_bytes(tensors) -> int:
    """Bytes of the memory under tensors; memory that several share counts once."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def cut(answer: Callable, rank: int, world_size: int, seed: int = 7) -> dict:
    """The answer's slices of a Stack for one rank, what it held meanwhile, and how it left the model."""
    model = planned(Stack)
    params = dict(model.named_parameters())
    buffers = {key: buffer.clone() for key, buffer in model.named_buffers()}
    torch.manual_seed(100 + rank)
    before = torch.get_rng_state()
    torch.set_deterministic_debug_mode("error")  # memory without values is then full of NaN
    try:
        with Ledger() as ledger:
            slices = answer(model, rank, world_size, seed)
            peak = ledger.peak
    finally:
        torch.set_deterministic_debug_mode("default")
    tensors = list(slices.values()) if isinstance(slices, dict) else []
    if not all(isinstance(tensor, Tensor) for tensor in tensors):
        tensors = []
    now = dict(model.named_parameters())
    wrong_buffers = [key for key, buffer in model.named_buffers() if not torch.equal(buffer, buffers[key])]
    return {"slices": slices, "held": storage_bytes(tensors), "peak": peak,
            "real": [key for key, param in now.items() if not param.is_meta],
            "others": [key for key, param in params.items() if now.get(key) is not param],
            "tied": model.head.weight is model.embed.weight, "buffers": wrong_buffers,
            "kept": bool(torch.equal(before, torch.get_rng_state()))}


def cut_here(answer: Callable) -> dict:
    """On a rank of a world."""
    return cut(answer, torch.distributed.get_rank(), torch.distributed.get_world_size())


def cut_alone(answer: Callable) -> list[dict]:
    """One process that plays the ranks of worlds of 1 and 2, one after the other."""
    return [cut(answer, 0, 1), cut(answer, 0, 2), cut(answer, 1, 2)]
