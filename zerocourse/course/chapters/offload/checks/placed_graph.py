"""The checks of 14.1 and 14.6: what a placement moves, and the fewest bytes on the device within a limit on the link."""

from itertools import product
from math import inf

from .....formulas.placements import EDGES, HELD
from ....checks import Board, Trial, exercise

GRAPH = [("a", "b", 2), ("b", "c", 4), ("c", "b", 4), ("a", "c", 7)]
ADAM = list(EDGES)
LIMITS = (0, 3, 4, 5, 6, 20)

# 14.1 ---------------------------------------------------------------------------------------------------------------


@exercise(
    "14.1", "What a placement moves", minutes=10, difficulty=1,
    trials=[Trial([(GRAPH, {"c"}), (GRAPH, {"b", "c"}), (GRAPH, set()), (GRAPH, {"a", "b", "c"}),
                   (ADAM, {*HELD}), (ADAM, {*HELD} - {"parameters fp16"}), (ADAM, {"momentum fp32"})])],
    mistakes={
        "inside too": {"crosses": lambda start, end: start or end},
        "inside": {"crosses": lambda start, end: start and end},
        "down only": {"crosses": lambda start, end: end and not start},
        "up only": {"crosses": lambda start, end: start and not end},
        "once": {"listed": lambda edges: sorted(set(edges))},
        "one each way": {"listed": lambda edges: list({frozenset(edge[:2]): edge for edge in edges}.values())},
    })
def moved_bytes(edges, on_host, *, crosses=lambda start, end: start != end, listed=list):
    """The bytes of the edges with one end on the host."""
    return sum(nbytes for start, end, nbytes in listed(edges) if crosses(start in on_host, end in on_host))


# 14.6 ---------------------------------------------------------------------------------------------------------------

DIAMOND = ([("in", "x", 3), ("x", "y", 10), ("y", "in", 1)], {"x": 8, "y": 5})
LONE = ([("in", "x", 3), ("x", "in", 3), ("in", "y", 1)], {"x": 8, "y": 5, "apart": 2})
HEAVY = ([("in", "x", 3), ("in", "y", 1), ("in", "z", 2)], {"x": 8, "y": 1, "z": 1})


def ways(edges, held, **knobs):
    for choice in product((False, True), repeat=len(held)):
        host = {name for name, there in zip(held, choice, strict=True) if there}
        yield moved_bytes(edges, host, **knobs), sum(size for name, size in held.items() if name not in host), len(host)


def among(allowed, **knobs):
    """Over the placements with so many boxes on the host alone."""
    return lambda edges, held, limit: min((size for moved, size, count in ways(edges, held, **knobs)
                                           if moved <= limit and allowed(count)), default=0)


def one_by_one(edges, held, limit):
    """Greedy: put the largest that still fits under the limit on the host."""
    host = set()
    for name in sorted(held, key=held.get, reverse=True):
        if moved_bytes(edges, host | {name}) <= limit:
            host.add(name)
    return sum(size for name, size in held.items() if name not in host)


def cut_short(edges, held, limit, host=frozenset(), number=0):
    """Goes no further from a set that passes the limit, though a larger one may not."""
    if moved_bytes(edges, host) > limit:
        return inf
    if number == len(held):
        return sum(size for name, size in held.items() if name not in host)
    return min(cut_short(edges, held, limit, more, number + 1) for more in (host, host | {[*held][number]}))


PLACED = [(ADAM, HELD, limit) for limit in LIMITS] + [(*DIAMOND, limit) for limit in (0, 1, 4, 13)] \
    + [(*LONE, limit) for limit in (0, 1, 6, 7)] + [(*HEAVY, 3)]


def on_device(seen):
    """In all cases, where each number is that of a placement within the limit."""
    got = [case["returned"] for case in seen[0][0]]
    reached = all(any(moved <= limit and size == number for moved, size, _ in ways(edges, held))
                  for (edges, held, limit), number in zip(PLACED, got, strict=True))
    return sum(got) if reached else None


@exercise(
    "14.6", "The fewest bytes on the device", minutes=45, difficulty=3, trials=[Trial(PLACED)],
    board=(Board("bytes on the device in all cases", on_device, 90, 90, "all placements were tried", ("returned", "exactly")),),
    mistakes={
        "greedy": (one_by_one, cut_short, among(lambda count: count <= 2)),
        "inside too": among(lambda count: True, crosses=lambda start, end: start or end),
        "none on the host": among(bool),
        "once": {"listed": lambda edges: sorted(set(edges))},
        "boxes of 0 bytes": {"movable": lambda held: {name: size for name, size in held.items() if size}},
        "no limit": ({"within": lambda moved, limit: True}, lambda edges, held, limit: least_on_device(
            [edge for edge in edges if edge[0] in held and edge[1] in held], held, limit)),
        "below": {"within": lambda moved, limit: moved < limit or limit == 0 == moved},
        "least moved": {"key": lambda way: (way[0], way[1])},
        "fewest boxes": {"key": lambda way: (-way[2], way[1])},
        "moved": {"what": 0},
    })
def least_on_device(edges, held, limit, *, within=lambda moved, limit: moved <= limit, key=lambda way: way[1], what=1,
                    listed=list, movable=dict):
    """Over all placements that move at most `limit` bytes."""
    return min((way for way in ways(listed(edges), movable(held)) if within(way[0], limit)), key=key)[what]


