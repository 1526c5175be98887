"""The bridge's `zero.Init`: models that are built inside have parameters without memory (see `deferred_parameters`)."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ...errors import BadInput
from ...init.deferred import deferred_init
from .deferred_parameters import DeferredParameter, numbers
from .loader import install


@contextmanager
def Init(module: nn.Module | None = None, *_, enabled: bool = True, **deepspeeds) -> Iterator[None]:
    """Parameters of models built inside take no memory. transformers builds its models inside, if the config says stage 3.

    Raises BadInput for a module that is built already.
    """
    if module is not None:
        raise BadInput(f"zero.Init got a {type(module).__name__} that is built already: give it to initialize as it is")
    if not enabled:
        yield
        return

    def on_registration(owner: nn.Module, name: str, param: nn.Parameter) -> None:
        if param is not None and param.is_meta and type(param) is nn.Parameter:
            param.__class__ = DeferredParameter
            param.number = next(numbers)

    install()
    with deferred_init():  # whose own hook comes first, and moves the parameter to the meta device
        handle = register_module_parameter_registration_hook(on_registration)
        try:
            yield
        finally:
            handle.remove()
