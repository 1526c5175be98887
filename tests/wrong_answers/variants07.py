"""Wrong answers of chapter 07, the same mistakes by another hand."""

from collections import deque
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from wrong_answers import wrong

from zerocourse.zero import stage3

# 7.1 ----------------------------------------------------------------------------------------------------------------

def _share(unit, ranks):
    return unit // ranks + bool(unit % ranks)


@wrong("7.1", "gathered once for a forward and its backward")
def a_gather_for_each_micro_batch(units, ranks, micro_batches, reshard_after_forward):
    sent = dict.fromkeys(("all_gather", "reduce_scatter"), 0)
    for verb in sent:
        for unit in units:
            sent[verb] += micro_batches * (ranks - 1) * _share(unit, ranks)
    return sent


@wrong("7.1", "although the parameters were kept")
def forward_and_backward_each(units, ranks, micro_batches, reshard_after_forward):
    everything = sum(map(lambda unit: _share(unit, ranks) * (ranks - 1), units))
    forward = backward = reduction = everything * micro_batches
    return dict(all_gather=forward + backward, reduce_scatter=reduction)


@wrong("7.1", "has no room for a whole gradient")
def reduces_before_the_step(units, ranks, micro_batches, reshard_after_forward):
    gather = reduce = 0
    for batch in range(micro_batches):
        for unit in units:
            gather += (ranks - 1) * _share(unit, ranks)
            if reshard_after_forward:
                gather += (ranks - 1) * _share(unit, ranks)
            if batch == micro_batches - 1:
                reduce += (ranks - 1) * _share(unit, ranks)
    return {"all_gather": gather, "reduce_scatter": reduce}


@wrong("7.1", "kept the parameters over all micro-batches")
def there_since_the_first(units, ranks, micro_batches, reshard_after_forward):
    gather = reduce = 0
    for unit in units:
        there, message = False, (ranks - 1) * _share(unit, ranks)
        for _ in range(micro_batches):
            for _pass in ("forward", "backward"):
                if not there:
                    gather += message
                there = not reshard_after_forward
            reduce += message
    return {"all_gather": gather, "reduce_scatter": reduce}


@wrong("7.1", "itself among them")
def shares_times_ranks(units, ranks, micro_batches, reshard_after_forward):
    reduce = micro_batches * sum(ranks * _share(unit, ranks) for unit in units)
    return {"all_gather": reduce << int(reshard_after_forward), "reduce_scatter": reduce}


@wrong("7.1", "each of the N - 1 others needs it")
def its_share_goes_out(units, ranks, micro_batches, reshard_after_forward):
    once = sum(_share(unit, ranks) for unit in units) if ranks > 1 else 0
    gathers = [once] * micro_batches + [once] * micro_batches * reshard_after_forward
    return {"all_gather": sum(gathers), "reduce_scatter": once * micro_batches}


@wrong("7.1", "each is padded by itself")
def model_as_one_row(units, ranks, micro_batches, reshard_after_forward):
    share, rest = divmod(sum(units), ranks)
    share += rest > 0
    reduce = share * (ranks - 1) * micro_batches
    return {"all_gather": 2 * reduce if reshard_after_forward else reduce, "reduce_scatter": reduce}


@wrong("7.1", "rounded a share down")
def integer_division(units, ranks, micro_batches, reshard_after_forward):
    total = 0
    for unit in units:
        total += int(unit / ranks) * (ranks - 1) * micro_batches
    return {"all_gather": total * (2 - (not reshard_after_forward)), "reduce_scatter": total}


# 7.2 ----------------------------------------------------------------------------------------------------------------

def _windows(blocks, width):
    sums = [0, *accumulate(blocks)]
    return [sums[min(i + width, len(blocks))] - sums[i] for i in range(len(blocks))]


@wrong("7.2", "left out the root")
def blocks_only(root, blocks, prefetch, reshard_after_forward):
    return max(_windows(blocks, prefetch + 1 if reshard_after_forward else len(blocks)))


@wrong("7.2", "left out the block that computes")
def prefetched_only(root, blocks, prefetch, reshard_after_forward):
    width = prefetch if reshard_after_forward else len(blocks)
    return root + max(_windows(blocks, width))


