"""Models that take no memory until a rank needs its part: built without values, then materialised module by module.

It communicates nothing. A model built under `deferred_init()` has its parameters on the meta device, where they have
a shape and a dtype but no memory. Its buffers are real, because nothing but `__init__` knows what is in a buffer. A
`Materializer` then makes real values for the parameters of one module at a time, so that a rank never holds more than
one module beyond its own shard. The values of a module depend on its name and the seed alone, so that any number of
ranks, any stage and any order give the same model.

`to_empty()` on a model from `torch.device("meta")` would not do: it gives tied weights separate memories, and it leaves
in buffers, such as the frequencies of rotary embeddings, whatever the memory held before.
"""

import threading
import traceback
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import UninitializedTensorMixin
from torch.utils.weak import WeakTensorKeyDictionary

from ..comm.torch_private import is_traceable_wrapper_subclass, make_subclass
from ..errors import BadInput
from .given_values import VALUES, GivenValues
from .initializers import InitFn, initialise, is_unset, misses_values, unset

# -- building -------------------------------------------------------------------------------------------------------


@contextmanager
def deferred_init() -> Iterator[None]:
    """Modules built inside have their parameters on the meta device. Buffers and everything else stay real.

    Each parameter keeps its class, its attributes and its ties: one object registered in two places stays one object.
    What `__init__` does to fill parameters (`reset_parameters()`, `nn.init`) costs nothing and does nothing. At most
    one parameter has memory at a time, while `__init__` creates it, and those that get values there and then, as by
    `nn.Parameter(torch.ones(4))`, keep them until the model is materialised (see `given_values`). Other threads are not affected, and deferred_init
    may be nested. Lazy modules are left as they are.

    Raises BadInput, with the module and the line, when an `__init__` reads a parameter's values.
    """
    builder, twins, given = threading.get_ident(), WeakTensorKeyDictionary(), GivenValues()

    def on_meta(module: nn.Module, name: str, param: nn.Parameter) -> nn.Parameter | None:
        if param.is_meta or threading.get_ident() != builder:
            return None
        if isinstance(param, UninitializedTensorMixin) or is_traceable_wrapper_subclass(param):
            return None
        if param not in twins:
            twins[param] = _twin(param, torch.empty_like(param, device="meta"))
            if param in given:
                setattr(twins[param], VALUES, param.detach())
        return twins[param]

    handle = register_module_parameter_registration_hook(on_meta)
    try:
        with given:
            yield
    except (RuntimeError, TypeError) as error:  # NotImplementedError is a RuntimeError
        if not misses_values(error):
            raise
        raise BadInput(f"{_where(error)} reads the values of a parameter, which has none under deferred_init(): compute "
                       "that in forward or from the config, or build this model without deferred_init()") from error
    finally:
        handle.remove()


def _twin(param: Tensor, data: Tensor) -> nn.Parameter:
    """`data` as a parameter of the class, the attributes and the requires_grad of `param`."""
    twin = make_subclass(type(param), data.detach(), param.requires_grad)
    # transformers marks what needs no initialisation any more; a twin has no values yet.
    twin.__dict__.update((key, value) for key, value in param.__dict__.items() if key != "_is_hf_initialized")
    return twin


def _where(error: Exception) -> str:
    """ "GPT.__init__ (model.py:12)": the innermost method of a module in the traceback."""
    place = "the code"
    for frame, line in traceback.walk_tb(error.__traceback__):
        owner, code = frame.f_locals.get("self"), frame.f_code
        if isinstance(owner, nn.Module) and not code.co_filename.startswith(nn.__path__[0]):
            place = f"{type(owner).__name__}.{code.co_name} ({code.co_filename.rsplit('/', 1)[-1]}:{line})"
    return place


