"""Cutting a model into units, and units into flat buffers. It communicates nothing."""

import weakref
from collections.abc import Iterable
from difflib import get_close_matches

from torch import nn

from ..errors import BadInput
from .buffer import FlatBuffer


class Unit:
    """A part of the model that is gathered, used and freed as a whole."""

    def __init__(self, name: str, module: nn.Module, runs: list[dict[str, nn.Parameter]]):
        self.name, self.runs = name, runs  # runs: parameters that are neighbours in the model
        # Weak, because graphs hold units, and a model may hold a graph: a cycle that no collector would see.
        self._module = weakref.ref(module)
        self.params = {key: param for run in runs for key, param in run.items()}
        self.flats: list[FlatBuffer] = []  # in the order of the forward
        self.computes = 0  # forwards of it that are running, one inside the other
        self.gathers: list = []  # collectives under way that bring the parameters (stage 3)
        self.used_outside = False  # something else than its module uses a parameter: it stays gathered as long as the root

    @property
    def module(self) -> nn.Module:
        return self._module()

    def __repr__(self) -> str:
        return f"{self.name} ({sum(param.numel() for param in self.params.values()):,} elements)"

    @property
    def awaits_gradients(self) -> bool:
        """Will a gradient of one of its parameters still come in this backward, on this rank?"""
        return any(flat.awaited for flat in self.flats)

    @property
    def gathering(self) -> bool:
        """Is the memory of its parameters held, and filled or about to be?"""
        return all(flat.gathered for flat in self.flats)

    @property
    def gathered(self) -> bool:
        return self.gathering and not self.gathers


def cut_into_units(model: nn.Module, units: Iterable[str | type] | None = None) -> list[Unit]:
    """The model's units in module order, the root first. Every parameter is in exactly one.

    By default each entry of an outermost ModuleList is a unit; `units` names modules or gives module classes instead.
    A parameter that several units share belongs to the root, and so does all that is in no unit.
    Raises BadInput for a name that is not a module of the model.
    """
    modules = dict(model.named_modules())
    if units is None:
        lists = [name for name, module in modules.items() if isinstance(module, nn.ModuleList)]
        outermost = [name for name in lists if not any(
            name.startswith(f"{other}." if other else "") for other in lists if other != name)]
        chosen = [f"{name}.{index}" if name else str(index) for name in outermost for index in range(len(modules[name]))]
    else:
        units = [units] if isinstance(units, str | type) else list(units)
        classes = tuple(unit for unit in units if isinstance(unit, type))
        for name in units:
            if not isinstance(name, type) and name not in modules:
                near = get_close_matches(str(name), filter(None, modules), n=3, cutoff=0)
                raise BadInput(f"units names {name!r}, which is not a module of {type(model).__name__}; "
                               f"names that are: {', '.join(map(repr, near)) or 'none'}")
        chosen = [name for name, module in modules.items() if name and (name in units or isinstance(module, classes))]
    home: dict[nn.Parameter, set[str]] = {}
    for module_name, module in modules.items():
        unit = max((name for name in chosen if module_name == name or module_name.startswith(f"{name}.")), key=len, default="")
        for param in module.parameters(recurse=False):
            home.setdefault(param, set()).add(unit)
    parts: dict[str, list[dict[str, nn.Parameter]]] = {"": []} | {name: [] for name in chosen}
    before = None
    for name, param in model.named_parameters():
        unit = next(iter(home[param])) if len(home[param]) == 1 else ""
        if unit != before:
            parts[unit].append({})
        parts[unit][-1][name], before = param, unit
    return [Unit(name or "root", modules[name], runs) for name, runs in parts.items() if runs or not name]


def split_into_buffers(params: dict[str, nn.Parameter], bucket_size: int | None) -> list[dict[str, nn.Parameter]]:
    """The parameters of each flat buffer: of one dtype, all trainable or all frozen, at most `bucket_size` elements.

    A parameter larger than that has a buffer of its own.
    """
    kinds: dict[tuple, list[dict[str, nn.Parameter]]] = {}
    for name, param in params.items():
        buffers = kinds.setdefault((param.dtype, param.requires_grad), [{}])
        size = sum(other.numel() for other in buffers[-1].values())
        if buffers[-1] and bucket_size is not None and size + param.numel() > bucket_size:
            buffers.append({})
        buffers[-1][name] = param
    return [buffer for buffers in kinds.values() for buffer in buffers]