@wrong("7.2", "that are gathered ahead")
def the_biggest_alone(root, blocks, prefetch, reshard_after_forward):
    most = there = root
    for block in blocks:
        there += block
        most = max(most, there)
        if reshard_after_forward:
            there -= block
    return most


@wrong("7.2", "one block too many")
def window_of_two_more(root, blocks, prefetch, reshard_after_forward):
    width = prefetch + 2 if reshard_after_forward else len(blocks)
    return root + max(_windows(blocks, width))


@wrong("7.2", "multiplied the largest block")
def number_times_size(root, blocks, prefetch, reshard_after_forward):
    if reshard_after_forward:
        number = prefetch + 1
        if number > len(blocks):
            number = len(blocks)
        return root + number * sorted(blocks)[-1]
    return sum([root, *blocks])


@wrong("7.2", "only neighbours")
def greedy(root, blocks, prefetch, reshard_after_forward):
    left, total = list(blocks), root
    for _ in range(prefetch + 1 if reshard_after_forward else len(blocks)):
        if left:
            total += left.pop(left.index(max(left)))
    return total


@wrong("7.2", "the first blocks alone")
def at_the_first_forward(root, blocks, prefetch, reshard_after_forward):
    gathered = [root]
    for i, block in enumerate(blocks):
        if i <= prefetch or not reshard_after_forward:
            gathered.append(block)
    return sum(gathered)


@wrong("7.2", "nothing is freed in the forward")
def flag_only_in_the_backward(root, blocks, prefetch, reshard_after_forward):
    forward = max(_windows(blocks, prefetch + 1))
    backward = max(_windows(blocks[::-1], prefetch + 1))
    return root + max(forward, backward)


# 7.3 ----------------------------------------------------------------------------------------------------------------

class _Log:
    def __init__(self):
        self.there, self.lines = [], []

    def unshard(self, *names):
        for name in names:
            if name not in self.there:
                self.there.append(name)
                self.lines.append("unshard " + name)

    def reshard(self, name):
        if name in self.there:
            self.there.remove(name)
        self.lines.append("reshard " + name)

    def say(self, *words):
        self.lines.append(" ".join(words))


@wrong("7.3", "gathered nothing ahead")
def one_by_one(blocks, prefetch):
    log = _Log()
    for name in blocks:
        log.unshard(name), log.say("forward", name), log.reshard(name)
    for name in reversed(blocks):
        log.unshard(name), log.say("backward", name), log.say("reduce", name), log.reshard(name)
    return log.lines


@wrong("7.3", "gathered ahead in the forward alone")
def ahead_only_forwards(blocks, prefetch):
    log, n = _Log(), len(blocks)
    for i in range(n):
        log.unshard(*blocks[i:min(n, i + 1 + prefetch)])
        log.say("forward", blocks[i])
        log.reshard(blocks[i])
    while n:
        n -= 1
        log.unshard(blocks[n])
        log.say("backward", blocks[n])
        log.say("reduce", blocks[n])
        log.reshard(blocks[n])
    return log.lines


@wrong("7.3", "after the block computed")
def prefetches_behind(blocks, prefetch):
    log = _Log()
    for verb, order in ("forward", list(blocks)), ("backward", list(blocks)[::-1]):
        for i in range(len(order)):
            log.unshard(order[i])
            log.say(verb, order[i])
            log.unshard(*order[i + 1:i + prefetch + 1])
            if verb == "backward":
                log.say("reduce", order[i])
            log.reshard(order[i])
    return log.lines


@wrong("7.3", "that was there already")
def never_looks(blocks, prefetch):
    lines = []
    for i in range(len(blocks)):
        for j in range(i, i + prefetch + 1):
            if j < len(blocks):
                lines.append("unshard " + blocks[j])
        lines.extend(["forward " + blocks[i], "reshard " + blocks[i]])
    for i in range(len(blocks) - 1, -1, -1):
        for j in range(i, i - prefetch - 1, -1):
            if j >= 0:
                lines.append("unshard " + blocks[j])
        lines.extend(["backward " + blocks[i], "reduce " + blocks[i], "reshard " + blocks[i]])
    return lines


