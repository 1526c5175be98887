"""What the checks of chapters 05 to 07 put around an answer on a rank: small flats, eyes on memory."""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn

from ....measure.storages import all_tensors
from ....zero.buffers.buffer import FlatBuffer
from ....zero.extras import shard
from ..inside import Answer
from ..verdict import MISUSED, Wrong
from .stage_runs import WatchedComm

NOT_THEIRS = ("torch", "zerocourse", "builtins")  # a learner's own classes are looked into


class OneParameter(nn.Module):
    """One parameter. It has a forward, which nobody calls, as units are modules that have one."""

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))

    def forward(self) -> torch.Tensor:
        return self.weight


def flats_of(shapes: list[tuple[int, ...]], stage: int, comm: WatchedComm, dtype: torch.dtype | None = None
             ) -> list[FlatBuffer]:
    """One flat for each shape, its parameters 1, 2, 3, ..., as `shard` makes it. Collective."""
    model = nn.Sequential()
    model.rows = nn.ModuleList(map(OneParameter, shapes))
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.arange(1.0, param.numel() + 1).view(param.shape))
    shard(model, None, stage=stage, comm=comm, param_dtype=dtype)
    comm.calls.clear()
    flats = [flat for flat in model.zero.flats if flat.layout.numel]
    if len(flats) != len(shapes):
        raise RuntimeError(f"`shard` made {len(flats)} flat buffers of {len(shapes)} units")
    return flats


def give_gradient(flat: FlatBuffer, gradient: torch.Tensor) -> None:
    """Put a whole gradient (numel,) into the buffer's bucket, through its parameters: there it is divided by N."""
    for key, param in flat.params.items():
        param.grad = gradient[flat.layout.param_slice(key)].view(param.shape).to(param.dtype)
        flat.collect(key, param)
    flat.complete_bucket()


class Updates:
    """The `optimizer_step` of an answer: without arguments it updates every flat buffer, else those it is given.

    counts: how often each of `flats` was updated.   update(flat): updates one.   result: what each call returns.
    """

    def __init__(self, flats: list[FlatBuffer], update: Callable[[FlatBuffer], object], result: object):
        self.flats, self.update, self.result, self.counts = flats, update, result, [0] * len(flats)

    def __call__(self, *wanted):
        for each in wanted:
            if not any(each is flat for flat in self.flats):
                raise Wrong(f"`optimizer_step` was given {each!r:.60}: it takes flat buffers, as `optimizer_step(flat)`, "
                            "or nothing, which updates them all", MISUSED)
        for number, flat in enumerate(self.flats):
            if not wanted or any(each is flat for each in wanted):
                self.counts[number] += 1
                self.update(flat)
        return self.result


def miscounted(counts: list[int]) -> str:
    """What is wrong when the buffers were updated so many times each; nothing when each was updated once."""
    if not any(counts):
        return "`optimizer_step` was never called: without it nothing moves."
    if max(counts) > 1:
        return (f"a flat buffer was updated {max(counts)} times. `optimizer_step()` updates them all, and "
                "`optimizer_step(flat)` one: each further call is a further step.")
    if not all(counts):
        return (f"{sum(counts)} of {len(counts)} flat buffers were updated: call `optimizer_step()` once, or "
                "`optimizer_step(flat)` for every one.")
    return ""


def calling(answer: Answer, fn: Callable, *args):
    """Call something that the answer made, such as a method, as guarded as the answer itself."""
    with answer.guard.on():
        try:
            return fn(*args)
        except BaseException as error:
            answer.error = answer.error or error
            raise


def storages_under(things, but: Iterable[torch.Tensor] = ()) -> list[int]:
    """Bytes of each storage of the tensors in `things`; without counters of one element, and without those of `but`."""
    storages = {}
    for tensor in _reachable(things, set()):
        if tensor.numel() > 1:
            storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
    for tensor in but:
        storages.pop(tensor.untyped_storage()._cdata, None)
    return list(storages.values())


def bytes_under(things, but: Iterable[torch.Tensor] = ()) -> int:
    return sum(storages_under(things, but))


def _reachable(value, seen: set[int]) -> Iterator[torch.Tensor]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
        if value.is_leaf and value.grad is not None:
            yield value.grad
    elif isinstance(value, torch.optim.Optimizer | nn.Module):
        yield from all_tensors(value)
    elif isinstance(value, dict | list | tuple | set):
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _reachable(item, seen)
    elif hasattr(value, "__dict__") and type(value).__module__.partition(".")[0] not in NOT_THEIRS:
        yield from _reachable(vars(value), seen)


def numbers(count: int, rank: int) -> torch.Tensor:
    """Gradients (count,) that tell rank and place: rank 0 has 1, 2, 3, ..., rank 1 has 10, 20, 30, ..., and so on."""
    return torch.arange(1.0, count + 1) * 10**rank
