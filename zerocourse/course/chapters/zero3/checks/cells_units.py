"""The checks of what chapter 07 asks for itself: 07.w1, unshard, and 07.w2, reshard. They are looked at as in 7.5."""

import operator

from .....zero import stage3
from ....checks import Trial, When, exercise
from ....checks.observers.stage_runs import training
from .zero3_ops import (
    copied_late,
    fresh,
    gathered,
    hidden,
    moved_in,
    nothing,
    own_slice,
    reshard_on_a_rank,
    shard_too,
    unshard_on_a_rank,
    written_back,
)


def unsharded(answer):
    return unshard_on_a_rank(answer, None, None)


@exercise(
    "07.w1", "Unshard", minutes=10, difficulty=2, answer="unshard", own=stage3.unshard, timeout=15,
    trials=[Trial(observe=unsharded, worlds=(2, 3), words=unshard_on_a_rank), training("unshard", 3)],
    mistakes={
        "not allocated": {"allocate": nothing},
        "other storage": {"allocate": fresh},
        "no gather": {"gather": nothing},
        "gathered twice": (When("gathers", operator.gt), {"gather": lambda flat, comm: (gathered(flat, comm), gathered(flat, comm))[1]}),
        "slice missing": ({"place": nothing}, {"place": nothing, "after": copied_late}),
        "first place": {"place": lambda flat: flat.full[:len(flat.shard)].copy_(flat.shard)},
        "handle lost": {"after": nothing},
        "shard moved in": {"place": moved_in},
        "waits": ({"after": lambda flat, handle: handle.wait() or handle}, {"after": lambda flat, handle: handle.wait()}),
        "gathered elsewhere": {"gather": lambda flat, comm: comm.all_gather(flat.full.clone(), flat.layout, flat.name)},
        "stuck": {"gather": lambda flat, comm: gathered(flat, comm) if comm.rank == 0 else None},
    })
def unsharding(flat, comm, *, allocate=lambda flat: flat.storage.allocate(), place=own_slice, gather=gathered,
               after=lambda flat, handle: handle):
    """Bring all parameters of a unit to `flat.full`, whose memory is freed. Returns the
    handle of the gather at once.

    flat.storage.allocate(): gives `flat.full` (n,) its memory again.
    flat.shard: this rank's slice, which is always there.
    flat.own: where that slice lies in `flat.full`.
    comm.all_gather(flat.full, flat.layout, flat.name): begins to bring the slices of
    all ranks; from each rank it sends what lies at its own place in `flat.full`.
    Returns a handle, for which the stage waits when it needs the parameters.
    """
    allocate(flat)
    place(flat)
    return after(flat, gather(flat, comm))


def resharded(answer):
    return reshard_on_a_rank(None, answer, None)


@exercise(
    "07.w2", "Reshard", minutes=5, difficulty=1, answer="reshard", own=stage3.reshard, timeout=15,
    trials=[Trial(observe=resharded, worlds=(2, 3), words=reshard_on_a_rank), training("reshard", 3)],
    mistakes={
        "not freed": {"frees": nothing},
        "shard freed": {"frees": shard_too},
        "another tensor": {"frees": fresh},
        "parameters moved": {"frees": hidden},
        "overwritten": {"frees": lambda flat: flat.full.zero_()},
        "written back": {"frees": written_back},
        "some kept": (When("elements by all_gather", operator.lt), {"frees": lambda flat: flat.name.startswith("root") or flat.storage.free()}),
    })
def resharding(flat, *, frees=lambda flat: flat.storage.free()):
    """Give the memory of `flat.full` back: the unit has computed, and this rank keeps its
    slice, `flat.shard`, alone.

    flat.storage: the memory of `flat.full`, of which the parameters and what autograd
    has saved are views. `allocate()` gives it, `free()` takes it away, and the views
    remain what they are.
    """
    frees(flat)
