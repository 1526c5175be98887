"""Wrong answers of chapter 13."""

import torch
from torch import nn

from wrong_answers import wrong


@wrong("13.1", "again everywhere")
def all_blocks_at_once(budget, layers, seq, width, kept, again, element):
    sample = 0
    for _ in range(layers):
        sample += seq * width * element * (kept + again)
    return int(budget // sample)


@wrong("13.2", "root of the layers")
def textbook(inputs, kept, layers):
    root, divisors = layers ** 0.5, [each for each in range(1, layers + 1) if not layers % each]
    return sorted(divisors, key=lambda each: abs(root - each))[0]


@wrong("13.3", "views of weights")
def looks_at_objects(model):
    own = set(map(id, model.parameters()))

    def pack(tensor):
        if id(tensor) in own or tensor.dtype not in (torch.float32, torch.float64) or tensor.numel() < 64:
            return tensor.detach()
        return tensor.dtype, tensor.bfloat16()

    def unpack(kept):
        return kept[1].to(kept[0]) if isinstance(kept, tuple) else kept

    return pack, unpack


@wrong("13.3", "not inverse")
def forgets_the_dtype(model):
    own = {param.untyped_storage().data_ptr() for param in model.parameters()}

    def pack(tensor):
        stays = tensor.untyped_storage().data_ptr() in own or not tensor.is_floating_point() or tensor.numel() < 64
        return tensor.detach() if stays else tensor.bfloat16()

    return pack, lambda kept: kept


@wrong("13.4", "best fit")
def smallest_hole(events, size):
    taken, found = {}, []
    for name, nbytes in events:
        if nbytes == 0:
            taken.pop(name)
            continue
        edges = [0] + [edge for block in sorted(taken.values()) for edge in block] + [size]
        holes = [(stop - start, start) for start, stop in zip(edges[::2], edges[1::2]) if stop - start >= nbytes]
        if not holes:
            return [*found, None]
        at = min(holes)[1]
        taken[name] = at, at + nbytes
        found.append(at)
    return found


@wrong("13.5", "the bug")
def scales_x_alone(x, weight, targets, tiles):
    class Tiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, targets):
            total, ctx.x, ctx.w = x.new_zeros(()), torch.empty_like(x), torch.zeros_like(weight)
            for at in torch.arange(len(x)).tensor_split(tiles):
                with torch.enable_grad():
                    tile, own = x[at].detach().requires_grad_(), weight.detach().requires_grad_()
                    part = nn.functional.cross_entropy(tile @ own.T, targets[at], reduction="sum") / len(targets)
                part.backward()
                ctx.x[at] = tile.grad
                ctx.w += own.grad
                total += part.detach()
            return total

        @staticmethod
        def backward(ctx, factor):
            return ctx.x * factor, ctx.w, None

    return Tiled.apply(x, weight, targets)


@wrong("13.6", "not freed")
def differences(rows):
    changes = {phase: {row["block"]: row["after"] - row["before"] for row in rows if row["phase"] == phase}
               for phase in ("forward", "backward")}
    at = max(range(len(rows)), key=lambda number: rows[number]["highest"])
    return {"kept": changes["forward"], "gradients": changes["backward"], "peak": (rows[at]["phase"], rows[at]["block"]),
            "done": [row["block"] for row in rows[:at] if row["phase"] == "backward"]}


@wrong("13.7", "ratio first")
def most_bytes_for_a_flop(operations, budget):
    kept = {each["name"] for each in operations}
    for each in sorted(operations, key=lambda each: -each["bytes"] / each["flops"]):
        if each["flops"] <= budget:
            budget -= each["flops"]
            kept.remove(each["name"])
    return list(kept)


@wrong("13.1", "rounded")
def nearest_sample(budget, layers, seq, width, kept, again, element):
    each = seq * width * element * (layers * kept + again)
    return int(budget / each + 0.5)


