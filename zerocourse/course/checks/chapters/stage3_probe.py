"""What the check of the operations of stage 3 looks at: one flat in the answer's hands, before GPT-2 is trained with it."""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from ....measure import storages
from ....comm.group import Comm
from ....errors import CollectiveError
from ....layout.rankmap import Layout
from ....zero.buffer import FlatBuffer
from ..lab import Lab
from ..verdict import Wrong
from .stage_probe import Updates, miscounted

SHAPES = {"weight": (5, 3), "bias": (4,)}  # 19 elements: padded on 2 ranks and on 3
RETURNED = 42.0  # what the probe's optimizer step returns


class ProbeComm(Comm):
    """Notes each all-gather: was this rank's slice in the buffer when it was called?

    freed: what to say to somebody who gathers into a buffer whose memory is freed.
    """

    def __init__(self, flats: list[FlatBuffer], freed: str, timeout: float = 4.0):
        super().__init__(timeout=timeout)
        self.rows = [(flat.full.untyped_storage()._cdata, flat) for flat in flats]
        self.gathers, self.slice_there, self.freed = [], [], freed

    def all_gather(self, tensor: torch.Tensor, layout: Layout, unit: str):
        flat = next((flat for storage, flat in self.rows if storage == tensor.untyped_storage()._cdata), None)
        if flat is not None:
            if not flat.storage.held:
                raise Wrong(self.freed)
            self.slice_there.append(bool(torch.equal(tensor[flat.own], flat.shard)))
        handle = super().all_gather(tensor, layout, unit)
        self.gathers.append(handle)
        return handle


