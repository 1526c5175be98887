"""Wrong answers of chapter 07."""

import math

import torch
import torch.distributed as dist
from torch import nn

from wrong_answers import wrong
from zerocourse import shard as package_shard
from zerocourse.zero.stage3 import Stage3

# 7.1 ----------------------------------------------------------------------------------------------------------------

@wrong("7.1", "gathered once for a forward and its backward")
def one_gather(units, ranks, micro_batches, reshard_after_forward):
    once = (ranks - 1) * sum(math.ceil(n / ranks) for n in units)
    return {"all_gather": once * micro_batches, "reduce_scatter": once * micro_batches}


@wrong("7.1", "although the parameters were kept")
def two_gathers(units, ranks, micro_batches, reshard_after_forward):
    sent = {"all_gather": 0, "reduce_scatter": 0}
    for _ in range(micro_batches):
        for n in units:
            share = (n + ranks - 1) // ranks
            sent["all_gather"] += 2 * share * (ranks - 1)
            sent["reduce_scatter"] += share * (ranks - 1)
    return sent


@wrong("7.1", "has no room for a whole gradient")
def reduced_once(units, ranks, micro_batches, reshard_after_forward):
    once = (ranks - 1) * sum(-(-n // ranks) for n in units)
    return {"all_gather": once * micro_batches * (1 + reshard_after_forward), "reduce_scatter": once}


@wrong("7.1", "kept the parameters over all micro-batches")
def kept_over_micro_batches(units, ranks, micro_batches, reshard_after_forward):
    once = (ranks - 1) * sum(-(-n // ranks) for n in units)
    return {"all_gather": once * (2 * micro_batches if reshard_after_forward else 1),
            "reduce_scatter": once * micro_batches}


@wrong("7.1", "itself among them")
def sends_to_itself(units, ranks, micro_batches, reshard_after_forward):
    padded = sum(math.ceil(n / ranks) * ranks for n in units)
    return {"all_gather": padded * micro_batches * (2 if reshard_after_forward else 1),
            "reduce_scatter": padded * micro_batches}


@wrong("7.1", "each of the N - 1 others needs it")
def share_once(units, ranks, micro_batches, reshard_after_forward):
    share = 0 if ranks == 1 else sum(math.ceil(n / ranks) for n in units)
    return {"all_gather": share * micro_batches * (1 + reshard_after_forward), "reduce_scatter": share * micro_batches}


@wrong("7.1", "each is padded by itself")
def sum_is_cut(units, ranks, micro_batches, reshard_after_forward):
    once = -(-sum(units) // ranks) * (ranks - 1)
    return {"all_gather": once * micro_batches * (1 + reshard_after_forward), "reduce_scatter": once * micro_batches}


@wrong("7.1", "rounded a share down")
def rounded_down(units, ranks, micro_batches, reshard_after_forward):
    once = sum(n // ranks for n in units) * (ranks - 1)
    return {"all_gather": once * micro_batches * (1 + reshard_after_forward), "reduce_scatter": once * micro_batches}


# 7.2 ----------------------------------------------------------------------------------------------------------------

@wrong("7.2", "left out the root")
def no_root(root, blocks, prefetch, reshard_after_forward):
    return max(sum(blocks[i:i + prefetch + 1]) for i in range(len(blocks))) if reshard_after_forward else sum(blocks)


@wrong("7.2", "left out the block that computes")
def only_those_ahead(root, blocks, prefetch, reshard_after_forward):
    if not reshard_after_forward:
        return root + sum(blocks)
    return root + max(sum(blocks[i:i + prefetch]) for i in range(len(blocks)))


@wrong("7.2", "that are gathered ahead")
def one_at_a_time(root, blocks, prefetch, reshard_after_forward):
    return root + (max(blocks) if reshard_after_forward else sum(blocks))


@wrong("7.2", "one block too many")
def the_one_before_too(root, blocks, prefetch, reshard_after_forward):
    there = [sum(blocks[max(0, i - 1):i + prefetch + 1]) for i in range(len(blocks))]
    return root + (max(there) if reshard_after_forward else sum(blocks))


@wrong("7.2", "multiplied the largest block")
def times_the_largest(root, blocks, prefetch, reshard_after_forward):
    if not reshard_after_forward:
        return root + sum(blocks)
    return root + min(prefetch + 1, len(blocks)) * max(blocks)


@wrong("7.2", "only neighbours")
def the_largest_anywhere(root, blocks, prefetch, reshard_after_forward):
    if reshard_after_forward:
        blocks = sorted(blocks, reverse=True)[:prefetch + 1]
    return root + sum(blocks)


@wrong("7.2", "the first blocks alone")
def from_the_start(root, blocks, prefetch, reshard_after_forward):
    return root + sum(blocks[:prefetch + 1] if reshard_after_forward else blocks)


@wrong("7.2", "nothing is freed in the forward")
def flag_ignored(root, blocks, prefetch, reshard_after_forward):
    most = 0
    for i, _ in enumerate(blocks):
        most = max(most, sum(blocks[i:i + 1 + prefetch]))
    return most + root


# 7.3 ----------------------------------------------------------------------------------------------------------------

def _events(blocks, prefetch, backward_prefetch=None):
    events, there = [], set()
    for verb in ("forward", "backward"):
        order = blocks if verb == "forward" else blocks[::-1]
        depth = prefetch if verb == "forward" or backward_prefetch is None else backward_prefetch
        for i, name in enumerate(order):
            for other in order[i:i + depth + 1]:
                if other not in there:
                    there.add(other)
                    events.append(f"unshard {other}")
            events.append(f"{verb} {name}")
            if verb == "backward":
                events.append(f"reduce {name}")
            there.discard(name)
            events.append(f"reshard {name}")
    return events


@wrong("7.3", "gathered nothing ahead")
def nothing_ahead(blocks, prefetch):
    return _events(blocks, 0)


@wrong("7.3", "gathered ahead in the forward alone")
def backward_not_ahead(blocks, prefetch):
    return _events(blocks, prefetch, 0)


@wrong("7.3", "counted the block itself")
def one_less(blocks, prefetch):
    return _events(blocks, max(0, prefetch - 1))


@wrong("7.3", "at the beginning: then a rank holds")
def all_at_the_beginning(blocks, prefetch):
    return _events(blocks, len(blocks))


@wrong("7.3", "after the block computed")
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


@wrong("7.3", "that was there already")
def gathered_again(blocks, prefetch):
    events = []
    for verb, order in (("forward", blocks), ("backward", blocks[::-1])):
        for i, name in enumerate(order):
            events += [f"unshard {other}" for other in order[i:i + prefetch + 1]] + [f"{verb} {name}"]
            events += [f"reduce {name}", f"reshard {name}"] if verb == "backward" else [f"reshard {name}"]
    return events


@wrong("7.3", "did not gather again for the backward")
def backward_without_gather(blocks, prefetch):
    events = _events(blocks, prefetch)
    middle = events.index(f"reshard {blocks[-1]}") + 1
    return events[:middle] + [event for event in events[middle:] if not event.startswith("unshard")]


@wrong("7.3", "which is `reshard_after_forward=False`")
def kept_for_the_backward(blocks, prefetch):
    events, there = [], set()
    for i, name in enumerate(blocks):
        for other in blocks[i:i + prefetch + 1]:
            if other not in there:
                there.add(other)
                events.append(f"unshard {other}")
        events.append(f"forward {name}")
    for name in blocks[::-1]:
        events += [f"backward {name}", f"reduce {name}", f"reshard {name}"]
    return events


@wrong("7.3", "did not reshard after the forward")
def forward_without_reshard(blocks, prefetch):
    events = _events(blocks, prefetch)
    middle = events.index(f"reshard {blocks[-1]}") + 1
    return [event for event in events[:middle] if not event.startswith("reshard")] + events[middle:]


@wrong("7.3", "from the first block to the last")
def backward_forwards(blocks, prefetch):
    events = _events(blocks, prefetch)
    forward = events[:events.index(f"reshard {blocks[-1]}") + 1]
    backward = []
    for event in forward:
        verb, name = event.split()
        backward += [f"backward {name}", f"reduce {name}"] if verb == "forward" else [event]
    return forward + backward


@wrong("7.3", "resharded before you reduced")
def reduced_last(blocks, prefetch):
    events = []
    for event in _events(blocks, prefetch):
        if event.startswith("reduce"):
            events += [event.replace("reduce", "reshard"), event]
        elif events[-1:] != [event.replace("reshard", "reduce")]:
            events.append(event)
    return events


@wrong("7.3", "You never reduced")
def never_reduced(blocks, prefetch):
    return [event for event in _events(blocks, prefetch) if not event.startswith("reduce")]


# 7.4 ----------------------------------------------------------------------------------------------------------------

@wrong("7.4", "a view that was taken before keeps the old one")
class AnotherTensor:
    def free(full):
        full.data = torch.empty(0, dtype=full.dtype)


@wrong("7.4", "a view that was taken before keeps the old one")
class SetToNothing:
    def free(full):
        full.set_(torch.empty(0, dtype=full.dtype).untyped_storage(), 0, (0,), (1,))


@wrong("7.4", "a view that was taken before keeps the old one")
class AsLargeAsBefore:
    def free(full):
        full.data = torch.empty_like(full)


@wrong("7.4", "made the tensor shorter")
class ShorterTensor:
    def free(full):
        full.resize_(0)


@wrong("7.4", "Not one byte")
class Zeroed:
    def free(full):
        full.zero_()


@wrong("7.4", "Not one byte")
class Forgotten:
    def free(full):
        del full


@wrong("7.4", "You counted elements")
class Elements:
    def allocate(full):
        full.untyped_storage().resize_(full.numel())


@wrong("7.4", "You allocated 4 bytes an element")
class FourBytes:
    def allocate(full):
        full.untyped_storage().resize_(4 * full.numel())


@wrong("7.4", "gave `full` a new storage")
class NewStorage:
    def allocate(full):
        full.data = torch.empty(full.shape, dtype=full.dtype)


@wrong("7.4", "which must change nothing")
class Cleared:
    def allocate(full):
        full.untyped_storage().resize_(full.numel() * full.element_size())
        full.zero_()


@wrong("7.4", "after a second `allocate`")
class AllocatesMoreEachTime:
    def allocate(full):
        storage = full.untyped_storage()
        storage.resize_(storage.nbytes() + full.numel() * full.element_size())


# 7.5 ----------------------------------------------------------------------------------------------------------------

@wrong("7.5", "`flat.storage.allocate()` comes first")
class NotAllocated:
    def unshard(flat, comm):
        flat.full[flat.own] = flat.shard
        return comm.all_gather(flat.full, flat.layout, flat.name)


@wrong("7.5", "was not yet at its position")
class OwnSliceMissing:
    def unshard(flat, comm):
        flat.storage.allocate()
        return comm.all_gather(flat.full, flat.layout, flat.name)


@wrong("7.5", "was not yet at its position")
class OwnSliceTooLate:
    def unshard(flat, comm):
        flat.storage.allocate()
        handle = comm.all_gather(flat.full, flat.layout, flat.name)
        handle.wait()
        flat.full[flat.own].copy_(flat.shard)


@wrong("7.5", "was not yet at its position")
class SliceAtTheFront:
    def unshard(flat, comm):
        flat.storage.allocate()
        flat.full[:flat.shard.numel()].copy_(flat.shard)
        return comm.all_gather(flat.full, flat.layout, flat.name)


@wrong("7.5", "stands on another storage")
class FreshRow:
    def unshard(flat, comm):
        row = torch.zeros(flat.layout.padded, dtype=flat.dtype)
        row[flat.own] = flat.shard
        flat.full = row
        return comm.all_gather(row, flat.layout, flat.name)


@wrong("7.5", "nobody has its handle")
class HandleLost:
    def unshard(flat, comm):
        flat.storage.allocate()
        flat.full[flat.own].copy_(flat.shard)
        comm.all_gather(flat.full, flat.layout, flat.name)


@wrong("7.5", "The computation stands still")
class WaitsAndReturns:
    def unshard(flat, comm):
        flat.storage.allocate()
        flat.full[flat.own].copy_(flat.shard)
        handle = comm.all_gather(flat.full, flat.layout, flat.name)
        handle.wait()
        return handle


@wrong("7.5", "is a view of `flat.full`")
class ShardIsAView:
    def unshard(flat, comm):
        flat.storage.allocate()
        flat.full[flat.own].copy_(flat.shard)
        flat.shard = flat.full[flat.own]
        return comm.all_gather(flat.full, flat.layout, flat.name)


@wrong("7.5", "no `comm.all_gather` was called")
class NothingGathered:
    def unshard(flat, comm):
        flat.storage.allocate()
        flat.full[flat.own].copy_(flat.shard)


@wrong("7.5", "must call the same collectives")
class OnlyTheOwnerGathers:
    def unshard(flat, comm):
        flat.storage.allocate()
        flat.full[flat.own].copy_(flat.shard)
        if comm.rank == 0:
            return comm.all_gather(flat.full, flat.layout, flat.name)


@wrong("7.5", "pointed the parameters at other memory")
class EmptyParameters:
    def reshard(flat):
        for param in flat.params.values():
            param.data = torch.empty(0)


@wrong("7.5", "let the name `flat.full` stand for another tensor")
class EmptyRow:
    def reshard(flat):
        flat.full = torch.empty(0)


@wrong("7.5", "overwrote the numbers")
class ZeroedRow:
    def reshard(flat):
        flat.full.zero_()


@wrong("7.5", "the memory of `flat.shard` is gone too")
class ShardFreedToo:
    def reshard(flat):
        flat.storage.free()
        flat.shard.untyped_storage().resize_(0)


@wrong("7.5", "brings it to the others")
class GathersInStep:
    def step(flats, comm, optimizer_step):
        result = optimizer_step()
        for flat in flats:
            flat.publish_shard()
            flat.storage.allocate()
            flat.full[flat.own].copy_(flat.shard)
            comm.all_gather(flat.full, flat.layout, flat.name).wait()
            flat.storage.free()
        return result


@wrong("7.5", "a model in bf16 did not change")
class NeverPublished:
    def step(flats, comm, optimizer_step):
        return optimizer_step()


@wrong("7.5", "a model in bf16 did not change")
class PublishedTooSoon:
    def step(flats, comm, optimizer_step):
        for flat in flats:
            flat.publish_shard()
        return optimizer_step()


@wrong("7.5", "each further call is a further step")
class StepForEachFlat:
    def step(flats, comm, optimizer_step):
        for flat in flats:
            result = optimizer_step()
            flat.publish_shard()
        return result


@wrong("7.5", "the loss of a closure")
class NothingReturned:
    def step(flats, comm, optimizer_step):
        optimizer_step()
        for flat in flats:
            flat.publish_shard()


@wrong("7.5", "must call the same collectives")
class OnlyTheOwnerGathersAndWaits:
    def unshard(flat, comm):
        flat.storage.allocate()
        flat.full[flat.own].copy_(flat.shard)
        if flat.rank > 0:
            return
        comm.all_gather(flat.full, flat.layout, flat.name).wait()


@wrong("7.5", "elements by all_gather in a step")
class RootIsKept:
    def reshard(flat):
        if not flat.name.startswith("root"):
            flat.storage.free()


@wrong("7.5", "with `flat.storage`, on every rank")
class FreedOnRankZero:
    def reshard(flat):
        if flat.rank == 0:
            flat.storage.free()


@wrong("7.5", "write it yourself")
class Delegates:
    unshard = staticmethod(Stage3.ops.unshard)
    step = staticmethod(Stage3.ops.step)


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


@wrong("7.6", "No backward follows there")
def no_evaluation(block, unshard, reshard, reduce):
    _attach(block, unshard, reshard, reduce, evaluates=False)


@wrong("7.6", "an evaluation under `torch.no_grad()` of blocks")
def kept_in_evaluation_by_hooks(block, unshard, reshard, reduce):
    def after(block, inputs, output):
        if output.requires_grad:
            reshard()
            output.register_hook(lambda gradient: unshard())

    waiting = set(block.parameters())

    def on_gradient(param):
        waiting.remove(param)
        if not waiting:
            waiting.update(block.parameters())
            reduce()
            reshard()

    block.register_forward_pre_hook(lambda block, inputs: unshard())
    block.register_forward_hook(after)
    for param in block.parameters():
        param.register_post_accumulate_grad_hook(on_gradient)


@wrong("7.6", "and `model.eval()` of blocks")
def kept_unless_training(block, unshard, reshard, reduce):
    def after():
        if block.training:
            reshard()

    _attach(block, unshard, reshard, reduce, frees=False)
    block.register_forward_hook(lambda *_: after())


@wrong("7.6", "gradients are recorded there too")
def trains_in_training_mode_alone(block, unshard, reshard, reduce):
    def when(training, function):
        def call(*_):
            if block.training == training:
                function()
        return call

    _attach(block, when(True, unshard), when(True, reshard), when(True, reduce))
    block.register_forward_pre_hook(when(False, unshard))
    block.register_forward_hook(when(False, reshard))


@wrong("7.6", "torch calls it at once")
def full_backward_hook_for_both(block, unshard, reshard, reduce):
    def ended(block, input_gradients, output_gradients):
        reduce()
        reshard()

    block.register_forward_pre_hook(lambda block, inputs: unshard())
    block.register_forward_hook(lambda block, inputs, output: reshard())
    block.register_full_backward_pre_hook(lambda block, gradients: unshard())
    block.register_full_backward_hook(ended)


@wrong("7.6", "must begin at 0 again")
def count_goes_on(block, unshard, reshard, reduce):
    _attach(block, unshard, reshard, reduce, resets=False)


@wrong("7.6", "gradients were there: wait for all")
def reduced_by_parameter(block, unshard, reshard, reduce):
    block.register_forward_pre_hook(lambda *_: unshard())
    block.register_forward_hook(lambda *_: reshard())
    block.register_full_backward_pre_hook(lambda *_: unshard())
    params = list(block.parameters())
    for param in params:
        def on_gradient(param):
            if param is params[-1]:
                reduce()
                reshard()

        param.register_post_accumulate_grad_hook(on_gradient)


@wrong("7.6", "4 times: once")
def reduced_for_every_parameter(block, unshard, reshard, reduce):
    block.register_forward_pre_hook(lambda block, inputs: unshard())
    block.register_forward_hook(lambda block, inputs, output: reshard())
    block.register_full_backward_pre_hook(lambda block, gradients: unshard())
    arrived = []

    def on_gradient(param):
        arrived.append(param)
        reduce()
        if len(arrived) % 4 == 0:
            reshard()

    for param in block.parameters():
        param.register_post_accumulate_grad_hook(on_gradient)


@wrong("7.6", "the gradient of the block's input needs them")
def backward_without_weights(block, unshard, reshard, reduce):
    _attach(block, unshard, reshard, reduce, again=False)


@wrong("7.6", "after the last block the whole model")
def kept_after_forward(block, unshard, reshard, reduce):
    _attach(block, unshard, reshard, reduce, frees=False)


@wrong("7.6", "reduce first")
def resharded_first(block, unshard, reshard, reduce):
    _attach(block, unshard, reshard, reduce, swapped=True)


@wrong("7.6", "`unshard` came after that")
def unshard_after_forward(block, unshard, reshard, reduce):
    block.register_forward_hook(lambda block, inputs, output: (unshard(), reshard())[2:] or None)
    _attach(block, lambda: None, lambda: None, reduce)


@wrong("7.6", "weights must be there before")
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


@wrong("7.6", "torch calls it at once")
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


@wrong("7.6", "`reduce` was never called")
def never_reduces(block, unshard, reshard, reduce):
    _attach(block, unshard, reshard, lambda: None)


@wrong("7.6", "do not replace `forward`")
def another_forward(block, unshard, reshard, reduce):
    forward = block.forward

    def between(x):
        unshard()
        out = forward(x)
        reshard()
        if out.requires_grad:
            out.register_hook(lambda gradient: unshard())
        return out

    block.forward = between
    _attach(block, lambda: None, lambda: None, reduce, again=False)


@wrong("7.6", "pile up")
def hooks_in_every_forward(block, unshard, reshard, reduce):
    params, count = list(block.parameters()), [0]

    def on_gradient(param):
        count[0] += 1
        if count[0] == len(params):
            count[0] = 0
            reduce()
            reshard()

    def after(block, inputs, output):
        reshard()
        if output.requires_grad:
            output.register_hook(lambda gradient: unshard())
            for param in params:
                param.register_post_accumulate_grad_hook(on_gradient)

    block.register_forward_pre_hook(lambda block, inputs: unshard())
    block.register_forward_hook(after)


@wrong("7.6", "takes 0 positional arguments but 3 were given")
def hands_over_what_a_hook_gets(block, unshard, reshard, reduce):
    block.register_forward_pre_hook(lambda block, inputs: unshard())
    block.register_forward_hook(reshard)


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


def _summed(self, gradients):
    mine = torch.empty(self.own)
    _scatter(mine, gradients)
    return mine


@wrong("7.7", "never divided by their number")
def summed(model):
    return _stack(model, reduced=_summed)


@wrong("7.7", "the sum over the ranks is missing")
def never_summed(model):
    return _stack(model, reduced=lambda self, gradients: self.cut(gradients))


@wrong("7.7", "divided by the number of ranks twice")
def divided_twice(model):
    return _stack(model, reduced=lambda self, gradients: _Shard.reduced(self, gradients / self.ranks))


@wrong("7.7", "which is a reduce-scatter")
def all_reduced(model):
    def reduced(self, gradients):
        dist.all_reduce(gradients)
        return self.cut(gradients / self.ranks)
    return _stack(model, reduced=reduced)


@wrong("7.7", "twice a block is right")
def gathered_before_and_after(model):
    def forward_ended(self):
        self.unshard()
        self.reshard()
    return _stack(model, forward_ended=forward_ended)


@wrong("7.7", "only the last one counted")
def overwritten(model):
    def add(self, mine):
        self.shard.grad = mine
    return _stack(model, add=add)


@wrong("7.7", "belong to nobody")
def not_padded(model):
    rank, ranks, shards = dist.get_rank(), dist.get_world_size(), []
    for block in model:
        row = torch.cat([param.detach().flatten() for param in block.parameters()])
        own = len(row) // ranks
        shards.append(nn.Parameter(row[rank * own:(rank + 1) * own].clone()))
    return shards


@wrong("7.7", "every rank has whole rows")
def not_cut(model):
    return [nn.Parameter(torch.cat([param.detach().flatten() for param in block.parameters()])) for block in model]


@wrong("7.7", "it is a view of a row that was freed")
def shard_is_a_view(model):
    return _stack(model, cut=lambda self, row: row[self.rank * self.own:][:self.own])


@wrong("7.7", "A view keeps all of the memory")
def nothing_freed(model):
    return _stack(model, cut=lambda self, row: row[self.rank * self.own:][:self.own], reshard=lambda self: None)


@wrong("7.7", "because autograd saved views of it")
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


@wrong("7.7", "because autograd saved views of it")
def kept_in_the_forward(model):
    return _stack(model, forward_ended=lambda self: None)


@wrong("7.7", "an evaluation under")
def kept_in_evaluation(model):
    def forward_ended(self):
        if torch.is_grad_enabled():
            self.reshard()
    return _stack(model, forward_ended=forward_ended)


@wrong("7.7", "set each parameter's `.grad` to")
def gradients_stay(model):
    def drop(self):
        self.kept = [param.grad for param in self.params]
        _Shard.drop(self)
    return _stack(model, drop=drop)


@wrong("7.7", "gather a block just before it computes")
def all_at_the_start(model):
    made = []

    def unshard(self):
        for other in made if self is made[0] and self.params[-1].grad is None else [self]:
            _Shard.unshard(other)

    kind = type("Changed", (_Shard,), {"unshard": unshard})
    made += [kind(block) for block in model]
    return [each.shard for each in made]


@wrong("7.7", "as soon as its own backward is over, not at the end")
def reduced_at_the_end(model):
    made = []

    def backward_ended(self):
        if self is made[0]:
            for other in made[::-1]:
                _Shard.backward_ended(other)

    kind = type("Changed", (_Shard,), {"backward_ended": backward_ended})
    made += [kind(block) for block in model]
    return [each.shard for each in made]


@wrong("7.7", "sees the last value of the loop")
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


@wrong("7.7", "the same collectives")
def only_the_first_rank_gathers(model):
    def unshard(self):
        self.row.untyped_storage().resize_(4 * len(self.row))
        if self.rank == 0:
            _gather(self.row, self.shard.data)
    return _stack(model, unshard=unshard)


@wrong("7.7", "has no `.grad`")
def gradient_nowhere(model):
    return _stack(model, add=lambda self, mine: None)


@wrong("7.7", "TypeError")
def adds_to_none(model):
    def add(self, mine):
        self.shard.grad += mine
    return _stack(model, add=add)


@wrong("7.7", "write it yourself")
def delegates(model):
    sharded, _ = package_shard(model, None, stage=3)
    return [nn.Parameter(flat.shard) for flat in sharded.zero.flats]
