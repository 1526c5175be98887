"""The check of 20.3: numbers in 4 bits, two in a byte, with a scale for each block."""

import torch

from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.words import a

TIES = torch.tensor([7.0, 2.5, -3.5, 1.0, 0.5, -1.5, -7.0, 4.5])  # halves go to the even number


def packed(pack, unpack, numel, block, size):
    """The bytes of an answer, and what its own unpacking and that of given bytes return."""
    values = size * (TIES if numel == len(TIES) else torch.randn(numel, generator=torch.Generator().manual_seed(numel)))
    before, blocks = values.clone(), -(-numel // block)
    returned = pack(values, block)
    if not (isinstance(returned, tuple) and len(returned) == 2 and all(map(torch.is_tensor, returned))):
        raise Wrong(f"pack returned {a(returned)}: return two tensors, the bytes and the scales", MISUSED)
    payload, scales = returned
    seen = {"kinds": (str(payload.dtype), tuple(payload.shape), tuple(scales.shape)), "changed": not torch.equal(before, values)}
    if seen["kinds"] == ("torch.uint8", (blocks * block // 2,), (blocks,)):
        seen |= {"scales": scales / (size or 1e-30), "payload": payload.int()}  # so that 1e-12 is not like 0
        seen |= unpacked(pack, unpack, payload, scales, numel, size or 1)
    return seen


def unpacked(pack, unpack, payload, scales, numel, size=1):
    """What comes back of bytes and scales, over the size of the numbers."""
    back = unpack(payload, scales, numel)
    if not torch.is_tensor(back):
        raise Wrong(f"unpack returned {a(back)}: return a tensor", MISUSED)
    return {"numbers": tuple(back.shape), "back": back / size if back.shape == (numel,) else None}


GIVEN = torch.tensor([0x2F, 0x81, 0xF1, 0x78, 0x5A, 0xC3], dtype=torch.uint8)


def nibbles(whole, block=2):
    return whole[0::2] | whole[1::2] << 4


def apart(payload):
    return torch.stack([payload & 15, payload >> 4], 1).flatten()


@exercise(
    "20.3", "Two numbers in a byte", minutes=35, difficulty=3, answer=("pack", "unpack"),
    replaces=("zerocourse.parallel.plusplus.blocks:*",),
    trials=[Trial([(32, 8, 1.0), (21, 6, 1.0), (5, 8, 1.0), (8, 8, 1.0), (16, 4, 1e-10), (4, 2, 0.0)], packed, close=1e-6),
            Trial([(GIVEN, torch.tensor([0.5, 3.0]), 7)], unpacked, close=1e-6)],
    mistakes={
        "high one first": {"join": lambda whole, block: whole[0::2] << 4 | whole[1::2]},
        "high one read first": {"split": lambda payload: torch.stack([payload >> 4, payload & 15], 1).flatten()},
        "halves": ({"join": lambda whole, block: whole[:len(whole) // 2] | whole[len(whole) // 2:] << 4},
                   {"join": lambda whole, block: torch.cat([one | other << 4 for one, other in whole.view(-1, 2, block // 2)])}),
        "no offset": {"offset": 0},
        "another offset": {"offset": 7},
        "offset left": {"back_offset": 0},
        "not rounded": ({"rounded": torch.trunc}, {"rounded": torch.floor}),
        "half added": {"rounded": lambda x: (x + 0.5).trunc()},
        "halves up": ({"rounded": lambda x: (x + 0.5).floor()}, {"rounded": lambda x: (x.abs() + 0.5).floor() * x.sign()}),
        "zeros have 1": ({"scale_of": lambda scales: scales.where(scales > 0, 1)}, {"scale_of": lambda scales: scales.clamp(min=1e-12)}),
        "zeros divide": {"safe": lambda scales: scales, "rounded": lambda x: x.round().nan_to_num(-8.0)},  # NaN + 8 becomes 0
        "small ones are zeros": {"safe": lambda scales: scales.clamp(min=1e-8)},
        "block by numel": tuple({"length": lambda whole, scales, numel, block=block: block(numel, len(scales))} for block in (
            lambda numel, blocks: -(-numel // blocks // 2) * 2, lambda numel, blocks: 2 * (numel // blocks),
            lambda numel, blocks: -(-numel // blocks))),
        "eight levels": {"levels": 8},
        "without signs": {"largest": lambda blocks: blocks.amax(1)},
        "one scale": {"largest": lambda blocks: blocks.abs().amax(1).amax().expand(len(blocks)).clone()},
        "padding kept": {"keep": False},
        "a byte each": {"join": lambda whole, block: whole},
    })
def packing(*, join=nibbles, split=apart, offset=8, back_offset=8, rounded=torch.round, levels=7,
            largest=lambda blocks: blocks.abs().amax(1), keep=True,
            scale_of=lambda scales: scales, safe=lambda scales: scales.where(scales > 0, 1),
            length=lambda whole, scales, numel: len(whole) // len(scales)):
    """Both functions."""
    def pack(values, block):
        blocks = torch.nn.functional.pad(values, (0, -len(values) % block)).view(-1, block)
        scales = largest(blocks) / levels
        whole = rounded(blocks / safe(scales)[:, None]).clamp(-8, 7 if levels == 8 else levels)
        return join((whole.to(torch.int16).flatten() + offset).to(torch.uint8), block), scale_of(scales)

    def unpack(payload, scales, numel):
        whole = split(payload).float() - back_offset
        end = numel if keep else None
        return whole[:end] * scales.repeat_interleave(length(whole, scales, numel))[:end]
    return pack, unpack
