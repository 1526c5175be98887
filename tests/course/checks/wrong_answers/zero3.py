"""Wrong answers of chapter 07."""

import math

import torch
import torch.distributed as dist
from torch import nn

from wrong_answers import wrong

# 7.1 ----------------------------------------------------------------------------------------------------------------

@wrong("7.1", "gathered twice")
def two_gathers(units, ranks, micro_batches, reshard_after_forward):
    sent = {"all_gather": 0, "reduce_scatter": 0}
    for _ in range(micro_batches):
        for n in units:
            share = (n + ranks - 1) // ranks
            sent["all_gather"] += 2 * share * (ranks - 1)
            sent["reduce_scatter"] += share * (ranks - 1)
    return sent


@wrong("7.1", "no padding")
def as_in_the_paper(units, ranks, micro_batches, reshard_after_forward):
    volume = micro_batches * sum(units) * (ranks - 1) // ranks
    return {"all_gather": volume * (1 + reshard_after_forward), "reduce_scatter": volume}


# 7.2 ----------------------------------------------------------------------------------------------------------------

@wrong("7.2", "one too many")
def the_one_before_too(root, blocks, prefetch, reshard_after_forward):
    there = [sum(blocks[max(0, i - 1):i + prefetch + 1]) for i in range(len(blocks))]
    return root + (max(there) if reshard_after_forward else sum(blocks))


# 7.3 ----------------------------------------------------------------------------------------------------------------

@wrong("7.3", "ahead too late")
def ahead_too_late(blocks, prefetch):
    events, there = [], set()
    for verb, order in (("forward", blocks), ("backward", list(reversed(blocks)))):
        for i, name in enumerate(order):
            if name not in there:
                events.append("unshard " + name)
            events.append(verb + " " + name)
            for other in order[i + 1:i + 1 + prefetch]:
                if other not in there:
                    there.add(other)
                    events.append("unshard " + other)
            events += ["reduce " + name] * (verb == "backward") + ["reshard " + name]
            there.discard(name)
    return events


@wrong("7.3", "looks forward")
def backward_with_the_same_window(blocks, prefetch):
    events, there = [], set()

    def gather(names):
        events.extend(f"unshard {name}" for name in names if name not in there)
        there.update(names)

    for i, name in enumerate(blocks):
        gather(blocks[i:i + prefetch + 1])
        events += [f"forward {name}", f"reshard {name}"]
        there.discard(name)
    for i in reversed(range(len(blocks))):
        gather(blocks[i:i + prefetch + 1])
        events += [f"{verb} {blocks[i]}" for verb in ("backward", "reduce", "reshard")]
        there.discard(blocks[i])
    return events


# 7.4 ----------------------------------------------------------------------------------------------------------------

@wrong("7.4", "shorter")
class ShorterTensor:
    def free(full):
        full.resize_(0)


@wrong("7.4", "cleared")
class ZeroedAgain:
    def allocate(full):
        full.untyped_storage().resize_(full.nbytes)
        torch.zeros(full.shape, dtype=full.dtype, out=full)


# 7.5 ----------------------------------------------------------------------------------------------------------------

@wrong("7.5", "slice missing")
class OwnSliceTooLate:
    def unshard(flat, comm):
        flat.storage.allocate()
        handle = comm.all_gather(flat.full, flat.layout, flat.name)
        handle.wait()
        flat.full[flat.own].copy_(flat.shard)


@wrong("7.5", "some kept")
class RootIsKept:
    def reshard(flat):
        if not flat.name.startswith("root"):
            flat.storage.free()


# 7.6 ----------------------------------------------------------------------------------------------------------------

