"""Cutting a model into units, and units into flat buffers. It communicates nothing."""

import weakref
from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import groupby

from torch import nn

from ...errors import BadInput
from .buffer import FlatBuffer


class Unit:
    """A part of the model that is gathered, used and freed as a whole."""

    def __init__(self, name: str, module: nn.Module, buffers: list[dict[str, nn.Parameter]]):
        self.name, self.buffers = name, buffers  # the parameters of each flat buffer
        # Weak, because autograd graphs refer to units: a strong reference would close a cycle through C++, which Python's
        # garbage collector cannot see.
        self._module = weakref.ref(module)
        self.params = {key: param for buffer in buffers for key, param in buffer.items()}
        self.flats: list[FlatBuffer] = []  # in the order of the parameters in the model
        self.forward_depth = 0  # forwards of it that are running, one inside the other
        self.inner_backward = -1  # the number of the last reentrant backward (of checkpointing) that has reached it
        self.gathers: list = []  # collectives under way that bring the parameters (stage 3)
        self.holds = 0  # contexts that keep its parameters gathered, one inside the other (see `whole`)
        self.stays_with_root = False  # something else than its module uses a parameter: it stays gathered as long as the root

    @property
    def module(self) -> nn.Module:
        return self._module()

    def __repr__(self) -> str:
        return f"{self.name} ({sum(param.numel() for param in self.params.values()):,} elements)"

    @property
    def is_allocated(self) -> bool:
        """Is the memory of its parameters held, and filled or about to be?"""
        return all(flat.gathered for flat in self.flats)

    @property
    def gathered(self) -> bool:
        return self.is_allocated and not self.gathers


def has_forward(module: nn.Module) -> bool:
    """Is it called, as a ModuleList is not?"""
    return type(module).forward is not nn.Module.forward


def cut_into_units(model: nn.Module, units: Iterable[str | type] | None = None,
                   bucket_size: int | None = None) -> list[Unit]:
    """The model's units in module order, the root first. Every parameter is in exactly one.

    By default each entry of an outermost ModuleList is a unit (of a list of lists, each entry of the inner ones); `units`
    names modules or gives module classes instead.
    A parameter that several units share belongs to the root, and so does all that is in no unit.
    Raises BadInput for a name that is not a module of the model.
    """
    modules = dict(model.named_modules())
    if units is None:
        chosen: dict[str, None] = {}
        for name, module in modules.items():  # modules inside an entry come right after it
            is_entry = name and has_forward(module) and isinstance(modules.get(name.rpartition(".")[0]), nn.ModuleList)
            if is_entry and not (chosen and name.startswith(f"{next(reversed(chosen))}.")):
                chosen[name] = None
    else:
        if not isinstance(units, str | type | Iterable):
            raise BadInput(f"units is {units!r}: it must hold names or classes of modules")
        units = dict.fromkeys([units] if isinstance(units, str | type) else units)
        classes = tuple(unit for unit in units if isinstance(unit, type))
        for name in units:
            if not isinstance(name, type) and name in modules and not has_forward(modules[name]):
                raise BadInput(f"units names {name!r}, a {type(modules[name]).__name__}, which is never called: name its entries")
            if not isinstance(name, type) and name not in modules:
                near = get_close_matches(str(name), filter(None, modules), n=3, cutoff=0)
                raise BadInput(f"units names {name!r}, which is not a module of {type(model).__name__}; "
                               f"names that are: {', '.join(map(repr, near)) or 'none'}")
        chosen = dict.fromkeys(name for name, module in modules.items()
                               if name and (name in units or isinstance(module, classes) and has_forward(module)))
    home: dict[nn.Parameter, str] = {}
    unit_of: dict[str, str] = {}
    for name, module in modules.items():  # a module comes after the one that it is in
        unit_of[name] = name if name in chosen else unit_of.get(name.rpartition(".")[0], "")
        for param in module.parameters(recurse=False):
            home[param] = unit_of[name] if home.get(param, unit_of[name]) == unit_of[name] else ""
    # A run: parameters that follow one another in the model, without another unit's in between. Its gradients come together.
    runs: dict[str, list[dict[str, nn.Parameter]]] = {name: [] for name in ("", *chosen)}
    for unit, run in groupby(model.named_parameters(), key=lambda named: home[named[1]]):
        runs[unit].append(dict(run))
    rest = "root" if "root" not in chosen else "root of all"  # a module may have that name
    return [Unit(name or rest, modules[name], [each for run in of_unit for each in split_into_buffers(run, bucket_size)])
            for name, of_unit in runs.items() if of_unit or not name]


def split_into_buffers(params: dict[str, nn.Parameter], bucket_size: int | None) -> list[dict[str, nn.Parameter]]:
    """The parameters of each flat buffer: of one dtype, all trainable or all frozen, at most `bucket_size` elements.

    A parameter larger than that has a buffer of its own. Those that a norm does not count, those that a name `own_buffer`
    sets apart, and those of experts, which other ranks share, share none with others.
    """
    kinds: dict[tuple, list[dict[str, nn.Parameter]]] = {}
    size: Counter[tuple] = Counter()  # of each kind's last buffer
    for name, param in params.items():
        kind = (param.dtype, param.requires_grad, getattr(param, "counts_in_norm", True), getattr(param, "own_buffer", ""),
                hasattr(param, "expert_comm"))
        buffers = kinds.setdefault(kind, [{}])
        if buffers[-1] and bucket_size is not None and size[kind] + param.numel() > bucket_size:
            buffers.append({})
            size[kind] = 0
        buffers[-1][name] = param
        size[kind] += param.numel()
    return [buffer for buffers in kinds.values() for buffer in buffers]
