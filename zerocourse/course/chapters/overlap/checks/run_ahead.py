"""The check of 8.5: weights in slices, a forward that gathers them ahead, and the log of what it asked for."""

import math
from collections import namedtuple
from functools import partial

import torch

from .....layout.rankmap import Layout
from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.observers.stage_runs import WatchedComm
from ....checks.words import value_text

LAYERS, WIDTH = 5, 4  # WIDTH: elements of an activation
# What was asked for, or happened, and then: the layers that were whole, and how many had computed.
Entry = namedtuple("Entry", "verb layer whole computed")


class Parameters:
    """Weights in slices on all ranks, and the log of what happens to them."""

    def __init__(self):
        self.comm, self.rows, self.log = WatchedComm(), {}, [Entry("start", None, (), 0)]
        self.layout = Layout.build({"weight": (WIDTH, WIDTH)}, self.comm.world_size)

    def note(self, verb: str, i: int) -> None:
        self.log.append(Entry(verb, i, tuple(self.rows), sum(entry.verb == "compute" for entry in self.log)))

    def gather(self, i: int) -> None:
        if not isinstance(i, int) or not 0 <= i < LAYERS:
            raise Wrong(f"`gather({value_text(i)})` was called: the layers are 0 to {LAYERS - 1}, and after the last "
                        "one there is nothing to gather ahead", MISUSED)
        if i in self.rows:
            raise Wrong(f"`gather({i})` was called while layer {i} was gathered already: once is enough, what travels "
                        "ahead must not be asked for again", MISUSED)
        row, whole = torch.zeros(2, self.layout.padded)
        whole[:WIDTH * WIDTH] = weight(i).flatten()
        own = self.layout.slice(self.comm.rank)
        row[own] = whole[own]
        self.rows[i] = row, self.comm.all_gather(row, self.layout, f"layer {i}")
        self.note("gather", i)

    def wait(self, i: int) -> torch.Tensor:
        if i not in self.rows:
            raise Wrong(f"`wait({i})` was called, and layer {i} was never gathered, or freed already: gather comes "
                        "first", MISUSED)
        row, handle = self.rows[i]
        handle.wait()
        self.note("wait", i)
        return row[:WIDTH * WIDTH].view(WIDTH, WIDTH)

    def free(self, i: int) -> None:
        if i not in self.rows:
            raise Wrong(f"`free({i})` was called, and layer {i} is not gathered", MISUSED)
        row, handle = self.rows.pop(i)
        handle.wait()
        row.fill_(math.nan)  # who uses it later shall see
        self.note("free", i)


def weight(i: int) -> torch.Tensor:
    return torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(i)) / WIDTH


def ahead_on_a_rank(answer, depth):
    """What the forward of five layers asks for, on data of this rank's own."""
    parameters = Parameters()

    def compute(i, x, weight):
        parameters.note("compute", i)
        return torch.tanh(x @ weight) + x

    x = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(100 + parameters.comm.rank))
    result = answer(x, [partial(compute, i) for i in range(LAYERS)], parameters, depth)
    gathers, waits, computes, frees = ([entry for entry in parameters.log if entry.verb == verb]
                                       for verb in ("gather", "wait", "compute", "free"))
    late = [(entry.layer, i) for entry in computes for i in range(entry.layer, min(entry.layer + depth + 1, LAYERS))
            if i not in entry.whole]
    peak, allowed = max(parameters.log, key=lambda entry: len(entry.whole)), min(depth + 1, LAYERS)
    freed = peak.computed - sum(i < peak.computed for i in peak.whole)
    return {"order": [entry.layer for entry in computes],
            "not waited": sorted(set(range(LAYERS)) - {entry.layer for entry in waits}),
            "freed": bool(frees),
            "freed early": [entry.layer for entry in computes if entry.layer not in entry.whole],
            "waited early": sorted({entry.layer for entry in waits if entry.layer > entry.computed}),
            "too many": len(peak.whole) if len(peak.whole) > allowed else 0,
            "late": late, "left": len(parameters.rows), "result": result,
            "begun too early": [min(entry.whole) < entry.computed for entry in gathers],  # tells mutants apart
            "_left": len(parameters.rows), "_peak": peak.layer, "_allowed": allowed, "_depth": depth,
            "_then": f"; until then {peak.computed} had computed and {freed} were freed" if peak.computed else "",
            "_computes": late[0][0] if late else None, "_late": late[0][1] if late else None}


@exercise(
    "8.5", "A forward that looks ahead", minutes=35, difficulty=2, timeout=15,
    replaces=("zerocourse.zero.passes.schedule:Prefetcher.next_after", "zerocourse.zero.shard:shard"),
    trials=[Trial([(1,), (0,), (2,), (7,)], ahead_on_a_rank, worlds=(2, 3))],
    mistakes={
        "all at once": {"reach": lambda i, depth: LAYERS},
        "no prefetch": {"reach": lambda i, depth: i},
        "always one": {"reach": lambda i, depth: i + 1},
        "too far": {"reach": lambda i, depth: i + depth + 1},
        "one too few": {"reach": lambda i, depth: i + max(0, depth - 1)},
        "in groups": {"reach": lambda i, depth: i - i % (depth + 1) + depth},
        "after computing": {"turn": ("own", "wait", "compute", "free", "gather")},
        "never freed": ({"turn": ("gather", "wait", "compute")}, {"turn": ("gather", "wait", "compute", "next")},
                        {"turn": ("gather", "wait", "compute", "next"), "at_the_end": range(LAYERS)}),
        "freed late": {"turn": ("gather", "wait", "compute", "next", "free")},
        "freed early": {"turn": ("gather", "wait", "free", "compute")},
        "last not freed": {"turn": ("free before", "gather", "wait", "compute")},
        "waits at once": {"turn": ("gather and wait", "compute", "free")},
        "not waited": {"turn": ("gather", "peek", "compute", "free")},
        "x lost": {"then": lambda x, new: x},
    })
def forward_ahead(x, layers, parameters, depth, *, turn=("gather", "wait", "compute", "free"), at_the_end=(),
                  reach=lambda i, depth: i + depth, then=lambda x, new: new):
    """The result of all layers. turn: what happens in a layer's turn, "next" are the gathers of the next layer's turn.
    reach: the last layer to gather for now.   at_the_end: the layers to free then."""
    weights, last = {}, LAYERS - 1

    def gather(until, verb):
        for ahead in range(len(weights), min(until, last) + 1):
            parameters.gather(ahead)
            weights[ahead] = parameters.wait(ahead) if verb == "gather and wait" else None

    for i, layer in enumerate(layers):
        for verb in turn:
            if verb in ("gather", "gather and wait", "own", "next"):
                gather(i if verb == "own" else reach(i + (verb == "next"), depth), verb)
            elif verb == "wait":
                weights[i] = parameters.wait(i)
            elif verb == "peek":
                weights[i] = parameters.rows[i][0][:WIDTH * WIDTH].view(WIDTH, WIDTH)
            elif verb == "compute":
                x = then(x, layer(x, weights[i]))
            elif verb == "free" or i:
                parameters.free(i - (verb == "free before"))
    for i in at_the_end:
        parameters.free(i)
    return x