def _attach(block, unshard, reshard, reduce, *, evaluates=True, resets=True, counts=True, frees=True, again=True,
            swapped=False):
    params, count = list(block.parameters()), [0]

    def after(block, inputs, output):
        if frees:
            reshard()
        if again and (output.requires_grad or not evaluates):
            output.register_hook(lambda gradient: unshard())

    def on_gradient(param):
        count[0] += 1
        if count[0] == len(params) or not counts:
            if resets:
                count[0] = 0
            for call in (reshard, reduce) if swapped else (reduce, reshard):
                call()

    block.register_forward_pre_hook(lambda block, inputs: unshard())
    block.register_forward_hook(after)
    for param in params:
        param.register_post_accumulate_grad_hook(on_gradient)


@wrong("7.6", "full hook")
def full_backward_hook(block, unshard, reshard, reduce):
    block.register_forward_pre_hook(lambda block, inputs: unshard())
    block.register_forward_hook(lambda block, inputs, output: reshard())
    block.register_full_backward_pre_hook(lambda block, gradients: unshard())
    block.register_full_backward_hook(lambda block, inputs, outputs: reshard())
    waiting = set(block.parameters())

    def on_gradient(param):
        waiting.discard(param)
        if not waiting:
            waiting.update(block.parameters())
            reduce()

    for param in block.parameters():
        param.register_post_accumulate_grad_hook(on_gradient)


@wrong("7.6", "unshard with a gradient")
def gathered_with_the_first_gradient(block, unshard, reshard, reduce):
    left = [4]

    def on_gradient(param):
        if left[0] == 4:
            unshard()
        left[0] -= 1
        if left[0] == 0:
            left[0] = 4
            reduce()
            reshard()

    block.register_forward_pre_hook(lambda block, inputs: unshard())
    block.register_forward_hook(lambda block, inputs, output: reshard())
    for param in block.parameters():
        param.register_post_accumulate_grad_hook(on_gradient)


# 7.7 ----------------------------------------------------------------------------------------------------------------