@wrong("13.2", "two at least")
def never_one(inputs, kept, layers):
    totals = [(k * inputs + kept * (layers // k), k) for k in range(2, layers + 1) if layers // k * k == layers]
    return sorted(totals)[0][1]


@wrong("13.3", "slices of weights")
def by_first_address(model):
    own = {param.data_ptr() for param in model.parameters()}

    def pack(tensor):
        if tensor.data_ptr() in own or not tensor.is_floating_point() or tensor.numel() < 64:
            return None, tensor.detach()
        return tensor.dtype, tensor.bfloat16()

    return pack, lambda kept: kept[1] if kept[0] is None else kept[1].to(kept[0])


@wrong("13.4", "next fit")
def goes_on_searching(events, size):
    there, out, last = {}, [], 0
    for name, nbytes in events:
        if not nbytes:
            del there[name]
            continue
        starts = [*range(last, size), *range(last)]
        fits = [at for at in starts if at + nbytes <= size and all(at + nbytes <= a or a + n <= at for a, n in there.values())]
        out.append(fits[0] if fits else None)
        if not fits:
            break
        there[name], last = (fits[0], nbytes), fits[0]
    return out


@wrong("13.5", "tiles kept")
def plain_autograd(x, weight, targets, tiles):
    parts = zip(x.tensor_split(tiles), targets.tensor_split(tiles), strict=True)
    return torch.stack([nn.functional.cross_entropy(a @ weight.T, t, reduction="sum") for a, t in parts]).sum() / len(x)


@wrong("13.2", "no divisor")
def segments_of_any_length(inputs, kept, layers):
    return min(range(1, layers + 1), key=lambda number: number * inputs + -(-layers // number) * kept)


@wrong("13.3", "frozen ones")
def trained_ones_alone(model):
    own = {param.untyped_storage().data_ptr() for param in model.parameters() if param.requires_grad}

    def pack(tensor):
        stays = tensor.untyped_storage().data_ptr() in own or not tensor.is_floating_point() or tensor.numel() < 64
        return (None, tensor.detach()) if stays else (tensor.dtype, tensor.bfloat16())

    return pack, lambda kept: kept[1] if kept[0] is None else kept[1].to(kept[0])


@wrong("13.4", "difference")
def counts_free_bytes(events, size):
    there, found = {}, []
    for name, nbytes in events:
        if not nbytes:
            del there[name]
            continue
        if sum(each for _, each in there.values()) + nbytes > size:
            return [*found, None]
        at = 0
        for start, each in sorted(there.values()):
            if start - at >= nbytes:
                break
            at = start + each
        there[name] = at, nbytes
        found.append(at)
    return found


# 13.w1 --------------------------------------------------------------------------------------------------------------

def kept_by(random):
    def keep_input(ctx, block, x):
        ctx.save_for_backward(x)
        ctx.block = block
        if random == "before":
            ctx.state = torch.get_rng_state()
        output = block(x)
        if random == "after":
            ctx.state = torch.get_rng_state()
        return output
    return keep_input


@wrong("13.w1", "other masks")
class NoRandomState:
    keep_input = kept_by(None)

    def compute_again(ctx, gradient):
        x, = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            y = ctx.block(x)
        torch.autograd.backward([y], [gradient])
        return None, x.grad


@wrong("13.w1", "state moved")
class StateNotGivenBack:
    keep_input = kept_by("before")

    def compute_again(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_(True)
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            y = ctx.block(x)
        y.backward(gradient)
        return None, x.grad


@wrong("13.w1", "taken late")
class StateOfTheEnd:
    keep_input = kept_by("after")

    def compute_again(ctx, gradient):
        x, now = ctx.saved_tensors[0].detach().requires_grad_(True), torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            y = ctx.block(x)
        torch.set_rng_state(now)
        y.backward(gradient)
        return None, x.grad


@wrong("13.w1", "input alone")
class AsksForXAlone:
    keep_input = kept_by("before")

    def compute_again(ctx, gradient):
        x, now = ctx.saved_tensors[0].detach().requires_grad_(True), torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            grad, = torch.autograd.grad(ctx.block(x), [x], [gradient])
        torch.set_rng_state(now)
        return None, grad


# 13.w2 --------------------------------------------------------------------------------------------------------------

def segments(starts, blocks):
    return [range(start, stop) for start, stop in zip(starts, [*starts[1:], blocks], strict=True)]


@wrong("13.w2", "no inputs inside")
def besides_alone(starts, inputs, kept):
    held, peaks = 0, []
    for segment in segments(starts, len(kept)):
        held += inputs[segment[0]]
        peaks.append(held + sum(kept[i] for i in segment))
    return max(peaks)


@wrong("13.w2", "all checkpoints")
def never_freed(starts, inputs, kept):
    waiting = sum(inputs[i] for i in starts)
    return waiting + max(sum(kept[i] + inputs[i] for i in segment) - inputs[segment[0]] for segment in segments(starts, len(kept)))


@wrong("13.w2", "own checkpoint")
def segment_by_itself(starts, inputs, kept):
    return max(sum(kept[i] + inputs[i] for i in segment) for segment in segments(starts, len(kept)))


@wrong("13.w2", "last segment")
def when_the_backward_begins(starts, inputs, kept):
    last = segments(starts, len(kept))[-1]
    return sum(inputs[i] for i in starts[:-1]) + sum(kept[i] + inputs[i] for i in last)
