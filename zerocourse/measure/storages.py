"""The storages that objects stand on, and notice of every resize. It communicates nothing and frees nothing."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..comm.torch_private import is_traceable_wrapper_subclass

raw_grad = Tensor.grad.__get__  # on a sharded parameter `.grad` may be a property that raises
set_data = Tensor.data.__set__  # and `.data` one that watches


def storages_of(tensor: Tensor) -> Iterable[torch.UntypedStorage]:
    """The memory that a tensor stands on: one storage, or several for a sparse tensor or a DTensor."""
    if type(tensor) is not Tensor and is_traceable_wrapper_subclass(tensor):
        inner = (getattr(tensor, attr) for attr in tensor.__tensor_flatten__()[0])
        return [storage for part in inner if isinstance(part, Tensor) for storage in storages_of(part)]
    if tensor.layout is torch.strided:
        return (tensor.untyped_storage(),)
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        return tensor._indices().untyped_storage(), tensor._values().untyped_storage()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tuple(part.untyped_storage() for part in (tensor.crow_indices(), tensor.col_indices(), tensor.values()))
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tuple(part.untyped_storage() for part in (tensor.ccol_indices(), tensor.row_indices(), tensor.values()))
    return ()  # in mkldnn's own layout the memory cannot be seen


def gpu_of(model: nn.Module | None) -> str | None:
    """The type of the GPU that a parameter of the model is on ("cuda"), or None where none is."""
    params = model.parameters() if model is not None else ()
    return next((param.device.type for param in params if param.device.type not in ("cpu", "meta")), None)


def allocator_peak(device: str | None) -> int | None:
    """Bytes that the allocator of devices of this type has had in use at most; None where the type is not a GPU's."""
    return torch.cuda.max_memory_allocated() if device == "cuda" and torch.cuda.is_initialized() else None


def params_of(optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]] if optimizer is not None else []


def states_of(optimizer: torch.optim.Optimizer | None) -> Iterator[tuple[Tensor, bool]]:
    """Each tensor of the optimizer's state, and whether it is a scalar, such as a step counter."""
    for param, state in (optimizer.state.items() if optimizer is not None else ()):
        one_element = isinstance(param, Tensor) and param.numel() == 1
        for name, value in state.items():
            for tensor in all_tensors(value):
                yield tensor, tensor.numel() == 1 and (name == "step" or not one_element)


def all_tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in tensors, modules (gradients too), optimizers, stages with `tensors()`, and containers of them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.buffers()
        for param in value.parameters():
            yield from (param,) if raw_grad(param) is None else (param, raw_grad(param))
    elif isinstance(value, torch.optim.Optimizer):
        yield from (tensor for tensor, _ in states_of(value))
    elif isinstance(value, Mapping):
        yield from all_tensors(list(value.values()))
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from all_tensors(item)
    elif hasattr(value, "tensors"):
        yield from all_tensors(value.tensors())


def held_by(holders: Iterable) -> dict[str, list[Tensor]]:
    """What the `tensors()` of several holders say, by kind."""
    of_each = [holder.tensors() for holder in holders]
    return {kind: [tensor for held in of_each for tensor in held.get(kind, ())] for kind in set().union(*of_each)}


class Watcher(Protocol):
    """Is called before and after a storage is resized to `nbytes`. If the first call raises, nothing is resized."""

    def resizing(self, storage: torch.UntypedStorage, nbytes: int) -> None: ...

    def resized(self, storage: torch.UntypedStorage) -> None: ...


# Stage 3 frees and takes memory by `resize_` on a storage. That is not an operation, so no dispatch mode sees it.
# While there is a watcher, we replace the method.
_watching: list[Watcher] = []
_replaced: dict[str, Any] = {}  # what the class itself defined under that name (nothing if it inherits the method)
_inherited = torch.UntypedStorage.resize_


def _resize(storage: torch.UntypedStorage, nbytes: int):
    for watcher in _watching:
        watcher.resizing(storage, nbytes)
    result = _replaced.get("resize_", _inherited)(storage, nbytes)
    for watcher in _watching:
        watcher.resized(storage)
    return result


CAN_SWAP = hasattr(torch.UntypedStorage, "_swap_data_ptr_")  # torch 2.10 cannot


def swap_memory(storage: torch.UntypedStorage, other: torch.UntypedStorage) -> None:
    """Exchange the memory of two storages, one of which has 0 bytes. Whoever watches is told."""
    for watcher in _watching:
        watcher.resizing(storage, other.nbytes())
    storage._swap_data_ptr_(other)
    for watcher in _watching:
        for each in sorted((storage, other), key=lambda each: each.nbytes()):  # first the one that gave its memory
            watcher.resized(each)


def watch_resize(watcher: Watcher) -> None:
    if not _watching:
        _replaced.update({name: method for name, method in vars(torch.UntypedStorage).items() if name == "resize_"})
        torch.UntypedStorage.resize_ = _resize
    _watching.append(watcher)


def unwatch_resize(watcher: Watcher) -> None:
    _watching.remove(watcher)
    if not _watching:
        del torch.UntypedStorage.resize_
        for name, method in _replaced.items():
            setattr(torch.UntypedStorage, name, method)
        _replaced.clear()