def _gather(row, mine):
    (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(row, mine)


def _scatter(mine, row):
    (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(mine, row)


class _Shard:
    """A block's row, written so that a wrong answer changes one method."""

    def __init__(self, block):
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.params = list(block.parameters())
        self.sizes = [param.numel() for param in self.params]
        self.own = self.round(sum(self.sizes) / self.ranks)
        self.row = torch.cat([param.detach().flatten() for param in self.params])
        self.row = nn.functional.pad(self.row, (0, self.own * self.ranks - len(self.row)))
        for param, view in zip(self.params, self.row.split([*self.sizes, len(self.row) - sum(self.sizes)])):
            param.data = view.view_as(param)
        self.shard = nn.Parameter(self.cut(self.row))
        _attach(block, self.unshard, self.forward_ended, self.backward_ended)
        self.reshard()

    def round(self, elements):
        return math.ceil(elements)

    def cut(self, row):
        return row[self.rank * self.own:][:self.own].clone()

    def unshard(self):
        self.row.untyped_storage().resize_(4 * len(self.row))
        _gather(self.row, self.shard.data)

    def reshard(self):
        self.row.untyped_storage().resize_(0)

    def forward_ended(self):
        if self.params[0].grad is None:
            self.reshard()

    def backward_ended(self):
        gradients = torch.cat([param.grad.flatten() for param in self.params])
        gradients = nn.functional.pad(gradients, (0, len(self.row) - len(gradients)))
        mine = self.reduced(gradients)
        self.add(mine)
        self.drop()
        self.reshard()

    def reduced(self, gradients):
        mine = torch.empty(self.own)
        _scatter(mine, gradients / self.ranks)
        return mine

    def add(self, mine):
        if self.shard.grad is None:
            self.shard.grad = mine
        else:
            self.shard.grad += mine

    def drop(self):
        for param in self.params:
            param.grad = None


def _stack(model, **methods):
    """The answer that has these methods in place of the right ones."""
    kind = type("Changed", (_Shard,), methods)
    return [kind(block).shard for block in model]


@wrong("7.7", "kept in the forward")
def other_memory(model):
    def unshard(self):
        self.row = torch.empty(self.own * self.ranks)
        _gather(self.row, self.shard.data)
        for param, view in zip(self.params, self.row.split([*self.sizes, len(self.row) - sum(self.sizes)])):
            param.data = view.view(self.shapes[param])

    def reshard(self):
        self.shapes = getattr(self, "shapes", None) or {param: param.shape for param in self.params}
        for param in self.params:
            param.data = torch.empty(0)
        self.row = torch.empty(0)

    def backward_ended(self):
        gradients = torch.cat([param.grad.flatten() for param in self.params])
        self.add(self.reduced(nn.functional.pad(gradients, (0, self.own * self.ranks - len(gradients)))))
        self.drop()
        self.reshard()

    return _stack(model, unshard=unshard, reshard=reshard, backward_ended=backward_ended)


@wrong("7.7", "no memory")
def one_variable_for_all(model):
    shards = []
    for block in model:
        row = torch.cat([param.detach().flatten() for param in block.parameters()])
        ranks, rank = dist.get_world_size(), dist.get_rank()
        own, at = -(-len(row) // ranks), 0
        row = nn.functional.pad(row, (0, own * ranks - len(row)))
        for param in block.parameters():
            param.data = row[at:at + param.numel()].view(param.shape)
            at += param.numel()
        shard = nn.Parameter(row[rank * own:(rank + 1) * own].clone())
        row.untyped_storage().resize_(0)
        shards.append(shard)

        def unshard():
            row.untyped_storage().resize_(4 * row.numel())
            _gather(row, shard.detach())

        _attach(block, unshard, lambda: row.untyped_storage().resize_(0), lambda: None)
    return shards


# 7.8 ----------------------------------------------------------------------------------------------------------------

@wrong("7.8", "gathered each time")
def the_highest_stage():
    return dict(stage=3, prefetch=0, in_flight=0, micro_batches=2, checkpointing=True)


@wrong("7.8", "activations kept")
def many_small_buckets():
    return {"stage": 2, "bucket_size": 500, "in_flight": 0, "micro_batches": 4}


@wrong("7.8", "misused")
def as_in_a_ds_config():
    return {"stage": 2, "gradient_accumulation_steps": 4}


# 07.w1 --------------------------------------------------------------------------------------------------------------

@wrong("07.w1", "not allocated")
def copies_at_once(flat, comm):
    flat.full[flat.own].copy_(flat.shard)
    flat.storage.allocate()
    return comm.all_gather(flat.full, flat.layout, flat.name)


@wrong("07.w1", "slice missing")
def gathers_nothing(flat, comm):
    flat.storage.allocate()
    return comm.all_gather(flat.full, flat.layout, flat.name)


@wrong("07.w1", "waits")
def waits_for_it(flat, comm):
    flat.storage.allocate()
    flat.full[flat.own] = flat.shard
    comm.all_gather(flat.full, flat.layout, flat.name).wait()


@wrong("07.w1", "handle lost")
def returns_nothing(flat, comm):
    flat.storage.allocate()
    flat.full[flat.own] = flat.shard
    comm.all_gather(flat.full, flat.layout, flat.name)


@wrong("07.w1", "other storage")
def a_new_tensor(flat, comm):
    flat.full = torch.empty(flat.layout.padded)
    flat.full[flat.own] = flat.shard
    return comm.all_gather(flat.full, flat.layout, flat.name)


# 07.w2 --------------------------------------------------------------------------------------------------------------

@wrong("07.w2", "another tensor")
def no_full(flat):
    flat.full = torch.empty(0)


@wrong("07.w2", "not freed")
def deletes_a_name(flat):
    full = flat.full
    del full


@wrong("07.w2", "overwritten")
def zeros(flat):
    flat.full[:] = 0


@wrong("07.w2", "parameters moved")
def empty_parameters(flat):
    for param in flat.params.values():
        param.data = param.data.new_empty(0)


@wrong("07.w2", "written back")
def keeps_the_slice(flat):
    flat.shard[:] = flat.full[flat.own]
    flat.storage.free()
