"""What the check of 7.7 looks at: a sharded stack of blocks, trained on data that differ by rank."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from ....measure.ledger import Ledger
from ..lab import Lab
from ..verdict import Wrong

WIDTHS = (61, 67, 59, 64, 71, 60, 66, 63)  # of the blocks' middles: no two alike, and few divide evenly
WIDTH, ROWS, LR, MOMENTUM = 23, 2, 0.05, 0.5
PLAN = (1, 2, 1)  # micro-batches of each step


class ResidualBlock(nn.Module):
    def __init__(self, middle: int):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, middle), nn.Linear(middle, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


def make_stack() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(*[ResidualBlock(middle) for middle in WIDTHS])


def batches(rank: int) -> list[torch.Tensor]:
    seed = torch.Generator().manual_seed(50 + rank)
    return [torch.randn(ROWS, WIDTH, generator=seed) for _ in range(sum(PLAN))]


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - x.roll(1, dims=1)).square().mean()


def sizes(world: int) -> list[int]:
    """Elements of a share of each block, padding included."""
    return [-(-sum(param.numel() for param in block.parameters()) // world) for block in make_stack()]


def unsharded(world: int, combine, last_only: bool = False) -> tuple[list[torch.Tensor], list[list[float]]]:
    """PLAN on one process: each block's row of parameters in the end, and the losses that each rank sees.

    combine(rows): a block's gradient from those of the ranks, (world, n); right is the mean.   last_only: of a step's
    micro-batches the last alone counts. By hand, since torch's SGD spends seconds on imports in its first step.
    """
    model, data, at = make_stack(), [batches(rank) for rank in range(world)], 0
    blocks = [list(block.parameters()) for block in model]
    speeds: list = [0.0 for _ in blocks]
    losses: list[list[float]] = [[] for _ in range(world)]
    for count in PLAN:
        grads = []
        for rank in range(world):
            for number in range(at, at + count):
                if last_only:
                    model.zero_grad()
                loss = loss_of(model, data[rank][number])
                loss.backward()
                losses[rank].append(loss.item())
            grads.append([torch.cat([param.grad.reshape(-1) for param in params]) for params in blocks])
            model.zero_grad()
        for i, params in enumerate(blocks):
            speeds[i] = MOMENTUM * speeds[i] + combine(torch.stack([rows[i] for rows in grads]))
            moves = speeds[i].split([param.numel() for param in params])
            for param, move in zip(params, moves, strict=True):
                param.data.sub_(LR * move.view(param.shape))
        at += count
    return [torch.cat([param.detach().reshape(-1) for param in params]) for params in blocks], losses


def own_slices(rows: torch.Tensor) -> torch.Tensor:
    """Of each rank's gradient only its own slice."""
    share = -(-rows.shape[1] // len(rows))
    return torch.cat([row[rank * share:(rank + 1) * share] for rank, row in enumerate(rows)])


def alive(ledger: Ledger) -> int:
    """Bytes. A collective's thread may hold its tensors for a moment after the collective is done: look again."""
    seen = []
    for pause in (0, 0.005, 0.02):
        time.sleep(pause)
        seen.append(ledger.now().total)
    return min(seen)


def guard_reads(model: nn.Module) -> None:
    """Raise Wrong where a block would read freed memory, which ends a process without a word. Comes after the hooks of
    the answer."""
    def look(number, block, what):
        if any(param.untyped_storage().nbytes() < 4 * param.numel() for param in block.parameters()):
            raise Wrong(f"{what} of block {number} begins, and its parameters have no memory. Its hooks must gather "
                        "its own row before. (A function that is defined in a loop sees the last value of the loop's "
                        "variables.)")

    for number, block in enumerate(model):
        def before(block, inputs, number=number):
            look(number, block, "the forward")

        def after(block, inputs, output, number=number):
            if output.requires_grad:  # on the node, whose hooks come after those of the tensor, in order
                output.grad_fn.register_prehook(lambda _: look(number, block, "the backward"))

        block.register_forward_pre_hook(before)
        block.register_forward_hook(after)


@contextmanager
def counted() -> Iterator[Counter]:
    """Inside, how often torch's own collectives are called, by verb: a gather within a gather is one."""
    calls, inside, kept = Counter(), [], {}

    def counts(verb, fn):
        def call(*args, **kwargs):
            calls[verb] += not inside
            inside.append(verb)
            try:
                return fn(*args, **kwargs)
            finally:
                inside.pop()
        return call

    for name in dir(dist):
        verb = next((verb for verb in ("all_gather", "reduce_scatter", "all_reduce") if name.startswith(verb)), None)
        if verb and callable(getattr(dist, name)):
            kept[name] = getattr(dist, name)
            setattr(dist, name, counts(verb, kept[name]))
    try:
        yield calls
    finally:
        for name, fn in kept.items():
            setattr(dist, name, fn)


def see_stack(shard_stack) -> dict:
    """Train a sharded stack on this rank, with data of its own; what it holds, and when."""
    rank, world = dist.get_rank(), dist.get_world_size()
    with Ledger() as ledger, counted() as calls:
        model, data = make_stack(), batches(rank)
        ledger.track(model, data)
        own = sum(x.nbytes for x in data)
        shards = shard_stack(model)
        found = {"shapes": [tuple(shard.shape) if torch.is_tensor(shard) else None for shard in shards],
                 "trainable": all(isinstance(shard, torch.Tensor) and shard.is_leaf and shard.requires_grad
                                  for shard in shards)}
        if found["shapes"] != [(size,) for size in sizes(world)] or not found["trainable"]:
            return found
        found["without memory"] = any(shard.untyped_storage().nbytes() < shard.nbytes for shard in shards)
        if found["without memory"]:
            return found
        guard_reads(model)
        found["start"] = alive(ledger) - own
        optimizer = torch.optim.SGD(shards, lr=LR, momentum=MOMENTUM)
        found["losses"], at, moments, largest = [], 0, [], 4 * world * max(sizes(world))
        for count in PLAN:
            for x in data[at:at + count]:
                calls.clear()
                before = alive(ledger)
                ledger.reset_peak()
                loss = loss_of(model, x)
                moment = {"forward peak": ledger.peak - before, "after forward": alive(ledger) - before}
                moments.append(moment)
                if moment["after forward"] > 4 * largest:
                    return found | {"moments": moments}
                ledger.reset_peak()
                loss.backward()
                moment["backward peak"] = ledger.peak - before
                found["losses"].append(loss.item())
                del loss
                moment["after backward"] = alive(ledger) - own
                moment["calls"] = dict(calls)
                moment["no grad"] = [i for i, shard in enumerate(shards) if shard.grad is None]
                if moment["no grad"]:
                    return found | {"moments": moments}
            at += count
            optimizer.step()
            optimizer.zero_grad()
        found["between"] = alive(ledger) - own
        with torch.no_grad():
            before = alive(ledger)
            ledger.reset_peak()
            out = loss_of(model, data[0])
            found["evaluation"], found["evaluation peak"] = out.item(), ledger.peak - before
            del out
            found["after evaluation"] = alive(ledger) - before
        found["rows"] = [shard.detach().clone() for shard in shards]
    return found | {"moments": moments}


def judge_stack(lab: Lab, world: int) -> None:
    found = lab.run(see_stack, world=world)
    shares, model = sizes(world), make_stack()
    share_bytes, whole = 4 * sum(shares), 4 * world * sum(shares)
    block = 4 * world * max(shares)  # the largest
    for rank, saw in enumerate(found):
        here = f"rank {rank} of {world}:"
        right = [(size,) for size in shares]
        if saw["shapes"] != right:
            elements = [sum(param.numel() for param in each.parameters()) for each in model]
            rounded = [(n // world,) for n in elements]
            lengths = [shape and shape[0] for shape in saw["shapes"]]
            why = ("You rounded down, and the last elements of a block belong to nobody: round up and pad."
                   if saw["shapes"] == rounded else "You cut nothing: every rank has whole rows."
                   if lengths in (elements, [world * n for n in shares]) else "")
            lab.wrong(f"{here} the shards have the shapes {saw['shapes']}, and {right} are right: one shard a block, "
                      f"flat, ceil(n / {world}) elements. {why}".rstrip())
        if not saw["trainable"]:
            lab.wrong(f"{here} an optimizer cannot train the shards: each must be a leaf that requires a gradient, "
                      "such as `nn.Parameter(row[mine].clone())`.")
        if saw["without memory"]:
            lab.wrong(f"{here} a shard has no memory: it is a view of a row that was freed. The shard is the only copy "
                      "that stays: clone it.")
        if saw["start"] > share_bytes + block // 2:
            views = saw["start"] in range(whole, whole + 600)
            why = ("Are the shards views of the whole rows? A view keeps all of the memory it looks at: clone it."
                   if views else "Where is the memory of the parameters, whole?")
            lab.wrong(f"{here} before the first step it holds {saw['start']:_} bytes, and {share_bytes:_} are right, "
                      f"its shards. {why}")
        for number, moment in enumerate(saw["moments"], start=1):
            _judge_moment(moment, f"{here} micro-batch {number}:", share_bytes, whole, block, lab)
        _judge_calls(saw["moments"][0]["calls"], here, lab)
    _judge_values(found, world, lab)
    for rank, saw in enumerate(found):
        here = f"rank {rank} of {world}:"
        if saw["between"] > 2 * share_bytes + block // 2:
            lab.wrong(f"{here} after a step and `zero_grad()` it holds {saw['between']:_} bytes, and "
                      f"{2 * share_bytes:_} are right: its shards and SGD's momentum.")
        if saw["after evaluation"] > block // 2 or saw["evaluation peak"] > 4 * block:
            lab.wrong(f"{here} an evaluation under `torch.no_grad()` leaves {saw['after evaluation']:_} bytes behind: "
                      "nothing may stay gathered when no backward follows.")


def _judge_moment(moment: dict, here: str, share: int, whole: int, block: int, lab: Lab) -> None:
    largest = f"its largest block has {block:_} bytes and the model {whole:_}"
    if moment["after forward"] > 4 * block:
        lab.wrong(f"{here} the forward left {moment['after forward']:_} bytes behind ({largest}): the blocks' whole "
                  "parameters are still there. Free the storage after each block. If you give the parameters another "
                  "tensor instead, the old memory lives on, because autograd saved views of it.")
    if moment["forward peak"] > 4 * block:
        lab.wrong(f"{here} the forward took {moment['forward peak']:_} bytes at its peak ({largest}): gather a block "
                  "just before it computes, and free it before the next.")
    if moment["no grad"]:
        lab.wrong(f"{here} after the backward the shard of block {moment['no grad'][0]} has no `.grad`: the optimizer "
                  "has nothing to step.")
    if moment["after backward"] > 3 * share + 2 * block:
        lab.wrong(f"{here} after the backward it holds {moment['after backward']:_} bytes ({largest}): whole "
                  "parameters or whole gradients are still there. When a block's gradients are reduced, set each "
                  "parameter's `.grad` to None, and free the storage again.")
    if moment["backward peak"] > 6 * block + share:
        lab.wrong(f"{here} the backward took {moment['backward peak']:_} bytes at its peak ({largest}): reduce and "
                  "free a block as soon as its own backward is over, not at the end.")


def _judge_calls(calls: dict[str, int], here: str, lab: Lab) -> None:
    blocks = len(WIDTHS)
    step = f"in a forward and a backward of {blocks} blocks"
    if calls.get("all_reduce", 0) >= blocks:
        lab.wrong(f"{here} it called `all_reduce` {calls['all_reduce']} times {step}. That brings the whole sum to "
                  "every rank, and sends twice as much; a rank needs its own slice alone, which is a reduce-scatter.")
    if calls.get("all_gather", 0) > 2 * blocks:
        lab.wrong(f"{here} it gathered {calls['all_gather']} times {step}: twice a block is right.")
    if calls.get("reduce_scatter", 0) > blocks:
        lab.wrong(f"{here} it reduce-scattered {calls['reduce_scatter']} times {step}: once a block is right, when all "
                  "its gradients are there.")


def _judge_values(found: list[dict], world: int, lab: Lab) -> None:
    rows = [torch.cat(parts) for parts in zip(*(saw["rows"] for saw in found), strict=True)]

    def close(wanted: list[torch.Tensor]) -> bool:
        return all(bool((row[:len(right)] - right).abs().max() < 1e-5) for row, right in zip(rows, wanted, strict=True))

    right, losses = unsharded(world, lambda rows: rows.mean(0))
    if close(right):
        return
    why = [sentence for sentence, combine, last_only in (
        ("You summed the gradients of the ranks and never divided by their number: that is a learning rate "
         f"{world} times as large.", lambda rows: rows.sum(0), False),
        ("You divided by the number of ranks twice.", lambda rows: rows.mean(0) / world, False),
        ("Each shard was moved by its own rank's gradient alone: the sum over the ranks is missing.",
         own_slices, False),
        ("Each shard was moved by its own rank's gradient alone: the sum over the ranks is missing.",
         lambda rows: own_slices(rows) / world, False),
        ("Every rank got the gradients of rank 0.", lambda rows: rows[0], False),
        ("Of two backwards before a step only the last one counted: add to the shard's `.grad` when there is one.",
         lambda rows: rows.mean(0), True),
        ("Nothing moved.", lambda rows: 0 * rows[0], False),
    ) if close(unsharded(world, combine, last_only)[0])]
    for rank, saw in enumerate(found):
        wrong = [i for i, (a, b) in enumerate(zip(saw["losses"], losses[rank], strict=True)) if not abs(a - b) < 1e-5]
        if wrong and not why:
            lab.wrong(f"rank {rank} of {world}: loss number {wrong[0] + 1} is {saw['losses'][wrong[0]]:.5f}, and the "
                      f"unsharded model has {losses[rank][wrong[0]]:.5f}."
                      + (" The very first forward is wrong: do the parameters view the gathered row in the right order?"
                         if not wrong[0] else ""))
    block = next(i for i, row in enumerate(rows) if not (row[:len(right[i])] - right[i]).abs().max() < 1e-5)
    came, wanted, why = rows[block][0].item(), right[block][0].item(), "".join(why[:1])
    lab.wrong(f"after {len(PLAN)} steps on {world} ranks, each with data of its own, block {block} is not as in the "
              f"unsharded model: its first element is {came:.5f}, and {wanted:.5f} is right. {why}".rstrip())

