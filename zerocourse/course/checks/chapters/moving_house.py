"""The check of exercise 3.6: a model moves from one rank map to another, on real ranks."""

import torch

from ....layout.rankmap import Layout
from ..exercise import exercise
from ..lab import Lab
from ..words import a, value_text
from . import map_probe as probe


@exercise("3.6", "Moving house", minutes=60, difficulty=3, answer="move", replaces=probe.REPLACED, timeout=15)
def move(lab: Lab):
    for world in (2, 3):
        found = lab.run(probe.move, probe.MOVES, world=world)
        for number, (before, after) in enumerate(probe.MOVES):
            old, new = (Layout.build(probe.SHAPES, world, probe.owner_by(name, world)) for name in (before, after))
            for rank in range(world):
                who = f"from {before!r} to {after!r}, on rank {rank} of {world}"
                _judge_slice(lab, found[rank][number], old, new, rank, who)
            for rank in range(world):
                who = f"from {before!r} to {after!r}, rank {rank} of {world}"
                _judge_parcels(lab, found[rank][number], old, new, rank, world, who)
    return "every element is where the new map wants it, and no element travelled that could stay."


def _judge_slice(lab: Lab, found: dict, old: Layout, new: Layout, rank: int, who: str) -> None:
    """Is it the rank's slice under the new map?"""
    got, right = found["new"], probe.coded_row(new)[new.slice(rank)]
    if not isinstance(got, torch.Tensor):
        lab.wrong(f"{who}, it returned {value_text(got)}, {a(got)}, where a tensor of shape "
                  f"{tuple(right.shape)} is right.")
    if got.shape != right.shape or got.dtype != right.dtype:
        was = old.bounds[rank + 1] - old.bounds[rank]
        why = "That is the size of the old slice." if got.shape == (was,) else "That is the whole row." \
            if got.shape == (new.padded,) else "The padding is missing: it belongs to the slice." \
            if got.shape == (new.real(rank),) else ""
        lab.wrong(f"{who}, it returned {got.dtype} of shape {tuple(got.shape)}, and {right.dtype} of shape "
                  f"{tuple(right.shape)} is right. {why}".rstrip())
    if not torch.equal(got, right):
        place = int((got != right).nonzero()[0])
        codes = got[place].item(), right[place].item()
        came, wanted = (f"`{probe.element_of(int(code))}`" if code else "0" for code in codes)
        mine = set(probe.coded_row(old)[old.slice(rank)].tolist())
        lost = [code for code, there in zip(right.tolist(), got.tolist(), strict=True) if code and not there]
        kept = [code for code in right.tolist() if code in mine and code]
        others = [code for code in right.tolist() if code not in mine and code]
        why = ("What stays on the rank was forgotten: it is in no parcel from another rank." if lost == kept != [] else
               "What the other ranks sent was not put in." if lost == others != [] else
               "All elements are there, in another order: parts that come from different ranks lie mixed in the slice, "
               "so put each part at its own place." if sorted(got.tolist()) == sorted(right.tolist()) else
               "The padding is not zero." if not right[place:].any() else "")
        lab.wrong(f"{who}, place {place} of the new slice has {came}, and {wanted} is right. {why}".rstrip())
    if not found["same"]:
        lab.wrong(f"{who}, the old slice was changed: write into memory of your own.")
    if not found["apart"]:
        lab.wrong(f"{who}, it returned the old slice's own memory: whoever frees or changes one of the two has both. "
                  "Copy it, also where nothing moves.")
    if found["held"] > right.nbytes:
        lab.wrong(f"{who}, the new slice holds {found['held']} bytes, and {right.nbytes} are right: it is a view into "
                  "something larger, which stays alive with it. Clone it.")


def _judge_parcels(lab: Lab, found: dict, old: Layout, new: Layout, rank: int, world: int, who: str) -> None:
    """Did it send only what had to travel?"""
    to = probe.must_send(old, new, rank, world)
    need = sum(count for peer, count in to.items() if peer != rank)
    own = old.bounds[rank + 1] - old.bounds[rank]
    if found["sent"] == need:
        return
    why = ""
    if found["sent"] in (own * (world - 1), old.real(rank) * (world - 1)):
        why = "You sent the whole slice to everybody: send each rank only what it will own."
    elif found["sent"] > need and found["sent"] - need <= own - old.real(rank):
        why = "You sent padding: it is zeros, which every rank can make itself."
    elif found["sent"] > need:
        why = "What a rank keeps, or what nobody needs there, is not to travel."
    lab.wrong(f"{who} sent {found['sent']} elements to the others, and {need} are enough. {why}".rstrip())
