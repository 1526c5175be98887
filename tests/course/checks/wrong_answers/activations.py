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