@wrong("7.3", "did not gather again for the backward")
def set_is_never_emptied(blocks, prefetch):
    seen, lines = set(), []
    for verb, step in (("forward", 1), ("backward", -1)):
        order = blocks[::step]
        for i, name in enumerate(order):
            for other in order[i:i + prefetch + 1]:
                if other not in seen:
                    seen.add(other)
                    lines.append(f"unshard {other}")
            lines += [f"{verb} {name}", *([f"reduce {name}"] if step < 0 else []), f"reshard {name}"]
    return lines


@wrong("7.3", "which is `reshard_after_forward=False`")
def reshard_in_the_backward_only(blocks, prefetch):
    log = _Log()
    for i, name in enumerate(blocks):
        log.unshard(*blocks[i:i + prefetch + 1])
        log.say("forward", name)
    backwards = blocks[::-1]
    for i, name in enumerate(backwards):
        log.unshard(*backwards[i:i + prefetch + 1])
        log.say("backward", name)
        log.say("reduce", name)
        log.reshard(name)
    return log.lines


@wrong("7.3", "from the first block to the last")
def twice_the_same_order(blocks, prefetch):
    log = _Log()
    for words in (("forward",), ("backward", "reduce")):
        for i, name in enumerate(blocks):
            log.unshard(*blocks[i:i + prefetch + 1])
            for word in words:
                log.say(word, name)
            log.reshard(name)
    return log.lines


@wrong("7.3", "resharded before you reduced")
def reduce_at_the_end_of_a_block(blocks, prefetch):
    log = _Log()
    for verb, order in (("forward", blocks), ("backward", blocks[::-1])):
        for i, name in enumerate(order):
            log.unshard(*order[i:i + prefetch + 1])
            log.say(verb, name)
            log.reshard(name)
            if verb == "backward":
                log.say("reduce", name)
    return log.lines


@wrong("7.3", "counted the block itself")
def so_many_are_held(blocks, prefetch):
    lines = []
    for words, order in (("forward", "reshard"), blocks), (("backward", "reduce", "reshard"), blocks[::-1]):
        waiting, held = deque(order), set()
        for name in order:
            while waiting and (not held or len(held) < prefetch):
                held.add(waiting[0])
                lines.append("unshard " + waiting.popleft())
            lines += [f"{word} {name}" for word in words]
            held.remove(name)
    return lines


@wrong("7.3", "at the beginning: then a rank holds")
def the_model_comes_first(blocks, prefetch):
    lines, there = [f"unshard {name}" for name in blocks], dict.fromkeys(blocks)
    for verb, order in (("forward", blocks), ("backward", blocks[::-1])):
        for i, name in enumerate(order):
            missing = [other for other in order[i:i + 1 + prefetch] if other not in there]
            there.update(dict.fromkeys(missing))
            lines += [f"unshard {other}" for other in missing]
            lines.append(f"{verb} {name}")
            if verb == "backward":
                lines.append(f"reduce {name}")
            lines.append(f"reshard {name}")
            del there[name]
    return lines


@wrong("7.3", "did not reshard after the forward")
def reshard_is_for_the_backward(blocks, prefetch):
    def one_pass(order, *verbs):
        gathered = 0
        for i, name in enumerate(order):
            for other in order[gathered:i + prefetch + 1]:
                yield f"unshard {other}"
            gathered = i + prefetch + 1
            for verb in verbs:
                yield f"{verb} {name}"

    return [*one_pass(blocks, "forward"), *one_pass(blocks[::-1], "backward", "reduce", "reshard")]


@wrong("7.3", "You never reduced")
def backward_like_the_forward(blocks, prefetch):
    lines, there, there_and_back = [], [], {"forward": range(len(blocks)), "backward": range(len(blocks))[::-1]}
    for verb, numbers in there_and_back.items():
        for at, i in enumerate(numbers):
            for j in numbers[at:at + prefetch + 1]:
                if j not in there:
                    there.append(j)
                    lines.append(f"unshard {blocks[j]}")
            lines += [f"{verb} {blocks[i]}", f"reshard {blocks[i]}"]
            there.remove(i)
    return lines


@wrong("7.3", "You went by the names")
def sorted_names(blocks, prefetch):
    events, there = [], set()
    for verb, order in (("forward", blocks), ("backward", blocks[::-1])):
        for i, block in enumerate(order):
            wanted = set(order[i:i + 1 + prefetch]) - there
            for name in sorted(wanted, reverse=verb == "backward"):
                events.append(f"unshard {name}")
            there |= wanted
            events.append(f"{verb} {block}")
            if verb == "backward":
                events.append(f"reduce {block}")
            events.append(f"reshard {block}")
            there.discard(block)
    return events


