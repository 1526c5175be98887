"""The checks of chapter 07, ZeRO-3: here 7.1 to 7.4, which need no other rank."""

import torch

from ....measure import storages
from ..exercise import exercise
from ..harness import When
from ..trace import Trial

from . import zero3_hooks, zero3_ops, zero3_stack  # noqa: F401  (7.5, 7.6 and 7.7 are there)
# 7.1 ----------------------------------------------------------------------------------------------------------------

def whole_model(units):
    return [sum(units)]


@exercise(
    "7.1", "What a step of stage 3 sends", minutes=10, difficulty=1, answer="elements_sent",
    cases=[([600, 1200, 1200, 600], ranks, micro_batches, again) for ranks in (2, 4, 1) for micro_batches in (1, 4)
           for again in (True, False)],
    trials=[Trial([([601, 7, 2], ranks, 3, again) for ranks in (2, 4) for again in (True, False)])],
    mistakes={
        "gathered once": {"gathers": lambda G, again: G},
        "gathered twice": {"gathers": lambda G, again: 2 * G},
        "turned round": {"gathers": lambda G, again: G * (2 - again)},
        "reduced once": {"reductions": lambda G: 1},
        "first gather alone": {"gathers": lambda G, again: 1 + again},
        "kept over micro-batches": {"gathers": lambda G, again: 2 * G if again else 1},
        "no micro-batches": {"gathers": lambda G, again: 1 + again, "reductions": lambda G: 1},
        "gathered after the step": {"gathers": lambda G, again: G * (1 + again) + 1},
        "all-reduce": {"reductions": lambda G: 2 * G},
        "to itself": ({"message": lambda n, ranks: ranks * -(-n // ranks)}, {"message": lambda n, ranks: n}),
        "sent once": ({"message": lambda n, ranks: -(-n // ranks)},
                      {"message": lambda n, ranks: -(-n // ranks) * (ranks > 1)}),
        "whole units": {"message": lambda n, ranks: n * (ranks - 1)},
        "bytes": {"each": 4},
        "exchanged": {"verbs": ("reduce_scatter", "all_gather")},
        "one cut": {"cut": whole_model},
        "rounded down": {"message": lambda n, ranks: (ranks - 1) * (n // ranks)},
        "no padding": tuple({"message": message, "cut": cut} for cut in (list, whole_model) for message in (
            lambda n, ranks: n * (ranks - 1) // ranks, lambda n, ranks: n * (ranks - 1) / ranks,
            lambda n, ranks: -(-n * (ranks - 1) // ranks))),
    })
def elements_sent(units, ranks, micro_batches, reshard_after_forward, *, gathers=lambda G, again: G * (1 + again),
                  reductions=lambda G: G, message=lambda n, ranks: (ranks - 1) * -(-n // ranks), each=1, cut=list,
                  verbs=("all_gather", "reduce_scatter")):
    """message: elements of a unit that a rank sends in one collective.   gathers, reductions: how often in a step.

    gathered once: You gathered once for a forward and its backward: with `reshard_after_forward` the parameters are
        freed between the two, so the backward gathers them again.
    gathered twice: You gathered twice although the parameters were kept: without `reshard_after_forward` the backward
        finds them where the forward left them.
    turned round: You turned `reshard_after_forward` round: True frees the parameters after the forward, and that costs
        a second gather.
    reduced once: You reduced once for the whole step: a rank has no room for a whole gradient, so the gradients of
        every micro-batch are reduced.
    first gather alone: You gathered for the first micro-batch alone: its backward frees the parameters, so the next
        forward gathers them again.
    kept over micro-batches: You kept the parameters over all micro-batches: `reshard_after_forward=False` keeps them
        from a forward to its backward, which frees them.
    no micro-batches: You left the micro-batches out: each has its own forward and backward, and its own collectives.
    gathered after the step: You gathered after the update too, as stages 1 and 2 do: here the next forward gathers.
    all-reduce: You counted an all-reduce of the gradients: a reduce-scatter is half of one, because the sums stay where
        they are.
    to itself: You let a rank send to all ranks, itself among them: its own share stays where it is.
    sent once: You let a rank send its share once: each of the N - 1 others needs it.
    whole units: You let a rank send whole units: it has its share of each, and sends that to the N - 1 others.
    bytes: You counted bytes: elements are asked for.
    exchanged: You changed the two round: parameters are gathered, gradients are reduced.
    one cut: You cut the sum of all units: each unit is gathered by itself, so each is padded by itself.
    rounded down: You rounded a share down: the last rank's share is padded up to the size of the others.
    no padding: You counted (N - 1) / N of the parameters, without padding: a share is ceil(n / N) elements, and it is
        sent as a whole.
    right: gathers and reductions, padding included, also over several micro-batches.
    """
    once = each * sum(message(n, ranks) for n in cut(units))
    times = gathers(micro_batches, reshard_after_forward), reductions(micro_batches)
    return {verb: once * count for verb, count in zip(verbs, times, strict=True)}


# 7.2 ----------------------------------------------------------------------------------------------------------------

def windows(blocks, wide):
    """What so many neighbours have together, wherever they begin; fewer near the end."""
    return [sum(blocks[i:i + wide]) for i in range(len(blocks))]


def full_windows(blocks, wide):
    return windows(blocks, wide)[:max(0, len(blocks) - wide + 1)]


def rooted(add):
    return {"add": add}


@exercise(
    "7.2", "Gathered at a time", minutes=15, difficulty=1, answer="most_gathered",
    cases=[(root, blocks, prefetch, reshard) for root, blocks in (
        (50, [10, 20, 40, 80, 70]), (7, [300, 10, 10, 200]), (1000, [64]), (5, [9, 90, 9, 90, 60, 9]))
        for reshard in (True, False) for prefetch in (0, 1, 2, 8)],
    mistakes={
        "no root": (rooted(lambda root, here, again: here), rooted(lambda root, here, again: here + root * again)),
        "root or block": rooted(lambda root, here, again: max(root, here)),
        "without itself": {"wide": lambda prefetch: prefetch},
        "nothing ahead": {"wide": lambda prefetch: 1},
        "one too many": {"wide": lambda prefetch: prefetch + 2},
        "both sides": {"wide": lambda prefetch: 2 * prefetch + 1},
        "largest multiplied": {"most": lambda blocks, wide: max(blocks) * min(wide, len(blocks))},
        "fewer near the end": {"most": lambda blocks, wide: max(blocks) * wide},
        "largest anywhere": {"most": lambda blocks, wide: sum(sorted(blocks, reverse=True)[:wide])},
        "first blocks": {"most": lambda blocks, wide: sum(blocks[:wide])},
        "full windows": ({"most": lambda blocks, wide: max(full_windows(blocks, wide))},
                         {"most": lambda blocks, wide: max(full_windows(blocks, wide), default=0)}),
        "always freed": {"kept": lambda again: False},
        "turned round": {"kept": lambda again: again},
    })
def most_gathered(root, blocks, prefetch, reshard_after_forward, *, wide=lambda prefetch: prefetch + 1,
                  most=lambda blocks, wide: max(windows(blocks, wide)), kept=lambda again: not again,
                  add=lambda root, here, again: root + here):
    """wide: how many neighbours are there.   most: elements of so many.   add: the root to those of the blocks.

    no root: You left out the root: it is gathered before the first block and freed after the last.
    root or block: You took the larger of the root and the blocks: the root stays while they compute, so add it.
    without itself: You left out the block that computes: with `prefetch` ahead of it, there are `prefetch` + 1.
    nothing ahead: You left out the blocks that are gathered ahead.
    one too many: You took one block too many: the one that computes, and `prefetch` more. The one before is freed
        already.
    both sides: You counted `prefetch` blocks on either side: those ahead are being gathered, those behind are freed.
    largest multiplied: You multiplied the largest block: blocks have different sizes, so add up the neighbours and look
        for the place where the sum is largest.
    fewer near the end: You multiplied the largest block, and by more blocks than there are: add up neighbours, of
        which there are fewer near the end.
    largest anywhere: You added up the largest blocks wherever they are: only neighbours are gathered at the same time.
    first blocks: You looked at the first blocks alone: the largest sum may come later.
    full windows: You looked only where all `prefetch` blocks are there to be gathered ahead: near the end there are
        fewer, and in a short stack that is everywhere.
    always freed: You ignored `reshard_after_forward=False`: nothing is freed in the forward, so at its end all blocks
        are whole.
    turned round: You turned `reshard_after_forward` round: True frees each block after it computed.
    right: root, the block that computes and those ahead of it; and all of them where nothing is freed.
    """
    here = sum(blocks) if kept(reshard_after_forward) else most(blocks, wide(prefetch))
    return add(root, here, reshard_after_forward)


# 7.3 ----------------------------------------------------------------------------------------------------------------

def first_other_event(case, got, want):
    if not isinstance(got, (list, tuple)) or list(got) == want:
        return None
    for number, (mine, wanted) in enumerate(zip(got, want, strict=False), start=1):
        if mine != wanted:
            return f"event {number} is {mine!r} where {wanted!r} is right."
    return f"it has {len(got)} events where {len(want)} are right; the first {min(len(got), len(want))} are the same."


def ahead(count):
    """Gather the present block and those after it: count(prefetch, direction) of them."""
    return {"wanted": lambda order, i, prefetch, direction: order[i:i + 1 + max(0, count(prefetch, direction))]}


def wanted(choose):
    return {"wanted": lambda order, i, prefetch, direction: choose(order, i, prefetch)}


def by_name(order, i, prefetch, direction):
    return sorted(order[i:i + 1 + prefetch], reverse=direction == "backward")


def looking_forward(order, i, prefetch, direction):
    """In the backward too, the blocks that come after the present one in the model."""
    return order[i:i + 1 + prefetch] if direction == "forward" else order[max(0, i - prefetch):i + 1][::-1]


@exercise(
    "7.3", "The order of the verbs", minutes=25, difficulty=2, answer="step_events",
    trials=[Trial([*((["h.0", "h.1", "h.2", "h.3"], prefetch) for prefetch in (0, 1, 2)), (["h.0"], 1),
                   (["h.0", "h.1"], 9), (["h.8", "h.9", "h.10", "h.11"], 2)], words={"returned": first_other_event})],
    mistakes={
        "nothing ahead": ahead(lambda prefetch, direction: 0),
        "ahead in the forward": ahead(lambda prefetch, direction: prefetch * (direction == "forward")),
        "itself counted": ahead(lambda prefetch, direction: prefetch - 1),
        "too far": ahead(lambda prefetch, direction: prefetch + 1),
        "all at once": (ahead(lambda prefetch, direction: 99),
                        ahead(lambda prefetch, direction: 99 if direction == "forward" else prefetch)),
        "farthest alone": (wanted(lambda order, i, prefetch: order[i:i + 1] + order[i + prefetch:i + prefetch + 1]),
                           wanted(lambda order, i, prefetch: order[i + prefetch:i + prefetch + 1])),
        "farthest first": (wanted(lambda order, i, prefetch: order[i:i + 1 + prefetch][::-1]),
                           wanted(lambda order, i, prefetch: order[i:i + 1] + order[i + 1:i + 1 + prefetch][::-1])),
        "looks forward": {"wanted": looking_forward},
        "ahead too late": {"late": True},
        "gathered again": {"looks": False},
        "by name": {"wanted": by_name},
        "no second gather": {"second": False},
        "kept": {"frees": lambda i, blocks: False},
        "last one kept": {"frees": lambda i, blocks: i < len(blocks) - 1},
        "no reshard": {"frees": lambda i, blocks: False, "forgets": True},
        "backward forwards": {"turn": lambda blocks: blocks},
        "reduced last": {"ending": ("backward", "reshard", "reduce")},
        "reduced first": {"ending": ("reduce", "backward", "reshard")},
        "reduced at the end": {"ending": ("backward", "reshard"), "end": "reduce"},
        "never reduced": {"ending": ("backward", "reshard")},
    })
def step_events(blocks, prefetch, *, wanted=lambda order, i, prefetch, direction: order[i:i + 1 + prefetch], late=False,
                looks=True, second=True, frees=lambda i, blocks: True, forgets=False, turn=lambda blocks: blocks[::-1],
                ending=("backward", "reduce", "reshard"), end=None):
    """wanted: the blocks to be gathered before one computes; late: those ahead, after it.   looks: is it there already?
    frees: is a block resharded in the forward? forgets: though it was not, the backward gathers it.   end: a verb for
    all blocks at the end.

    nothing ahead: You gathered nothing ahead: `prefetch` blocks after the present one are unsharded before it computes.
    ahead in the forward: You gathered ahead in the forward alone: the backward does it too, towards the first block.
    itself counted: You counted the block itself: `prefetch` blocks *after* the present one are gathered ahead.
    too far: You gathered one block too far ahead.
    all at once: You gathered all blocks at the beginning: then a rank holds the whole model, and nothing is saved.
    farthest alone: You gathered the farthest block alone: at the beginning of a pass the nearer ones are not there yet
        either.
    farthest first: You gathered the farthest block first: the nearest is needed first, so it goes first.
    looks forward: Your backward gathers ahead towards the last block, and those have computed already: ahead of it are
        the blocks before.
    ahead too late: You started to gather ahead after the block computed: then nothing travels while it computes, and
        that was the purpose.
    gathered again: You gathered a block again that was there already.
    by name: You went by the names: the order of `blocks` says which is nearest, and "h.10" sorts before "h.8".
    no second gather: You did not gather again for the backward: after the forward every block was resharded.
    kept: You kept the blocks from the forward to the backward, which is `reshard_after_forward=False`: here each is
        resharded as soon as it computed.
    last one kept: You kept the last block, which the backward needs first: a good idea, but here each block is
        resharded as soon as it computed.
    no reshard: You did not reshard after the forward: each block is resharded as soon as it computed.
    backward forwards: You walked the backward from the first block to the last: it goes the other way.
    reduced last: You resharded before you reduced: in this list the reduction comes first.
    reduced first: You reduced before the backward: it is the backward that makes the gradients.
    reduced at the end: You reduced at the end of the step: the gradients of a block go to their owners when its
        backward is over, or a rank holds all of them.
    never reduced: You never reduced: the gradients of a block go to their owners when its backward is over.
    right: each block is gathered twice, while the one before it computes, and freed twice.
    """
    events, there = [], set()

    def gather(names):
        for name in names:
            if name not in there or not looks:
                there.add(name)
                events.append(f"unshard {name}")

    for direction, order in (("forward", blocks), ("backward", turn(blocks))):
        for i, name in enumerate(order):
            names = wanted(order, i, prefetch, direction) if second or direction == "forward" else []
            now = 1 if late else len(names)
            first, *rest = ending if direction == "backward" else ("forward", "reshard")[:1 + frees(i, blocks)]
            gather(names[:now])
            events.append(f"{first} {name}")
            gather(names[now:])
            events += [f"{verb} {name}" for verb in rest]
            if "reshard" in rest or forgets:
                there.discard(name)
    return events + [f"{end} {name}" for name in turn(blocks) if end]


# 7.4 ----------------------------------------------------------------------------------------------------------------

class Overwriting:
    """Writes into memory that a storage gets, so that what is found there is never the old content by luck."""

    def resizing(self, storage, nbytes):
        self.before = storage.nbytes()

    def resized(self, storage):
        if self.before < storage.nbytes():
            storage.fill_(1)


def free_and_take(free, allocate, dtype, nbytes):
    """A buffer of 12 elements and a view of it: freed, allocated, written to, and allocated once more.

    case: a buffer of 12 elements in {0}, {1} bytes
    freed: after `free` its storage holds {got} bytes, and 0 are right.
    shape: after `free` the tensor has the shape {got}: only its storage should change.
    same: `allocate` gave `full` a new storage.
    allocated: after `allocate` its storage holds {got} bytes, and {want} are right.
    again: after a second `allocate` its storage holds {got} bytes, and {want} are right.
    view: freed, allocated, filled with 100 to 111, and allocated again, which must change nothing; the view of elements
        2 to 8 shows {got}, and {want} is right.
    """
    full = torch.arange(12).to(getattr(torch, dtype))
    view, storage = full[2:8], full.untyped_storage()
    watcher = Overwriting()
    storages.watch_resize(watcher)
    try:
        free(full)
        seen = {"freed": storage.nbytes(), "shape": tuple(full.shape), "_size": nbytes // 12}
        if seen["freed"] or seen["shape"] != (12,):
            return {**seen, "moved": full.untyped_storage()._cdata != storage._cdata}
        allocate(full)
        seen |= {"same": full.untyped_storage()._cdata == storage._cdata, "allocated": storage.nbytes()}
        if seen["same"] and seen["allocated"] == nbytes:
            full.copy_(torch.arange(100, 112))
            allocate(full)
            seen |= {"again": storage.nbytes(), "view": view.clone() if storage.nbytes() >= nbytes else None}
        return seen
    finally:
        storages.unwatch_resize(watcher)


def shrunk(full):
    full.untyped_storage().resize_(0)
    full.resize_(0)


@exercise(
    "7.4", "Memory that comes and goes", minutes=15, difficulty=2, answer=("free", "allocate"),
    replaces=("zerocourse.zero.storage:FreeableStorage.free", "zerocourse.zero.storage:FreeableStorage.allocate"),
    trials=[Trial([("float32", 48), ("bfloat16", 24), ("int64", 96)], free_and_take)],
    mistakes={
        "another storage": tuple({"free": lambda full, length=length: setattr(full, "data", full.new_empty(length))}
                                 for length in (0, 12)),
        "shorter": {"free": lambda full: full.resize_(0)},
        "nothing freed": {"free": lambda full: full.zero_()},
        "shape too": {"free": shrunk},
        "new storage": {"allocate": lambda full: setattr(full, "data", torch.empty_like(full))},
        "elements": {"nbytes": torch.Tensor.numel},
        "4 bytes": {"nbytes": lambda full: 4 * full.numel()},
        "nothing allocated": {"allocate": lambda full: full.resize_(12)},
        "again": ({"nbytes": lambda full: full.untyped_storage().nbytes() + full.nbytes},
                  {"nbytes": lambda full: full.nbytes - full.untyped_storage().nbytes()}, When("again")),
        "cleared": ({"after": torch.Tensor.zero_}, {"before": lambda full: full.untyped_storage().resize_(0)}),
    })
def memory(*, free=lambda full: full.untyped_storage().resize_(0), before=lambda full: None, after=lambda full: None,
           allocate=None, nbytes=lambda full: full.numel() * full.element_size()):
    """`free` and `allocate`.   before, after: what `allocate` does to the buffer besides.

    another storage: `full` has another storage now, but a view that was taken before keeps the old one alive.
    shorter: You made the tensor shorter, and its storage stayed as it was.
    nothing freed: Not one byte was given back.
    shape too: Leave the tensor as it is, or nobody knows how much memory to allocate again.
    new storage: Views of the old one, and what autograd saved, stay without memory: let the old storage grow again.
    elements: You counted elements: each takes {_size} bytes.
    4 bytes: You allocated 4 bytes an element: here an element takes {_size}.
    nothing allocated: The tensor still has its shape, so `full.resize_` finds nothing to do: resize its storage.
    again: The memory was there already, so nothing may happen.
    cleared: Your second `allocate` writes into the buffer, or gives it new memory: when the memory is there, leave it.
    right: 0 bytes while free, and afterwards every view, also autograd's, reads the new numbers.
    """
    def allocates(full):
        before(full)
        full.untyped_storage().resize_(nbytes(full))
        after(full)

    return free, allocate or allocates
