"""The check of 7.5: the three functions of stage 3's operations, each alone, and in the training of a tiny GPT-2."""

import operator

import torch
from torch import nn

from .....comm.group import Handle
from .....errors import CollectiveError
from .....layout.rankmap import Layout
from .....zero.buffers.buffer import FlatBuffer
from .....zero.buffers.groups import Groups
from .....zero.stage3 import Stage3
from ....checks import Trial, When, exercise
from ....checks.observers.stage_probe import Updates
from ....checks.observers.stage_runs import WatchedComm, training

NUMEL = 19  # padded on 2 ranks and on 3
NAMES, RESULT = ("unshard", "reshard", "step"), 42.0


class GatherComm(WatchedComm):
    """Notes at each gather: is this rank's slice in the buffer? Raises RuntimeError when that has no memory."""

    def __init__(self):
        super().__init__()
        self.flats, self.sliced = [], True

    def all_gather(self, tensor, layout, unit):
        for flat in self.flats:
            if flat.storage.storage._cdata == tensor.untyped_storage()._cdata:
                if not flat.storage.held:
                    raise RuntimeError("the memory of `flat.full` is freed")
                self.sliced &= torch.equal(tensor[flat.own], flat.shard)
        return super().all_gather(tensor, layout, unit)


def freed_flat(comm, dtype=torch.float32):
    """A flat buffer as stage 3 has it between uses. Newly allocated memory is NaN: nobody finds old values by luck."""
    params = {"weight": nn.Parameter(torch.arange(1.0, NUMEL + 1))}
    flat = FlatBuffer("h.0", params, Layout.build({"weight": (NUMEL,)}, comm.world_size), dtype, Stage3, Groups(comm))
    flat.make_full(torch.device("cpu"))
    flat.build(lambda row: None)
    for param in flat.params.values():  # the right shape, and no memory of the buffer
        param.data = torch.full((), float("nan"), dtype=dtype).expand(param.shape)
    flat.storage.free()
    allocate = flat.storage.allocate

    def allocate_nan():
        if not flat.storage.held:
            allocate()
            flat.full.fill_(torch.nan)

    flat.storage.allocate = allocate_nan
    comm.flats.append(flat)
    return flat


def uses_freed(error, flat):
    """Is that why it was raised?"""
    return not flat.storage.held and not isinstance(error, CollectiveError | NotImplementedError)


def unshard_on_a_rank(unshard, reshard, step):
    """What `unshard` does with a freed buffer."""
    comm = GatherComm()
    flat = freed_flat(comm)
    flat.shard.mul_(2).add_(1)  # a step was done since the buffer was filled
    storage = flat.full.untyped_storage()
    try:
        handle = unshard(flat, comm)
    except RuntimeError as error:
        if uses_freed(error, flat):
            return {"allocated": False}
        raise
    gathers, returned = len(comm.handles), isinstance(handle, Handle)
    waited = any(begun.tensor is None for begun in comm.handles)  # complete before anybody else could wait
    apart = flat.shard.untyped_storage()._cdata not in (storage._cdata, flat.full.untyped_storage()._cdata)
    if returned:
        handle.wait()
    forgotten = comm.wait_for_forgotten()
    return {"allocated": True, "storage": flat.full.untyped_storage()._cdata == storage._cdata,
            "held": storage.nbytes(), "gathers": gathers, "sliced": comm.sliced, "under way": forgotten, "apart": apart,
            "shard": flat.shard.clone(), "waited": waited, "row": flat.full.clone() if storage.nbytes() else None,
            "_kind": "the handle" if returned else "None" if handle is None else type(handle).__name__}


def reshard_on_a_rank(unshard, reshard, step):
    """What `reshard` does with a gathered buffer."""
    flat = freed_flat(GatherComm())
    flat.storage.allocate()
    full, storage, shard_bytes = flat.full, flat.full.untyped_storage(), flat.shard.nbytes
    row = full.copy_(torch.arange(len(full))).clone()  # no longer what the shard holds: to write it back would show
    flat.show_full()
    reshard(flat)
    lost = not torch.is_tensor(flat.shard) or flat.shard.untyped_storage().nbytes() < shard_bytes
    seen = {"shard lost": lost, "held": storage.nbytes()}
    if not seen["held"]:
        return {**seen, "shard": None if lost else flat.shard.clone()}
    stays = {name: tensor.untyped_storage()._cdata == storage._cdata for name, tensor in
             {**flat.params, "full": flat.full}.items()}
    return {**seen, "stays": stays, "overwritten": not torch.equal(full, row)}