# 7.4 ----------------------------------------------------------------------------------------------------------------

@wrong("7.4", "a view that was taken before keeps the old one")
class EmptyStorage:
    def free(full):
        full.data = full.data.new_empty(full.numel())[:0]


@wrong("7.4", "made the tensor shorter")
class NoElements:
    def free(full):
        with torch.no_grad():
            full.resize_([0 for _ in full.shape])


@wrong("7.4", "Not one byte")
class NameDeleted:
    def free(full):
        storage = full.untyped_storage()
        storage.fill_(0)
        full = None
        del storage


@wrong("7.4", "You counted elements")
class Products:
    def allocate(full):
        elements = 1
        for size in full.shape:
            elements *= size
        storage = full.untyped_storage()
        if storage.size() < elements:
            storage.resize_(elements)


@wrong("7.4", "You allocated 4 bytes an element")
class AlwaysFp32:
    def allocate(full):
        storage, nbytes = full.untyped_storage(), torch.float32.itemsize * full.numel()
        if storage.nbytes() != nbytes:
            storage.resize_(nbytes)


@wrong("7.4", "gave `full` a new storage")
class SetToNew:
    def allocate(full):
        if full.untyped_storage().size() == 0:
            with torch.no_grad():
                full.set_(torch.empty_like(full, device="cpu").untyped_storage(), 0, full.shape)


@wrong("7.4", "which must change nothing")
class ResizedTwice:
    def allocate(full):
        storage = full.untyped_storage()
        storage.resize_(0)
        storage.resize_(full.nbytes)
        full.fill_(0)


# 7.5 ----------------------------------------------------------------------------------------------------------------

@wrong("7.5", "was not yet at its position")
class CopiedAfterTheStart:
    def unshard(flat, comm):
        flat.storage.allocate()
        handle = comm.all_gather(flat.full, flat.layout, flat.name)
        flat.full[flat.own].copy_(flat.shard)
        return handle


@wrong("7.5", "stands on another storage")
class ZerosForFull:
    def unshard(flat, comm):
        flat.full = torch.zeros(flat.full.shape, dtype=flat.full.dtype)
        flat.full[flat.own].copy_(flat.shard)
        return comm.all_gather(flat.full, flat.layout, flat.name)


@wrong("7.5", "nobody has its handle")
class ReturnsTheRow:
    def unshard(flat, comm):
        flat.storage.allocate()
        flat.full[flat.own] = flat.shard
        handle = comm.all_gather(flat.full, flat.layout, flat.name)
        return flat.full if handle is None else None


@wrong("7.5", "overwrote the numbers")
class FilledWithNan:
    def reshard(flat):
        flat.full.copy_(torch.full_like(flat.full, float("nan")))


@wrong("7.5", "brings it to the others")
class LikeStageTwo:
    def step(flats, comm, optimizer_step):
        result, handles = optimizer_step(), []
        for flat in flats:
            flat.publish_shard()
            flat.storage.allocate()
            flat.full[flat.own] = flat.shard
            handles.append(comm.all_gather(flat.full, flat.layout, flat.name))
        for flat, handle in zip(flats, handles):
            handle.wait()
            flat.storage.free()
        return result


@wrong("7.5", "a model in bf16 did not change")
class PublishesTheFirst:
    def step(flats, comm, optimizer_step):
        flats = list(flats)
        while flats:
            flats.pop().publish_shard()
        return optimizer_step()


@wrong("7.5", "each further call is a further step")
class OneStepARow:
    def step(flats, comm, optimizer_step):
        results = []
        for flat in flats:
            results.append(optimizer_step())
        [flat.publish_shard() for flat in flats]
        return results[0]


@wrong("7.5", "1 of 2 flat buffers were updated")
class StepsTheFirst:
    def step(flats, comm, optimizer_step):
        result = optimizer_step(flats[0])
        for flat in flats:
            flat.publish_shard()
        return result


@wrong("7.5", "the loss of a closure")
class ReturnsTheFlats:
    def step(flats, comm, optimizer_step):
        optimizer_step()
        return [flat.publish_shard() for flat in flats][:0] or None


