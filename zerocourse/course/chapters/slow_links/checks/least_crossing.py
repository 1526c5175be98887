"""The check of 20.5: what a node sends to others by each way to train, and which way sends least of those that fit."""

import operator
from fractions import Fraction

from ....checks import exercise

BYTES = 2  # of a parameter that travels in half precision
CASES = [(10**9, 2, 8, 80 * 10**9, True), (10**9 + 1, 2, 8, 80 * 10**9, False), (7 * 10**9, 2, 8, 12 * 10**9, True),
         (7 * 10**9, 2, 8, 12 * 10**9, False), (7 * 10**9, 2, 8, 8 * 10**9, False), (7 * 10**9, 2, 8, 8 * 10**9, True),
         (70 * 10**9, 16, 8, 80 * 10**9, True), (70 * 10**9, 16, 8, 20 * 10**9, False), (10**9, 1, 8, 80 * 10**9, True),
         (10**9, 4, 1, 80 * 10**9, True), (10**9, 4, 1, 80 * 10**9, False), (7 * 10**9, 4, 4, 7 * 10**9, False), (7 * 10**9, 4, 4, 6 * 10**9, False)]


def ways(nodes, per_node):
    """{name: (passes that cross, bytes held for each parameter, is it exact?)}, the simplest first."""
    ranks = nodes * per_node
    return {"one group": (Fraction(3 * per_node), Fraction(16, ranks), True), "hybrid": (Fraction(2), Fraction(16, per_node), True),
            "ZeRO++": (Fraction(3, 4), Fraction(16, ranks) + Fraction(2, per_node), False)}


def without(name):
    return lambda found: {way: each for way, each in found.items() if way != name}


def instead(name, place, value):
    """One of the three entries of a way is another."""
    def changed(nodes, per_node):
        found = ways(nodes, per_node)
        found[name] = tuple(value(nodes, per_node) if at == place else each for at, each in enumerate(found[name]))
        return found
    return changed


def chosen_first(params, nodes, per_node, card, exact):
    """The way that sends least, and None where that one is not exact."""
    found = least_crossing(params, nodes, per_node, card, False)
    return None if found and exact and not ways(nodes, per_node)[found[0]][2] else found


@exercise(
    "20.5", "Choose what crosses", minutes=25, difficulty=2, cases=CASES,
    mistakes={
        "three passes": ({"ways_of": instead("hybrid", 0, lambda nodes, per_node: 3)}, {"ways_of": instead("hybrid", 0, lambda nodes, per_node: 1)}),
        "a ring": {"ways_of": instead("one group", 0, lambda nodes, per_node: 3)},
        "hybrid holds little": {"ways_of": instead("hybrid", 1, lambda nodes, per_node: Fraction(16, nodes * per_node))},
        "copy forgotten": {"ways_of": instead("ZeRO++", 1, lambda nodes, per_node: Fraction(16, nodes * per_node))},
        "too often": tuple({"ways_of": instead(name, 0, lambda nodes, per_node, passes=passes: passes * per_node)}
                           for name, passes in (("hybrid", Fraction(2)), ("ZeRO++", Fraction(3, 4)))),
        "of a rank": {"ways_of": instead("hybrid", 0, lambda nodes, per_node: Fraction(2, per_node))},
        "backward's gather": {"ways_of": instead("ZeRO++", 0, lambda nodes, per_node: Fraction(5, 4))},
        "always exact": {"ways_of": instead("ZeRO++", 2, lambda nodes, per_node: True)},
        "never rounded": {"keep": without("ZeRO++")},
        "all of it": ({"part": lambda nodes: 1},
                      {"ways_of": instead("hybrid", 0, lambda nodes, per_node: Fraction(2 * nodes, max(1, nodes - 1)))}),
        "elements": {"size": 1},
        "does not fit": {"fits": lambda held, card: True},
        "exactly full": {"fits": operator.lt},
        "chosen first": chosen_first,
        "one node": {"ties": ()},
        "anything": {"none": "one group"},
    })
def least_crossing(params, nodes, per_node, card, exact, *, ways_of=ways, keep=dict, part=lambda nodes: Fraction(nodes - 1, nodes), size=BYTES,
                   fits=operator.le, none=None, ties=(1,)):
    """(way, bytes that a node sends to others in a step), or None where nothing fits."""
    found = {name: passes for name, (passes, held, is_exact) in keep(ways_of(nodes, per_node)).items()
             if fits(held * params, card) and (is_exact or not exact)}
    if not found:
        return none
    way = next(iter(found)) if nodes in ties else min(found, key=found.get)
    return way, int(found[way] * size * params * part(nodes))
