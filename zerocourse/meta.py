"""Meta-device init: a model as a blueprint, of which a rank builds only what it owns. It communicates nothing.

Under `blueprint()` a model is built without memory for its parameters: they have shapes on the meta device. Buffers
are real, because nothing could make a lost one again, and tied parameters stay one object, because nobody copies them.
Later each module's parameters are made real for a moment, one module at a time, and a rank keeps its slices.

The seed of a module derives from its name, so that the weights do not depend on how many ranks there are, on the
stage, or on the order in which modules are made.
"""

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from .errors import BadInput


@contextmanager
def blueprint() -> Iterator[None]:
    """Inside, every parameter that a module registers moves to the meta device; it stays the same object."""
    own = nn.Module.register_parameter

    def register(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            empty = torch.empty_like(param, device="meta")
            meta = torch.Tensor._make_subclass(type(param), empty, param.requires_grad)
            meta.__dict__.update(param.__dict__)
            torch.utils.swap_tensors(param, meta)
        own(module, name, param)

    nn.Module.register_parameter = register
    try:
        yield
    finally:
        nn.Module.register_parameter = own


class Materializer:
    """Makes real values for the meta parameters of `model`, module by module.

    init_fn(module): sets the module's own parameters. Without it they are set as building the model would: by
        `module.reset_parameters()`, and then by the `_init_weights(module)` of the nearest module around that has one.
    Raises BadInput that names a buffer on the meta device.
    """

    def __init__(self, model: nn.Module, seed: int = 0, init_fn: Callable[[nn.Module], None] | None = None,
                 device: torch.device | str = "cpu"):
        self.model, self.seed, self.init_fn, self.device = model, seed, init_fn, torch.device(device)
        for name, buffer in model.named_buffers():
            if buffer.is_meta:
                raise BadInput(f"buffer {name!r} is on the meta device, and nothing can make its values again: "
                               "build the model under zerocourse.blueprint(), which keeps buffers real")

    def make_real(self, params: dict[str, nn.Parameter]) -> None:
        """Give real values to those of `params` (name in the model → parameter) that are on meta; they stay the same objects."""
        waiting = {name for name, param in params.items() if param.is_meta}
        while waiting:
            for name, value in self.materialize(min(waiting).rpartition(".")[0]).items():
                if name in waiting:
                    torch.utils.swap_tensors(params[name], nn.Parameter(value, params[name].requires_grad))
                    waiting.remove(name)

    def materialize(self, name: str) -> dict[str, torch.Tensor]:
        """The values of the parameters that the module called `name` has itself, by their names in the model.

        The module is left as it was. Raises BadInput for a parameter that nothing sets.
        """
        module = self.model.get_submodule(name)
        blank = {key: param for key, param in module._parameters.items() if param is not None and param.is_meta}
        real = {key: nn.Parameter(torch.full_like(param, float("nan"), device=self.device), param.requires_grad)
                if param.is_floating_point() else param for key, param in blank.items()}
        module._parameters.update(real)
        devices = [self.device] if self.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices), torch.no_grad():
                torch.manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
                self._initialise(module, name)
        finally:
            module._parameters.update(blank)
        for key, param in real.items():
            if param.is_meta or param.isnan().any():
                raise BadInput(f"nothing sets parameter {key!r} of {name or 'the model'} ({type(module).__name__}): give "
                               "init_fn, or the module a reset_parameters(), or the model an _init_weights(module)")
        return {f"{name}.{key}" if name else key: param.detach() for key, param in real.items()}

    def _initialise(self, module: nn.Module, name: str) -> None:
        if self.init_fn is not None:
            self.init_fn(module)
            return
        if callable(getattr(module, "reset_parameters", None)):
            module.reset_parameters()
        parts = name.split(".") if name else []
        inside_out = [".".join(parts[:length]) for length in range(len(parts), -1, -1)]
        around = [self.model.get_submodule(outer) for outer in inside_out]
        holder = next((outer for outer in around if callable(getattr(outer, "_init_weights", None))), None)
        for outer in around if holder is not None else []:  # as `apply` would: children first, then who contains them
            holder._init_weights(outer)
            if outer is holder:
                return


def materialize_model(model: nn.Module, seed: int = 0, init_fn: Callable[[nn.Module], None] | None = None,
                      device: torch.device | str = "cpu") -> nn.Module:
    """Make the whole model real, in place, with the values that any number of ranks would give it."""
    materializer = Materializer(model, seed, init_fn, device)
    for name, param in list(model.named_parameters()):
        materializer.make_real({name: param})
    return model
