"""The checks of 13.1 and 13.2: the largest batch, and how many checkpoints are best."""

import math

from ....checks import Trial, exercise

GB = 10**9


@exercise(
    "13.1", "The largest batch", minutes=15, difficulty=1,
    replaces=("zerocourse.formulas.activations:*",),
    cases=[(16 * 10 * 1024 * 768 * 2 * 3, 10, 1024, 768, 16, 0, 2)],
    trials=[Trial([(8 * GB, 12, 1024, 768, 16, 0, 2), (8 * GB, 12, 1024, 768, 16, 0, 4)]),
            Trial([(8 * GB, 12, 1024, 768, 1, 15, 2), (8 * GB, 48, 32, 1600, 10, 8, 2)]),
            Trial([(10**6, 12, 1024, 768, 1, 15, 2), (190, 1, 1, 1, 40, 60, 1)])],
    mistakes={
        "one block": {"blocks": lambda layers, kept, again: kept + again},
        "not again": {"blocks": lambda layers, kept, again: layers * kept},
        "again everywhere": {"blocks": lambda layers, kept, again: layers * (kept + again)},
        "counted twice": {"blocks": lambda layers, kept, again: layers * kept + (kept + again if again else 0)},
        "instead": {"blocks": lambda layers, kept, again: (layers - 1) * kept + again if again else layers * kept},
        "elements": {"size": lambda element: 1},
        "always half": {"size": lambda element: 2},
        "rounded up": {"whole": lambda budget, each: -(-budget // each)},
        "rounded": {"whole": lambda budget, each: round(budget / each)},
        "a fraction": {"whole": lambda budget, each: budget / each},
        "at least one": {"whole": lambda budget, each: max(1, budget // each)},
    })
def largest_batch(budget, layers, seq, width, kept, again, element, *,
                  blocks=lambda layers, kept, again: layers * kept + again, size=lambda element: element,
                  whole=lambda budget, each: budget // each):
    """Samples whose activations fit."""
    return whole(budget, blocks(layers, kept, again) * seq * width * size(element))


def peaks(inputs, kept, layers):
    return {number: number * inputs + layers // number * kept for number in range(1, layers + 1) if layers % number == 0}


def nearest(layers, wish):
    """The divisor that is nearest."""
    return min((number for number in range(1, layers + 1) if layers % number == 0), key=lambda each: abs(each - wish))


@exercise(
    "13.2", "How many checkpoints?", minutes=15, difficulty=1,
    replaces=("zerocourse.activations.spacing:*",),
    cases=[(100, 100, 36), (100, 1512, 12), (100, 631, 12)],
    trials=[Trial([(100, 1512, 48), (100, 400, 24)]), Trial([(100, 300, 12), (7, 1, 30), (1, 1000, 7), (1000, 1, 6), (150, 100, 7)])],
    mistakes={
        "root of the layers": {"best": lambda inputs, kept, layers: nearest(layers, math.sqrt(layers))},
        "one a block": {"best": lambda inputs, kept, layers: layers},
        "root of all": {"best": lambda inputs, kept, layers: math.sqrt(layers * kept / inputs)},
        "no divisor": ({"best": lambda inputs, kept, layers: min(layers, max(1, round(math.sqrt(layers * kept / inputs))))},
                       {"best": lambda inputs, kept, layers:
                        min(range(1, layers + 1), key=lambda each: each * inputs - -layers // each * kept)}),
        "nearest to the root of all": {"best": lambda inputs, kept, layers: nearest(layers, math.sqrt(layers * kept / inputs))},
        "turned over": {"best": lambda inputs, kept, layers: layers // best_number(inputs, kept, layers)},
        "the peak": {"best": lambda inputs, kept, layers: min(peaks(inputs, kept, layers).values())},
        "more of two": {"best": lambda inputs, kept, layers:
                        max(peaks(inputs, kept, layers), key=lambda each: (-peaks(inputs, kept, layers)[each], each))},
        "block alone": {"best": lambda inputs, kept, layers: 1},
        "two at least": {"best": lambda inputs, kept, layers:
                         min((each for each in peaks(inputs, kept, layers) if each > 1), key=peaks(inputs, kept, layers).get)},
    })
def best_number(inputs, kept, layers, *, best=lambda inputs, kept, layers:
                min(peaks(inputs, kept, layers), key=peaks(inputs, kept, layers).get)):
    """The number of checkpoints with the least peak."""
    return best(inputs, kept, layers)
