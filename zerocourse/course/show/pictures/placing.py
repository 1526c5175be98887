"""Where the bytes of a recorded step lie: after an event, which part of which unit a rank holds, and as what."""

from collections.abc import Sequence
from typing import NamedTuple

from ....measure.intervals import COLLECTIVES
from .recorded_stages import RecordedRank

PARAMETERS, GRADIENTS, OPTIMIZER = "parameters", "gradients", "optimizer"


class Placed(NamedTuple):
    """A piece of memory. of: whose elements they are, parameters, gradients or optimizer.   kind: what it counts as.

    start, stop: the elements of the unit that it has (for the optimizer, of each of Adam's two averages).
    passing: is it held only for a while?
    """

    unit: str
    of: str
    kind: str
    start: int
    stop: int
    nbytes: int
    passing: bool


def units(rank: RecordedRank) -> dict[str, int]:
    """The units in the model's order, and their elements with padding."""
    sizes: dict[str, int] = {}
    for buffer in rank.buffers.values():
        sizes[buffer.unit] = sizes.get(buffer.unit, 0) + buffer.elements
    return sizes


def pieces(rank: RecordedRank, index: int, stage: int) -> list[Placed]:
    """All memory of model states that the rank held after event number `index`."""
    found, begins = [], dict.fromkeys(units(rank), 0)
    for name, buffer in rank.buffers.items():
        held, begin = rank.held[index][name], begins[buffer.unit]
        begins[buffer.unit] += buffer.elements
        whole, own = (begin, begin + buffer.elements), tuple(begin + edge for edge in buffer.own)
        per_element = max(rank.held[0][name]["full"], 2 * rank.held[0][name]["shard"]) // buffer.elements or 4
        arriving = own[0], own[0] + held["received"] // per_element
        for nbytes, of, kind, place, passing in (
                (held["full"], PARAMETERS, "in flight" if stage == 3 else PARAMETERS, whole, stage == 3),
                (held["shard"], PARAMETERS, PARAMETERS, own, False),
                (held["bucket"], GRADIENTS, "in flight" if stage > 1 else GRADIENTS, whole, stage > 1),
                (held["grad_shard"], GRADIENTS, GRADIENTS, own, False),
                (held["received"], GRADIENTS, "in flight", arriving, stage < 2),
                (buffer.optimizer, OPTIMIZER, OPTIMIZER, own, False)):
            if nbytes:
                found.append(Placed(buffer.unit, of, kind, *place, nbytes, passing))
    return found


def find(rank: RecordedRank, verb: str, unit: str, number: int = 0) -> int:
    """The index of an event: the `number`-th of its verb and unit."""
    matching = [index for index, event in enumerate(rank.events) if (event["verb"], event["unit"]) == (verb, unit)]
    return matching[number]


def under_way(rank: RecordedRank, index: int) -> list[tuple[str, str]]:
    """(verb, unit) of the collectives that had begun and not ended when event number `index` ended."""
    now = rank.events[index]["end"]
    return [(event["verb"], event["unit"].partition("[")[0]) for event in rank.events
            if event["verb"] in COLLECTIVES and event["start"] <= now < event["end"]]


def listed(words: Sequence[str]) -> str:
    """a, b and c"""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