def assert_materializable(model: nn.Module) -> None:
    """Raise BadInput for a buffer (or plain tensor) on the meta device: no initialiser can fill it."""
    for name, module in model.named_modules():
        plain = {key: value for key, value in vars(module).items() if isinstance(value, Tensor)}
        for kind, tensors in (("buffer", module._buffers), ("tensor", plain)):
            for key, tensor in tensors.items():
                if tensor is not None and tensor.is_meta:
                    raise BadInput(f"{kind} {_join(name, key)} of {type(module).__name__} is on the meta device, and "
                                   "nothing but its __init__ knows its values: build the model under deferred_init()")


# -- materialising --------------------------------------------------------------------------------------------------


class Materializer:
    """Draws values for the meta parameters of `model`, one module at a time, and leaves the model as it was.

    init_fn: `init_fn(module)` fills the parameters that `module` itself has, and is called alone. Without it, modules
        are filled as building the model would have: by `reset_parameters()`, then `_init_weights(module)`, of the
        module and of the modules that contain it (see `initializers`). All of these must draw from torch's generator.
    device: where the values end up. They are drawn on the CPU, in fp32 or wider, so that one seed gives the same model
        on every device and, up to rounding, in every precision.

    While one module is drawn, all other parameters are hidden, so that no initialiser can change what is already
    installed. Tied parameters are drawn once, under their first name in `named_parameters()`.
    """

    def __init__(self, model: nn.Module, seed: int = 0, init_fn: InitFn | None = None,
                 device: torch.device | str = "cpu"):
        self.model, self.seed, self.init_fn, self.device = model, seed, init_fn, device
        self.modules = dict(model.named_modules())
        self.params = dict(model.named_parameters())
        self._number = {name: number for number, name in enumerate(self.modules)}
        # {module: {parameter that is drawn with it: its key there}}, that module's name by parameter, and every place
        # where a parameter is used
        self._direct: dict[str, dict[str, str]] = {name: {} for name in self.modules}
        self._drawn_with: dict[str, str] = {}
        self._places: dict[str, list[tuple[nn.Module, str]]] = {name: [] for name in self.params}
        self._hidden: dict[nn.Module, dict[str, nn.Parameter]] = {}
        self._shown: dict[nn.Module, dict[str, nn.Parameter]] = {}  # by module what it had, while everything is hidden
        names = {param: name for name, param in self.params.items()}
        for module_name, module in self.modules.items():
            for key, param in module._parameters.items():
                if isinstance(param, UninitializedTensorMixin):
                    raise BadInput(f"{_join(module_name, key)} of {type(module).__name__} has no shape yet: "
                                   "run the model on one input first, or give the layer its sizes")
                if param is not None:
                    if not self._places[names[param]]:
                        self._direct[module_name][names[param]] = key
                        self._drawn_with[names[param]] = module_name
                    self._places[names[param]].append((module, key))
        twins = {param: _twin(param, torch.empty_like(param, device="meta")) for param in names}
        for module in self.modules.values():
            self._hidden[module] = {key: twins.get(param) for key, param in module._parameters.items()}

    def module(self, name: str) -> dict[str, Tensor]:
        """Values for the module's own parameters that are on the meta device, by their names in the model.

        While drawing it needs memory for all of the module's parameters in fp32. Raises BadInput with the name of a
        parameter that no initialiser filled.
        """
        module, keys, around = self.modules[name], self._direct[name], self._around(name)
        if not any(self.params[param].is_meta for param in keys):
            return {}
        # Installed ones are drawn too, so that those after them get the same random numbers.
        real = {param: _twin(self.params[param], unset(self._hidden[module][key])) for param, key in keys.items()}
        with self.hiding(), self._drawing(name, real):
            tried = initialise(around, self.init_fn)
            drawn = {param: module._parameters.get(key) for param, key in keys.items()}
        values = {}
        for param in keys:  # one after the other, so that the fp32 values of each are freed at once
            value, shape = drawn.pop(param), self.params[param]
            if shape.is_meta:
                if hasattr(shape, VALUES) and (value is None or is_unset(value)):
                    value = getattr(shape, VALUES)
                self._check(value, shape, f"{param} of {type(module).__name__}", tried)
                values[param] = value.detach().to(self.device, shape.dtype)
        return values

    def stream(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """(name, values) of the named parameters that are on the meta device, with memory for one module at a time."""
        wanted = set(names)
        for module_name in sorted({self._drawn_with[name] for name in wanted}, key=self._number.__getitem__):
            values = self.module(module_name)
            for name in [name for name in values if name in wanted]:
                yield name, values.pop(name)

    def install(self, name: str, value: Tensor) -> None:
        """Give the meta parameter `name` the memory of `value`. It stays the same object, wherever it is used.

        (`param.data = value` is refused by torch when the device changes from meta.)
        """
        lists = [module for module, _ in self._places[name] if isinstance(module, nn.RNNBase)]
        for module in lists:
            module._flat_weight_refs = []  # it has weak references to the parameter, which would forbid the swap
        param = self.params[name]
        vars(param).pop(VALUES, None)
        try:
            # .data has its own version counter: writes elsewhere in the memory of `value` are not counted.
            torch.utils.swap_tensors(param, _twin(param, value.data))
        except RuntimeError as error:
            raise BadInput(f"parameter {name} cannot get its memory while something else refers to it "
                           f"({error}): materialise before anything watches the model") from error
        for module in lists:
            hidden, module.__dict__["_parameters"] = module._parameters, self._shown.get(module, module._parameters)
            module._init_flat_weights()
            module.__dict__["_parameters"] = hidden

    @contextmanager
    def hiding(self) -> Iterator[None]:
        """Hide all parameters from the initialisers; around several modules that are drawn, once for all of them."""
        if self._shown:
            yield
            return
        try:
            for module, hidden in self._hidden.items():
                self._shown[module], module.__dict__["_parameters"] = module._parameters, dict(hidden)
            yield
        finally:
            while self._shown:
                module, params = self._shown.popitem()
                module.__dict__["_parameters"] = params

    @contextmanager
    def _drawing(self, name: str, real: dict[str, nn.Parameter]) -> Iterator[None]:
        """Let the initialisers see only the parameters in `real`, and draw from a seed that only this module has."""
        seed = zlib.crc32(f"{self.seed}:{name}".encode())  # the CPU's generator takes 32 bits
        touched = {module for key in real for module, _ in self._places[key]}
        try:
            for key, param in real.items():
                for module, local in self._places[key]:
                    module._parameters[local] = param
            real.clear()  # the caller frees values one by one
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.default_generator.manual_seed(seed)
                yield
        finally:
            for module in touched:
                module.__dict__["_parameters"] = dict(self._hidden[module])

    def _around(self, name: str) -> list[nn.Module]:
        """The module, the module that contains it, and so on up to the whole model."""
        parts = name.split(".") if name else []
        return [self.model.get_submodule(".".join(parts[:depth])) for depth in range(len(parts), -1, -1)]

    def _check(self, value: Tensor | None, param: nn.Parameter, said: str, tried: list[str]) -> None:
        by = ", ".join(tried)
        if value is None or value.shape != param.shape or value.is_meta:
            raise BadInput(f"{by} replaced {said} by something else than a tensor {tuple(param.shape)}: write in place")
        if is_unset(value):
            by = f"{by} left it unset" if by else "nothing sets it"
            right = "let init_fn set it" if self.init_fn else (
                "give its module a reset_parameters(), the model an _init_weights(module) for it, or pass init_fn")
            raise BadInput(f"parameter {said} has no values: {by}; {right}")


def materialize_model(model: nn.Module, seed: int = 0, init_fn: InitFn | None = None,
                      device: torch.device | str = "cpu") -> nn.Module:
    """Give the whole model memory and values on one device, in place, as if the model were sharded.

    Returns the model. Parameters stay the same objects, so that ties and an existing optimizer still hold.
    """
    assert_materializable(model)
    materializer = Materializer(model, seed, init_fn, device)
    with materializer.hiding():
        for name in materializer.modules:
            for key, value in materializer.module(name).items():
                materializer.install(key, value)
    return model.to(device)


def _join(*names: str) -> str:
    return ".".join(filter(None, names))