@wrong("7.5", "`flat.storage.allocate()` comes first")
class AllocatedWhileItTravels:
    def unshard(flat, comm):
        flat.full[flat.own].copy_(flat.shard)
        handle = comm.all_gather(flat.full, flat.layout, flat.name)
        flat.storage.allocate()
        return handle


@wrong("7.5", "The computation stands still")
class WaitsInOneLine:
    def unshard(flat, comm):
        flat.storage.allocate()
        flat.full[flat.own] = flat.shard
        return comm.all_gather(flat.full, flat.layout, flat.name).wait()


@wrong("7.5", "is a view of `flat.full`")
class ShardMovesIn:
    def unshard(flat, comm):
        flat.storage.allocate()
        place = flat.full[flat.own]
        place.copy_(flat.shard)
        flat.shard.data = place
        return comm.all_gather(flat.full, flat.layout, flat.name)


@wrong("7.5", "no `comm.all_gather` was called")
class OwnSliceEverywhere:
    def unshard(flat, comm):
        flat.storage.allocate()
        flat.full.copy_(flat.shard.repeat(flat.full.numel() // flat.shard.numel()))


@wrong("7.5", "must call the same collectives")
class TheFirstHasItInPlace:
    def unshard(flat, comm):
        flat.storage.allocate()
        flat.full[flat.own].copy_(flat.shard)
        return comm.all_gather(flat.full, flat.layout, flat.name) if flat.own.start > 0 else None


@wrong("7.5", "pointed the parameters at other memory")
class ParametersReadAsNan:
    def reshard(flat):
        for param in flat.params.values():
            nothing = param.new_full((), float("nan"), requires_grad=False)
            param.data = nothing.expand(param.shape)


@wrong("7.5", "let the name `flat.full` stand for another tensor")
class KeepsItsPart:
    def reshard(flat):
        mine = flat.full[flat.own].clone()
        flat.full = mine


@wrong("7.5", "the memory of `flat.shard` is gone too")
class NothingIsLeft:
    def reshard(flat):
        flat.storage.free()
        flat.shard.data = flat.shard.new_empty(0)


@wrong("7.5", "elements by all_gather in a step")
class EmbeddingsStay:
    def reshard(flat):
        if not any("wte" in name or "wpe" in name for name in flat.params):
            flat.storage.free()


@wrong("7.5", "with `flat.storage`, on every rank")
class TheFirstRankKeepsTheModel:
    def reshard(flat):
        if flat.own.start:
            flat.storage.free()


@wrong("7.5", "write it yourself")
class AsInTheChapter:
    def unshard(flat, comm):
        return stage3.unshard(flat, comm)

    def reshard(flat):
        stage3.reshard(flat)


@wrong("7.5", "`flat.shard` must not change")
class WritesBack:
    def unshard(flat, comm):
        flat.storage.allocate()
        flat.full[flat.own].copy_(flat.shard)
        return comm.all_gather(flat.full, flat.layout, flat.name)

    def reshard(flat):
        flat.shard.copy_(flat.full[flat.own])  # keep what is ours
        flat.storage.free()

    def step(flats, comm, optimizer_step):
        result = optimizer_step()
        for flat in flats:
            flat.publish_shard()
        return result


# 7.6 ----------------------------------------------------------------------------------------------------------------

class _Watch:
    """Right hooks, each a method."""

    def __init__(self, block, unshard, reshard, reduce):
        self.unshard, self.reshard, self.reduce = unshard, reshard, reduce
        self.missing = self.number = len([*block.parameters()])
        block.register_forward_pre_hook(self.begin)
        block.register_forward_hook(self.end)
        for p in block.parameters():
            p.register_post_accumulate_grad_hook(self.came)

    def begin(self, block, inputs):
        self.unshard()

    def end(self, block, inputs, output):
        self.reshard()
        if output.requires_grad:
            output.register_hook(self.back)

    def back(self, gradient):
        self.unshard()

    def came(self, p):
        self.missing -= 1
        if not self.missing:
            self.missing = self.number
            self.last()

    def last(self):
        self.reduce()
        self.reshard()


@wrong("7.6", "No backward follows there")
def hook_on_every_output(block, unshard, reshard, reduce):
    class Watch(_Watch):
        def end(self, block, inputs, output):
            output.register_hook(self.back)
            self.reshard()
    Watch(block, unshard, reshard, reduce)


@wrong("7.6", "an evaluation under `torch.no_grad()` of blocks")
def returns_early(block, unshard, reshard, reduce):
    class Watch(_Watch):
        def end(self, block, inputs, output):
            if not torch.is_grad_enabled():
                return
            super().end(block, inputs, output)
    Watch(block, unshard, reshard, reduce)


@wrong("7.6", "and `model.eval()` of blocks")
def hooks_for_training_alone(block, unshard, reshard, reduce):
    class Watch(_Watch):
        def begin(self, block, inputs):
            if block.training:
                super().begin(block, inputs)

        def end(self, block, inputs, output):
            if block.training:
                super().end(block, inputs, output)
    Watch(block, unshard, reshard, reduce)


@wrong("7.6", "must begin at 0 again")
def each_seen_once(block, unshard, reshard, reduce):
    seen, params = set(), set(block.parameters())

    class Watch(_Watch):
        def came(self, p):
            if p in seen:
                return
            seen.add(p)
            if seen == params:
                self.last()
    Watch(block, unshard, reshard, reduce)


@wrong("7.6", "gradients were there: wait for all")
def the_first_in_order(block, unshard, reshard, reduce):
    block.register_forward_pre_hook(lambda module, inputs: unshard())

    def after(module, inputs, output):
        reshard()
        if output.requires_grad:
            output.register_hook(lambda gradient: unshard())

    def ready(param):
        reduce()
        reshard()

    block.register_forward_hook(after)
    list(block.parameters())[-1].register_post_accumulate_grad_hook(ready)


@wrong("7.6", "the gradient of the block's input needs them")
def forward_hooks_and_gradients(block, unshard, reshard, reduce):
    left = []
    block.register_forward_pre_hook(lambda *_: unshard())
    block.register_forward_hook(lambda *_: reshard())

    def ready(param):
        left.append(param)
        if len(left) == sum(1 for _ in block.parameters()):
            left.clear()
            reduce()
            reshard()

    for param in block.parameters():
        param.register_post_accumulate_grad_hook(ready)


@wrong("7.6", "after the last block the whole model")
def kept_while_training(block, unshard, reshard, reduce):
    class Watch(_Watch):
        def end(self, block, inputs, output):
            if output.requires_grad:
                output.register_hook(self.back)
            else:
                self.reshard()
    Watch(block, unshard, reshard, reduce)


@wrong("7.6", "reduce first")
def freed_before_the_reduction(block, unshard, reshard, reduce):
    class Watch(_Watch):
        def last(self):
            self.reshard()
            self.reduce()
    Watch(block, unshard, reshard, reduce)


@wrong("7.6", "torch calls it at once")
def module_backward_hook(block, unshard, reshard, reduce):
    class Watch(_Watch):
        def last(self):
            pass
    watch = Watch(block, unshard, reshard, reduce)
    block.register_full_backward_hook(lambda module, inputs, outputs: _Watch.last(watch))


@wrong("7.6", "4 times: once")
def one_reduction_for_each(block, unshard, reshard, reduce):
    class Watch(_Watch):
        def last(self):
            for _ in block.parameters():
                self.reduce()
            self.reshard()
    Watch(block, unshard, reshard, reduce)


@wrong("7.6", "`unshard` came after that")
def two_forward_hooks(block, unshard, reshard, reduce):
    def when_it_computes(module, inputs, output):
        unshard()

    def when_it_computed(module, inputs, output):
        reshard()
        if output.requires_grad:
            output.register_hook(lambda gradient: unshard())

    def ready(param):
        if all(each.grad is not None for each in block.parameters()):
            reduce()
            reshard()

    for hook in when_it_computes, when_it_computed:
        block.register_forward_hook(hook)
    for param in block.parameters():
        param.register_post_accumulate_grad_hook(ready)


@wrong("7.6", "weights must be there before")
def any_gradient_begins_it(block, unshard, reshard, reduce):
    class Watch(_Watch):
        def end(self, block, inputs, output):
            self.reshard()
    watch = Watch(block, unshard, reshard, reduce)
    torch.autograd.graph.register_multi_grad_hook(list(block.parameters()), watch.back, mode="any")


@wrong("7.6", "`reduce` was never called")
def not_in_an_evaluation(block, unshard, reshard, reduce):
    class Watch(_Watch):
        def last(self):
            if torch.is_grad_enabled():
                self.reduce()
            self.reshard()
    Watch(block, unshard, reshard, reduce)


@wrong("7.6", "gradients are recorded there too")
def backward_announced_in_the_forward(block, unshard, reshard, reduce):
    awaited = set()

    def backward_begins(gradient):
        awaited.update(block.parameters())
        unshard()

    def computed(module, inputs, output):
        reshard()
        if module.training and output.requires_grad:
            output.register_hook(backward_begins)

    def ready(param):
        if param in awaited:
            awaited.remove(param)
            if not awaited:
                reduce()
                reshard()

    block.register_forward_pre_hook(lambda module, inputs: unshard())
    block.register_forward_hook(computed)
    for param in block.parameters():
        param.register_post_accumulate_grad_hook(ready)


# 7.7 ----------------------------------------------------------------------------------------------------------------

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def _build(model, *, gathered=None, cut=None, averaged=None, add=None, keep=None):
    """A right answer out of closures; the named ones may be replaced."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    cut = cut or (lambda row: row.chunk(ranks)[rank].clone())

    def scatter(row):
        out = row.new_empty(len(row) // ranks)
        _reduce_scatter(out, row / ranks)
        return out

    def plus(shard, mine):
        shard.grad = mine if shard.grad is None else shard.grad.add(mine)

    averaged, add = averaged or scatter, add or plus

    def one(block):
        params = list(block.parameters())
        sizes = [p.numel() for p in params]
        pad = -sum(sizes) % ranks
        row = F.pad(torch.cat([p.detach().ravel() for p in params]), (0, pad))
        for p, piece in zip(params, row.split([*sizes, pad])):
            p.data = piece.view_as(p)
        shard, nbytes = nn.Parameter(cut(row)), row.nbytes
        row.untyped_storage().resize_(0)

        def unshard():
            row.untyped_storage().resize_(nbytes)
            _all_gather(row, shard.detach())

        def reshard():
            if keep is None or not keep(block):
                row.untyped_storage().resize_(0)

        def reduce():
            gradients = F.pad(torch.cat([p.grad.ravel() for p in params]), (0, pad))
            for p in params:
                p.grad = None
            add(shard, averaged(gradients))

        _Watch(block, unshard, reshard, reduce)
        return shard

    return list(map(one, model))


@wrong("7.7", "never divided by their number")
def adds_and_keeps_the_sum(model):
    def averaged(row):
        out = torch.zeros(len(row) // dist.get_world_size())
        _reduce_scatter(out, row)
        return out
    return _build(model, averaged=averaged)


@wrong("7.7", "the sum over the ranks is missing")
def a_local_slice(model):
    return _build(model, averaged=lambda row: row.view(dist.get_world_size(), -1)[dist.get_rank()].clone())


@wrong("7.7", "divided by the number of ranks twice")
def mean_and_mean_again(model):
    def averaged(row):
        row /= dist.get_world_size()
        out = row.new_zeros(len(row) // dist.get_world_size())
        _reduce_scatter(out, row)
        return out.div_(dist.get_world_size())
    return _build(model, averaged=averaged)


@wrong("7.7", "which is a reduce-scatter")
def reduces_everything(model):
    def averaged(row):
        dist.all_reduce(row.div_(dist.get_world_size()))
        return row.chunk(dist.get_world_size())[dist.get_rank()].clone()
    return _build(model, averaged=averaged)


@wrong("7.7", "only the last one counted")
def copies_into_grad(model):
    def add(shard, mine):
        if shard.grad is None:
            shard.grad = torch.zeros_like(shard)
        shard.grad.copy_(mine)
    return _build(model, add=add)


@wrong("7.7", "it is a view of a row that was freed")
def shard_by_split(model):
    return _build(model, cut=lambda row: row.view(dist.get_world_size(), -1)[dist.get_rank()])


@wrong("7.7", "because autograd saved views of it")
def frees_in_the_backward_only(model):
    held = {}

    def keep(block):
        held[block] = torch.is_grad_enabled() and not held.get(block, False)
        return held[block]
    return _build(model, keep=keep)


@wrong("7.7", "TypeError")
def plus_without_looking(model):
    def add(shard, mine):
        shard.grad = shard.grad + mine
    return _build(model, add=add)
