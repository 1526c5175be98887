"""Leaf modules, by DeepSpeed's names: a module that is gathered and freed as a whole, whatever it computes inside. They
communicate nothing.

Such a module, for example a layer of experts of which each token takes a few, becomes a unit of its own; nothing inside it is one.
They are set before `initialize`. (`zerocourse.shard` takes units= itself.)
"""

import warnings
from collections.abc import Iterable

from torch import nn

from ..errors import BadInput
from ..zero.buffers.unit import cut_into_units, has_forward
from .config import Config

LEAF = "_z3_leaf"  # DeepSpeed's own mark, which libraries look at
PARAMETER = "ds_z3_leaf_module"


def set_z3_leaf_modules(model: nn.Module, leaf_module_classes: Iterable[type | str], raise_if_not_found: bool = True) -> list[nn.Module]:
    """Make leaves of the modules of these classes (or of classes of these names). Returns them. Raises BadInput if there are none."""
    return mark(of_classes(model, leaf_module_classes, raise_if_not_found), True)


def unset_z3_leaf_modules(model: nn.Module, leaf_module_classes: Iterable[type | str], raise_if_not_found: bool = True) -> list[nn.Module]:
    """Modules of these classes are leaves no longer. Returns them. Raises BadInput if there are none."""
    return mark(of_classes(model, leaf_module_classes, raise_if_not_found), False)


def set_z3_leaf_module(model: nn.Module, flag: bool) -> None:
    """Make this module itself a leaf, or no longer."""
    mark([model], flag)


def set_z3_leaf_modules_by_name(model: nn.Module, module_names: Iterable[str], flag: bool = True,
                                raise_if_not_found: bool = True) -> tuple[list[nn.Module], list[str]]:
    """The same for modules of these names. Returns them, and the names that no module has. Raises BadInput for such a name."""
    return by_rule(model, module_names, lambda name, wanted: name == wanted, flag, raise_if_not_found)


def set_z3_leaf_modules_by_suffix(model: nn.Module, module_name_suffixes: Iterable[str], flag: bool = True,
                                  raise_if_not_found: bool = True) -> tuple[list[nn.Module], list[str]]:
    """The same for modules whose names end so."""
    return by_rule(model, module_name_suffixes, str.endswith, flag, raise_if_not_found)


def get_z3_leaf_modules(model: nn.Module) -> list[nn.Module]:
    """The leaves in this model, itself included."""
    return [module for module in model.modules() if z3_leaf_module(module)]


def z3_leaf_module(model: nn.Module) -> bool:
    """Is this module a leaf?"""
    return getattr(model, LEAF, False)


def z3_leaf_parameter(model: nn.Parameter) -> bool:
    """Is this parameter in a leaf?"""
    return getattr(model, PARAMETER, False)


def set_leaves_of(config: Config, model: nn.Module) -> None:
    """Make leaves of the modules that the config names. Warns of what it names and the model has not."""
    leaf = config.zero_optimization.leaf_module
    if config.zero_optimization.stage < 3 or leaf == type(leaf)():
        return
    found = set_z3_leaf_modules(model, leaf.classes, raise_if_not_found=False)
    for wanted, setter in ((leaf.names, set_z3_leaf_modules_by_name), (leaf.name_suffixes, set_z3_leaf_modules_by_suffix)):
        modules, missing = setter(model, wanted, raise_if_not_found=False)
        found += modules
        if missing:
            warnings.warn(f"zero_optimization.leaf_module: {type(model).__name__} has no module {' or '.join(map(repr, missing))}", stacklevel=3)
    if leaf.classes and not found:
        warnings.warn(f"zero_optimization.leaf_module: {type(model).__name__} has no module of the classes {', '.join(leaf.classes)}", stacklevel=3)


def of_classes(model: nn.Module, classes: Iterable[type | str], must: bool) -> list[nn.Module]:
    classes = [classes] if isinstance(classes, type | str) else list(classes)
    if not all(isinstance(each, type | str) for each in classes):
        raise BadInput(f"leaf_module_classes is {classes!r}: it must hold classes of modules, or their names")
    kinds, names = tuple(each for each in classes if isinstance(each, type)), {each for each in classes if isinstance(each, str)}
    found = [module for module in model.modules()
             if isinstance(module, kinds) or {type(module).__name__, f"{type(module).__module__}.{type(module).__qualname__}"} & names]
    if not found and must:
        said = ", ".join(each if isinstance(each, str) else each.__name__ for each in classes)
        raise BadInput(f"{type(model).__name__} has no module of the classes {said}: name a class that it has")
    return found


def by_rule(model: nn.Module, wanted: Iterable[str], fits, flag: bool, must: bool) -> tuple[list[nn.Module], list[str]]:
    modules, wanted = dict(model.named_modules()), [wanted] if isinstance(wanted, str) else list(wanted)
    missing = [each for each in wanted if not any(fits(name, each) for name in modules)]
    if missing and must:
        raise BadInput(f"{type(model).__name__} has no module {' or '.join(map(repr, missing))}: take names of model.named_modules()")
    return mark([module for name, module in modules.items() if any(fits(name, each) for each in wanted)], flag), missing


def mark(modules: list[nn.Module], flag: bool) -> list[nn.Module]:
    for module in modules:
        setattr(module, LEAF, flag)
        for param in module.parameters():
            setattr(param, PARAMETER, flag)
    return modules


def units_with_leaves(model: nn.Module) -> list[str] | None:
    """The units of a model that has leaves, for `shard`; None, which means the usual ones, if it has none. Raises BadInput for a leaf
    that is never called."""
    leaves = {name: module for name, module in model.named_modules() if z3_leaf_module(module) and name}
    outermost = [name for name in leaves if not any(name.startswith(f"{other}.") for other in leaves)]
    for name in outermost:
        if not has_forward(leaves[name]):
            raise BadInput(f"the leaf module {name!r} is a {type(leaves[name]).__name__}, which is never called: make the module around it "
                           "a leaf")
    usual = [unit.name for unit in cut_into_units(model)[1:] if not any(f"{unit.name}.".startswith(f"{leaf}.") for leaf in outermost)]
    return [*usual, *outermost] if outermost else None
