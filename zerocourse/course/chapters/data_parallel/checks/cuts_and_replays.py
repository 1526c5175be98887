"""The checks of chapter 04, data parallel: here 4.1 and 4.4, which need no ranks.

4.2 and 4.3, averaging gradients and counting words, are in `averages`; 4.5 and 4.6, the two halves of a ring, in
`rings`; 4.7, the long one, in `buckets`; and 4.8, the hang, in `uneven`.
"""


from itertools import pairwise

import torch

from ....checks import exercise

# 4.1 ----------------------------------------------------------------------------------------------------------------

def even_stop(n, ranks, r):
    return (r + 1) * (n // ranks) + min(r + 1, n % ranks)


def stops(stop):
    return {"stop": stop}


def parts(part):
    return {"part": part}


def filled_up(n, ranks):
    """One full part after the other, as long as there are elements."""
    size = max(1, -(-n // ranks))
    return [(start, min(n, start + size)) for start in range(0, n, size)]


@exercise(
    "4.1", "Cut a row", minutes=10, difficulty=1,
    cases=[(12, 4), (14, 4), (9, 4), (7, 4), (1202, 3), (2, 4), (0, 3), (5, 1), (10**6 + 1, 2)],
    mistakes={
        "rounded up": (stops(lambda n, ranks, r: min(n, (r + 1) * -(-n // ranks))), filled_up),
        "behind the row": stops(lambda n, ranks, r: (r + 1) * -(-n // ranks)),
        "rounded down": stops(lambda n, ranks, r: (r + 1) * (n // ranks)),
        "rounded": stops(lambda n, ranks, r: (r + 1) * round(n / ranks)),
        "rest to the last": stops(lambda n, ranks, r: n if r == ranks - 1 else (r + 1) * (n // ranks)),
        "rest to the first": stops(lambda n, ranks, r: (r + 1) * (n // ranks) + n % ranks),
        "shorter first": (stops(lambda n, ranks, r: n - even_stop(n, ranks, ranks - r - 2)),
                          stops(lambda n, ranks, r: n * (r + 1) // ranks),
                          stops(lambda n, ranks, r: round(n * (r + 1) / ranks))),
        "one too many": stops(lambda n, ranks, r: (r + 1) * (n // ranks) + min(r, n % ranks) + 1),
        "one alone": stops(lambda n, ranks, r: (r + 1) * (n // ranks) + (n % ranks > 0)),
        "not joined": (lambda n, ranks: [(r * (n // ranks), (r + 1) * (n // ranks) + (r < n % ranks))
                                         for r in range(ranks)],
                       lambda n, ranks: [(r * (n // ranks + 1), r + (r + 1) * (n // ranks) + (r < n % ranks))
                                         for r in range(ranks)]),
        "from 1": parts(lambda start, stop: (start + 1, stop + 1)),
        "lengths": parts(lambda start, stop: (start, stop - start)),
        "last element": parts(lambda start, stop: (start, stop - 1)),
        "sizes": parts(lambda start, stop: stop - start),
        "edges": lambda n, ranks: [0, *(even_stop(n, ranks, r) for r in range(ranks))],
        "first and last element": lambda n, ranks: [(int(part[0]), int(part[-1]) + 1)
                                                    for part in torch.arange(n).tensor_split(ranks)],
        "empty ones left out": lambda n, ranks: [part for part in cut(n, ranks) if part[0] < part[1]],
    })
def cut(n, ranks, *, stop=even_stop, part=lambda start, stop: (start, stop)):
    """Where each part starts and stops."""
    ends = [0, *(stop(n, ranks, r) for r in range(ranks))]
    return [part(start, end) for start, end in pairwise(ends)]


# 4.4 ----------------------------------------------------------------------------------------------------------------

def pull(parameter, worker):
    """The gradient of half the squared distance to the worker's own number."""
    return parameter - worker


def steep(parameter, worker):
    return 2 * parameter + 3 * worker


def since(arrivals, update):
    """The arrivals between this one and the same worker's one before."""
    before = [i for i in range(update) if arrivals[i] == arrivals[update]]
    return arrivals[before[-1] + 1 if before else 0:update]


def ages(age):
    return {"age": age}


@exercise(
    "4.4", "A gradient that is too old", minutes=20, difficulty=2,
    replaces=("zerocourse.classics.parameter_server:*",),
    cases=[(0.0, pull, [1, 2, 1, 1, 2], 0.5), (8.0, pull, [1, 2, 3, 1, 2, 3], 0.25), (4.0, pull, [1, 1, 1], 0.5),
           (1.0, steep, [3, 3, 1, 3, 1, 2, 2], 0.125), (2.0, pull, [], 0.5)],
    mistakes={
        "newest": ({"at": lambda read, server: server},
                   {"at": lambda read, server: server, **ages(lambda arrivals, i: 0)}),
        "read before": {"reads": lambda old, new: old},
        "read once": {"reads": None, "age": lambda arrivals, i: i},
        "own copies": {"base": lambda read, server: read},
        "added": {"sign": 1},
        "divided": {"share": lambda arrivals: len(set(arrivals))},
        "no rate": {"rate": lambda lr: 1},
        "exchanged": {"slope": lambda gradient, value, worker: gradient(worker, value)},
        "one late": {"shown": lambda old, new: old},
        "start noted": lambda start, *others: [(start, 0), *replay(start, *others)],
        "no arrivals": (lambda start, gradient, arrivals, lr: arrivals and replay(start, gradient, arrivals, lr)
                        or max(arrivals), lambda *case: case[2][0] and replay(*case)),
        "itself": ages(lambda arrivals, i: len(since(arrivals, i)) + 1),
        "its last one": ages(lambda arrivals, i: len(since(arrivals, i)) + (arrivals[i] in arrivals[:i])),
        "one too few": (ages(lambda arrivals, i: len(since(arrivals, i)) - 1),
                        ages(lambda arrivals, i: max(0, len(since(arrivals, i)) - 1))),
        "first is fresh": ages(lambda arrivals, i: len(since(arrivals, i)) * (arrivals[i] in arrivals[:i])),
        "own updates": ages(lambda arrivals, i: arrivals[:i].count(arrivals[i])),
        "since the start": ages(lambda arrivals, i: i),
        "other workers": ages(lambda arrivals, i: len(set(arrivals)) - 1),
        "workers between": ages(lambda arrivals, i: len(set(since(arrivals, i)))),
    })
def replay(start, gradient, arrivals, lr, *, at=lambda read, server: read, base=lambda read, server: server,
           reads=lambda old, new: new, sign=-1,
           share=lambda arrivals: 1, rate=lambda lr: lr, slope=lambda gradient, value, worker: gradient(value, worker),
           shown=lambda old, new: new, age=lambda arrivals, i: len(since(arrivals, i))):
    """After each arrival the server's parameter, and the age of the gradient."""
    server, read, log = start, {}, []
    for update, worker in enumerate(arrivals):
        old, value = server, read.get(worker, start)
        step = rate(lr) * slope(gradient, at(value, server), worker)
        server = base(value, server) + sign * step / share(arrivals)
        log.append((shown(old, server), age(arrivals, update)))
        if reads:
            read[worker] = reads(old, server)
    return log
