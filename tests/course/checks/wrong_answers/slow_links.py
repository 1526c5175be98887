"""Wrong answers of chapter 20."""

import torch
from wrong_answers import wrong


@wrong("20.1", "one way")
def sends_once(params, ranks, group, micro_batches, each):
    nodes = ranks // group
    inside = 6 * micro_batches * params * (group - 1) // group
    times = micro_batches if each else 1
    return inside, times * 2 * params // group * (nodes - 1) // nodes


@wrong("20.1", "whole bytes")
def drops_fractions(params, ranks, group, micro_batches, each):
    nodes = ranks // group
    return 6 * micro_batches * params * (group - 1) // group, 4 * (micro_batches if each else 1) * params * (nodes - 1) // ranks


@wrong("20.2", "the node")
def always_eight(ranks, card):
    return 8


@wrong("20.3", "high one first")
class HighNibbleFirst:
    def pack(values, block):
        count = -(-len(values) // block)
        padded = torch.zeros(count * block)
        padded[:len(values)] = values
        scales = padded.view(count, block).abs().max(1).values / 7
        whole = (padded / scales.repeat_interleave(block)).round().int() + 8
        pairs = whole.view(-1, 2)
        return (pairs[:, 0] * 16 + pairs[:, 1]).to(torch.uint8), scales


@wrong("20.3", "block by numel")
class GuessesTheBlock:
    def unpack(payload, scales, numel):
        whole = torch.stack([payload % 16, payload // 16], 1).flatten().float() - 8
        block = -(-numel // len(scales))
        return torch.stack([whole[at] * scales[at // (block + block % 2)] for at in range(numel)])



@wrong("20.4", "loaded weights ignored")
class ClearsOnUpdate:
    def __init__(self, gather):
        self.gather, self.copies = gather, {}

    def unshard(self, unit):
        if unit not in self.copies:
            self.copies[unit] = self.gather(unit)
        return self.copies[unit] * 1

    def updated(self):
        self.copies = {}

    def written(self, unit):
        pass


@wrong("20.4", "asked at once")
class RenewsEagerly(ClearsOnUpdate):
    def written(self, unit):
        self.copies[unit] = self.gather(unit)


@wrong("20.4", "shared")
class OneForAllObjects:
    copies = {}

    def __init__(self, gather):
        self.gather = gather

    def unshard(self, unit):
        if unit not in self.copies:
            self.copies[unit] = self.gather(unit).clone()
        return self.copies[unit].clone()

    def updated(self):
        self.copies.clear()

    def written(self, unit):
        self.copies.pop(unit, None)



@wrong("20.5", "copy forgotten")
def as_little_as_stage_3(params, nodes, per_node, card, exact):
    ranks = nodes * per_node
    ways = [("one group", 3 * per_node, 16 / ranks, True), ("hybrid", 2, 16 / per_node, True), ("ZeRO++", 0.75, 16 / ranks, False)]
    fitting = [(passes if nodes > 1 else 0, name) for name, passes, held, is_exact in ways if held * params <= card and (is_exact or not exact)]
    if not fitting:
        return None
    passes, name = min(fitting, key=lambda each: each[0])
    return name, int(passes * 2 * params * (nodes - 1) / nodes)


@wrong("20.6", "rows of nodes")
def cuts_in_order(bucket, nodes, per_node, inside, between):
    def sent(rows, way):
        blocks = rows.view(len(rows), -1, 4)
        scales = blocks.abs().max(2).values / 127
        whole, scales = way((blocks / scales[..., None]).round().to(torch.int8).flatten(1), scales)
        return (whole.view(len(rows), -1, 4).float() * scales[..., None]).flatten(1).sum(0)

    in_node = sent(torch.stack(bucket.chunk(per_node)), inside)
    return sent(torch.stack(in_node.chunk(nodes)), between)


@wrong("20.6", "over 127")
def clamps_at_127(bucket, nodes, per_node, inside, between):
    def sent(rows, way):
        blocks = rows.unflatten(1, (-1, 4))
        scales = blocks.abs().amax(2, keepdim=True) / 128
        whole = (blocks / scales.where(scales > 0, 1)).round().clamp(-127, 127).to(torch.int8)
        whole, scales = way(whole.flatten(1), scales[..., 0])
        return (whole.unflatten(1, (-1, 4)).float() * scales[..., None]).flatten(1).sum(0)

    rows = bucket.view(nodes, per_node, -1).transpose(0, 1).flatten(1)
    return sent(sent(rows, inside).view(nodes, -1), between)


# 20.w1 --------------------------------------------------------------------------------------------------------------

@wrong("20.w1", "not rounded")
class CutsOff:
    def quantize(values, block):
        scales = values.unflatten(0, (-1, block)).abs().max(1).values / 127
        safe = torch.where(scales == 0, torch.ones_like(scales), scales)
        return (values / safe.repeat_interleave(block)).to(torch.int8), scales


@wrong("20.w1", "zeros")
class DividesByZero:
    def quantize(values, block):
        blocks = values.unflatten(0, (-1, block))
        scales = blocks.abs().max(1).values / 127
        return torch.where(blocks == 0, blocks, blocks / scales[:, None]).round().to(torch.int8).flatten(), scales / scales.sign()


@wrong("20.w1", "one scale")
class OneForAll:
    def quantize(values, block):
        scale = values.abs().max() / 127
        return (values / scale).round().to(torch.int8), scale.repeat(len(values) // block)


@wrong("20.w1", "divided again")
class TheWrongWayBack:
    def dequantize(whole, scales):
        return whole / scales.repeat_interleave(len(whole) // len(scales))


@wrong("20.3", "zeros have 1")
class NeverDividesByZero:
    def pack(values, block):
        rows = torch.nn.functional.pad(values, (0, -len(values) % block)).view(-1, block)
        scales = (rows.abs().amax(1) / 7).clamp(min=1e-12)
        whole = (rows / scales[:, None]).round().int().flatten() + 8
        return (whole[0::2] | whole[1::2] << 4).to(torch.uint8), scales


@wrong("20.6", "small ones are zeros")
def keeps_scales_large(bucket, nodes, per_node, inside, between):
    def squeeze(rows):
        fours = rows.reshape(len(rows), -1, 4)
        scales = (fours.abs().amax(2) / 127).clamp(min=1e-8)
        return (fours / scales[..., None]).round().to(torch.int8).reshape(len(rows), -1), scales

    def restore(whole, scales):
        return (whole.reshape(len(whole), -1, 4) * scales[..., None]).reshape(len(whole), -1)

    rows = bucket.view(nodes, per_node, -1).transpose(0, 1).reshape(per_node, -1)
    in_node = restore(*inside(*squeeze(rows))).sum(0)
    return restore(*between(*squeeze(in_node.view(nodes, -1)))).sum(0)