class Poison:
    """Fills memory that a flat buffer allocates with NaN, so that nobody finds old values there by luck."""

    def __init__(self, flats: list[FlatBuffer]):
        self.rows = {id(flat.full.untyped_storage()): flat.full for flat in flats}

    def resizing(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        pass

    def resized(self, storage: torch.UntypedStorage) -> None:
        row = self.rows.get(id(storage))
        if row is not None and storage.nbytes() == row.numel() * row.element_size():
            row.fill_(float("nan"))


@contextmanager
def poisoned(flats: list[FlatBuffer]):
    poison = Poison(flats)
    storages.watch_resize(poison)
    try:
        yield
    finally:
        storages.unwatch_resize(poison)
        for flat in flats:  # an answer may have written where a freed storage points to: NaN again, for those to come
            if not flat.storage.held and flat.storage.readable:
                flat.full.view(torch.uint8 if flat.full.element_size() == 1 else
                               torch.int16 if flat.full.element_size() == 2 else torch.int32).fill_(-1)


def make_flat(rank: int, world: int, dtype: torch.dtype = torch.float32) -> FlatBuffer:
    """A flat as stage 3 has it between uses: the memory of `full` is freed. All ranks make the same."""
    seed = torch.Generator().manual_seed(7)
    params = {name: nn.Parameter(torch.randn(shape, generator=seed)) for name, shape in SHAPES.items()}
    flat = FlatBuffer("h.0", params, Layout.build(SHAPES, world), rank, True, True, dtype)
    flat.begin(torch.device("cpu"))
    flat.fill(lambda row: None)
    for key, param in flat.params.items():
        param.data = torch.full((), float("nan"), dtype=dtype).expand(param.shape)
    flat.storage.free()
    return flat


def whole_row(world: int) -> torch.Tensor:
    """The buffer that such shards make together, (padded,)."""
    shards = [make_flat(rank, world).shard for rank in range(world)]
    return torch.cat(shards)


# unshard ------------------------------------------------------------------------------------------------------------

NOT_ALLOCATED = "`unshard` used `flat.full` while its memory was freed: `flat.storage.allocate()` comes first"
NOT_NEEDED = ("`step` used `flat.full`, whose memory is freed. A rank updates its slice; the next `unshard` brings it "
              "to the others")
SAME_CALLS = ("Every rank must call the same collectives, or those that did wait forever: a gather may not sit behind "
              "an `if` that is not true on every rank.")


def _by_rank(counts: list[int]) -> str:
    return ", ".join(f"{count} times on rank {rank}" for rank, count in enumerate(counts))


def see_unshard(unshard, reshard, step) -> dict:
    """One call of `unshard` on this rank, and what is there when its handle was waited for."""
    probe = Comm()
    flat = make_flat(probe.rank, probe.world_size)
    flat.shard.mul_(2).add_(1)  # a step was done since the flat was filled
    flat.shard[flat.layout.real(probe.rank):] = 0
    shard, storage, comm = flat.shard.clone(), flat.full.untyped_storage(), ProbeComm([flat], NOT_ALLOCATED)
    with poisoned([flat]):
        try:
            handle = unshard(flat, comm)
            if handle is not None and not hasattr(handle, "wait"):
                raise Wrong(f"it returned {handle!r}: return the all-gather's handle")
            waited = any(gather.tensor is None for gather in comm.gathers)  # complete before it returned
            counts = probe.all_gather_object(len(comm.gathers))
            if len(set(counts)) > 1:
                raise Wrong(f"`unshard` called `comm.all_gather` {_by_rank(counts)}. {SAME_CALLS}")
            if handle is not None:
                handle.wait()
        except CollectiveError as error:
            raise Wrong(f"`unshard`: {error}. {SAME_CALLS}") from error
        except RuntimeError as error:
            if flat.storage.held:
                raise
            raise Wrong(NOT_ALLOCATED) from error
        found = {"bytes": storage.nbytes(), "full bytes": flat.storage.nbytes, "gathers": len(comm.gathers),
                 "under way": any(gather.tensor is not None for gather in comm.gathers), "shard": shard,
                 "slice there": all(comm.slice_there), "waited": waited,
                 "returned": "None" if handle is None else "the handle",
                 "same storage": flat.full.untyped_storage()._cdata == storage._cdata,
                 "shard apart": flat.shard.untyped_storage()._cdata not in (storage._cdata,
                                                                          flat.full.untyped_storage()._cdata),
                 "shard after": flat.shard.clone(), "sent": dict(comm.elements)}
        for gather in comm.gathers:
            gather.wait()
        found["row"] = flat.full.clone() if storage.nbytes() else None
    return found


def judge_unshard(lab: Lab, world: int) -> None:
    found = lab.run(see_unshard, world=world)
    row = torch.cat([each["shard"] for each in found])
    for rank, saw in enumerate(found):
        here = f"`unshard` on rank {rank} of {world}:"
        if not saw["same storage"]:
            lab.wrong(f"{here} afterwards `flat.full` stands on another storage. The parameters, and all that autograd "
                      "saved, are views of the old one: give that one its memory again, with `flat.storage.allocate()`.")
        if saw["bytes"] != saw["full bytes"]:
            lab.wrong(f"{here} the storage of `flat.full` holds {saw['bytes']} bytes afterwards, and "
                      f"{saw['full bytes']} are right: you never allocated the memory.")
        if not saw["gathers"]:
            lab.wrong(f"{here} no `comm.all_gather` was called. This rank has its own slice; the others' must come "
                      "from them.")
        if not saw["slice there"]:
            lab.wrong(f"{here} when `comm.all_gather` was called, `flat.shard` was not yet at its position in "
                      "`flat.full`, at `flat.own`. The gather sends what lies there: copy the shard there "
                      "first.")
        if saw["under way"]:
            lab.wrong(f"{here} the all-gather is still under way, and nobody has its handle: return the "
                      "handle.")
        if not saw["shard apart"]:
            lab.wrong(f"{here} afterwards `flat.shard` is a view of `flat.full`. The next reshard frees that memory, "
                      "and the only copy of the slice with it: copy the numbers, and leave `flat.shard` as it is.")
        lab.expect(saw["shard after"], saw["shard"], f"{here} `flat.shard` must not change")
        if saw["gathers"] > 1:
            lab.wrong(f"{here} it called `comm.all_gather` {saw['gathers']} times: once brings everything.")
        if saw["waited"]:
            lab.wrong(f"{here} it returned {saw['returned']} after it had waited for the gather. The computation "
                      "stands still meanwhile, also for blocks ahead: return the handle at once, and let the stage "
                      "wait for it.")
    for rank, saw in enumerate(found):
        lab.expect(saw["row"], row, f"`unshard` on rank {rank} of {world}: `flat.full`")


# reshard ------------------------------------------------------------------------------------------------------------

def see_reshard(unshard, reshard, step) -> dict:
    """A forward, `reshard`; if the memory was freed: allocated again, filled, and a backward. Sends nothing."""
    world = dist.get_world_size()
    flat = make_flat(dist.get_rank(), world)
    row, storage, held = whole_row(world), flat.full.untyped_storage(), flat.storage.nbytes
    flat.storage.allocate()
    flat.full.copy_(row)
    flat.show()
    params, full, shard = flat.params, flat.full, flat.shard.clone()
    x = torch.arange(6.0).view(2, 3) + 1
    loss = (x @ params["weight"].T).square().square().sum() + params["bias"].square().sum()
    before = {name: param.untyped_storage()._cdata for name, param in params.items()}
    full.add_(1)  # no longer what the shard holds: to write it back would show
    reshard(flat)
    found = {"bytes": storage.nbytes(), "held before": held, "full is the same": flat.full is full,
             "params moved": any(param.untyped_storage()._cdata != before[name] for name, param in params.items()),
             "overwritten": bool(storage.nbytes()) and not torch.equal(full, row + 1),
             "shard bytes": 0 if flat.shard is None else flat.shard.untyped_storage().nbytes(),
             "shard wanted": shard.nbytes, "grads": None}
    if not storage.nbytes() and found["shard bytes"]:
        flat.storage.allocate()
        full.copy_(row)
        flat.show()
        loss.backward()
        found["grads"] = [params[name].grad.clone() for name in SHAPES]
        found["shard"], found["shard was"] = flat.shard.clone(), shard
        weight, bias = (row[flat.layout.param_slice(name)].view(shape).clone().requires_grad_()
                        for name, shape in SHAPES.items())
        ((x @ weight.T).square().square().sum() + bias.square().sum()).backward()
        found["right"] = [weight.grad, bias.grad]
    return found


def judge_reshard(lab: Lab, world: int) -> None:
    for rank, saw in enumerate(lab.run(see_reshard, world=world)):
        _judge_reshard(lab, saw, f"`reshard` after a forward, on rank {rank} of {world}:")


def _judge_reshard(lab: Lab, saw: dict, here: str) -> None:
    if saw["shard bytes"] < saw["shard wanted"]:
        lab.wrong(f"{here} the memory of `flat.shard` is gone too. It is the only copy of this rank's slice, and the "
                  "next gather needs it: free `flat.full` alone.")
    if saw["bytes"]:
        holds = f"{here} the storage of `flat.full` still holds {saw['bytes']} bytes, and 0 are right."
        if not saw["full is the same"]:
            lab.wrong(f"{holds} You let the name `flat.full` stand for another tensor: the views of the old one, "
                      "autograd's among them, keep its memory alive, and the next gather does not reach them.")
        if saw["params moved"]:
            lab.wrong(f"{holds} You pointed the parameters at other memory: autograd saved views of the old one, and "
                      "they keep it alive. Free the storage itself.")
        if saw["overwritten"]:
            lab.wrong(f"{holds} You overwrote the numbers: that frees nothing.")
        lab.wrong(f"{holds} Free it with `flat.storage`, on every rank.")
    lab.expect(saw["shard"], saw["shard was"], f"{here} `flat.shard` must not change")
    lab.expect(saw["grads"], saw["right"], f"{here} the memory was allocated and filled again, and then came the "
               "backward; the gradients", verb="they have", tolerance=1e-5)


# step ---------------------------------------------------------------------------------------------------------------

def see_step(unshard, reshard, step) -> dict:
    """One step of two flats, in fp32 and in bf16 with fp32 master weights, by SGD with a learning rate of 1."""
    probe = Comm()
    flats = [make_flat(probe.rank, probe.world_size, dtype) for dtype in (torch.float32, torch.bfloat16)]
    comm = ProbeComm(flats, NOT_NEEDED)
    parts = [part for flat in flats for part in flat.shard_params.values()]
    for number, part in enumerate(parts):
        part.grad = torch.full_like(part, 1 + number + 10 * probe.rank)
    before = [flat.shard.clone() for flat in flats]

    def update(flat):
        for part in flat.shard_params.values():
            part.sub_(part.grad)

    optimizer_step = Updates(flats, update, RETURNED)
    with poisoned(flats), torch.no_grad():
        try:
            returned = step(flats, comm, optimizer_step)
        except RuntimeError as error:
            if "storage of size 0" in str(error):
                raise Wrong(NOT_NEEDED) from error
            raise
        return {"updates": optimizer_step.counts, "returned": returned, "sent": comm.elements.total(), "before": before,
                "held": [flat.full.untyped_storage().nbytes() for flat in flats],
                "shards": [flat.shard.clone() for flat in flats], "masters": [flat.master.clone() for flat in flats],
                "grads": all(part.grad is not None for part in parts)}


def judge_step(lab: Lab, world: int) -> None:
    for rank, saw in enumerate(lab.run(see_step, world=world)):
        here = f"`step` on rank {rank} of {world}:"
        if why := miscounted(saw["updates"]):
            lab.wrong(f"{here} {why}")
        if saw["sent"]:
            lab.wrong(f"{here} it sent {saw['sent']} elements, and 0 are right: a rank updates its slice, and the next "
                      "`unshard` brings it to the others.")
        if any(saw["held"]):
            lab.wrong(f"{here} afterwards a `flat.full` holds {max(saw['held'])} bytes: the step of stage 3 needs no "
                      "whole parameters.")
        half, master = saw["shards"][1], saw["masters"][1]
        if torch.equal(half, saw["before"][1]) and not torch.equal(half, master.to(half.dtype)):
            lab.wrong(f"{here} a model in bf16 did not change. Its optimizer steps `flat.master`, in fp32: after the "
                      "update, and not before, `flat.publish_shard()` must round that into `flat.shard`.")
        lab.expect(half, master.to(half.dtype), f"{here} `flat.shard` in bf16 must be `flat.master`, rounded")
        lab.expect(saw["returned"], RETURNED, f"{here} it must return what `optimizer_step()` returned, the loss of a "
                   "closure", verb="it returned")