def step_on_a_rank(unshard, reshard, step):
    """One step of two buffers, the second in bf16 with fp32 master weights."""
    comm = GatherComm()
    flats = [freed_flat(comm, dtype) for dtype in (torch.float32, torch.bfloat16)]
    optimizer_step = Updates(flats, lambda flat: flat.master.sub_(comm.rank + 1), RESULT)
    try:
        with torch.no_grad():
            returned = step(flats, comm, optimizer_step)
    except RuntimeError as error:
        if any(uses_freed(error, flat) for flat in flats):
            return {"freed": True}
        raise
    return {"freed": False, "updates": optimizer_step.counts, "sent": comm.elements.total(),
            "held": [flat.full.untyped_storage().nbytes() for flat in flats],
            "slices": [flat.shard[:2].clone() for flat in flats], "result": returned is RESULT,
            "_returned": f"{returned!r:.60}"}


def nothing(*_):
    pass


def fresh(flat):
    flat.full = torch.zeros(flat.layout.padded, dtype=flat.dtype)


def moved_in(flat):
    flat.shard = flat.full[flat.own].copy_(flat.shard)


def gathered(flat, comm):
    return comm.all_gather(flat.full, flat.layout, flat.name)


def own_slice(flat):
    flat.full[flat.own].copy_(flat.shard)


def copied_late(flat, handle):
    own_slice(flat)
    return handle


def shard_too(flat):
    flat.storage.free()
    flat.shard.untyped_storage().resize_(0)


def written_back(flat):
    flat.shard.copy_(flat.full[flat.own])
    flat.storage.free()


def hidden(flat):
    for param in flat.params.values():
        param.data = torch.empty(0)


def gathered_in_step(flat, comm):
    flat.storage.allocate()
    own_slice(flat)
    gathered(flat, comm).wait()
    flat.storage.free()


@exercise(
    "7.5", "The operations of stage 3", minutes=30, difficulty=2, answer=NAMES, timeout=15,
    own=(Stage3.ops.unshard, Stage3.ops.reshard, Stage3.ops.step),
    trials=[*(Trial(observe=observe, worlds=(2, 3)) for observe in (
                reshard_on_a_rank, unshard_on_a_rank, step_on_a_rank)),
            *(training(NAMES, 3, world) for world in (2, 3))],
    mistakes={
        "shard freed": {"reshard": shard_too},
        "another tensor": ({"reshard": fresh}, {"reshard": lambda flat: setattr(flat.full, "data", torch.empty(0))}),
        "parameters moved": {"reshard": hidden},
        "overwritten": {"reshard": lambda flat: flat.full.zero_()},
        "not freed": {"reshard": nothing},
        "written back": {"reshard": written_back},
        "not allocated": {"allocate": nothing},
        "other storage": {"allocate": fresh},
        "no gather": {"gather": nothing},
        "gathered twice": (When("gathers", operator.gt),
                           {"gather": lambda flat, comm: (gathered(flat, comm), gathered(flat, comm))[1]}),
        "slice missing": ({"place": nothing}, {"place": nothing, "after": copied_late},
                          {"place": lambda flat: flat.full[:len(flat.shard)].copy_(flat.shard)}),
        "handle lost": {"after": nothing},
        "shard moved in": {"place": moved_in},
        "waits": ({"after": lambda flat, handle: handle.wait() or handle},
                  {"after": lambda flat, handle: handle.wait()}),
        "gathered elsewhere": {"gather": lambda flat, comm: comm.all_gather(flat.full.clone(), flat.layout, flat.name)},
        "never updated": {"update": nothing},
        "updated again": ({"update": lambda optimizer_step, flats: [optimizer_step() for _ in flats][0]},
                          When("updates", lambda got, want: max(got) > 1)),
        "some updated": ({"update": lambda optimizer_step, flats: optimizer_step(flats[0])},
                         When("updates", lambda got, want: 0 in got)),
        "whole in step": ({"bring": gathered_in_step}, {"bring": lambda flat, comm: flat.storage.allocate()},
                          {"bring": gathered}),
        "not published": ({"publish": nothing}, {"late": False}),
        "result lost": {"returns": nothing},
        "some kept": (When("elements by all_gather", operator.lt),
                      {"reshard": lambda flat: flat.name.startswith("root") or flat.storage.free()}),
        "stuck": {"gather": lambda flat, comm: gathered(flat, comm) if comm.rank == 0 else None},
    })
def operations(*, allocate=lambda flat: flat.storage.allocate(), place=own_slice, gather=gathered,
               after=lambda flat, handle: handle, reshard=lambda flat: flat.storage.free(),
               update=lambda optimizer_step, flats: optimizer_step(), publish=lambda flat: flat.round_masters(),
               late=True, bring=nothing, returns=lambda result: result):
    """The three, in their order. late: are the master weights published after the update?"""
    def unshard(flat, comm):
        allocate(flat)
        place(flat)
        return after(flat, gather(flat, comm))

    def step(flats, comm, optimizer_step):
        result = update(optimizer_step, flats) if late else None
        for flat in flats:
            publish(flat)
            bring(flat, comm)
        return returns(result if late else update(optimizer_step, flats))

    return unshard, reshard, step
