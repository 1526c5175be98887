"""Exercise 8.5 on its ranks: weights in slices, a forward that gathers them, and the log of what it asked for."""

import math

import torch
import torch.distributed as dist

from ....comm.group import Comm
from ....layout.rankmap import Layout
from ..lab import Lab
from ..verdict import Wrong
from ..words import value_text

SIZES, WIDTH = 5, 4  # layers, and elements of an activation


class Parameters:
    """Weights in slices on all ranks, and the log of what the answer asked for."""

    def __init__(self):
        self.comm, self.log, self.rows = Comm(timeout=5), [], {}
        self.layout = Layout.build({"weight": (WIDTH, WIDTH)}, self.comm.world_size)

    def gather(self, i: int) -> None:
        if not isinstance(i, int) or not 0 <= i < SIZES:
            raise Wrong(f"`gather({value_text(i)})` was called: the layers are 0 to {SIZES - 1}, and after the last "
                        "one there is nothing to gather ahead")
        if i in self.rows:
            raise Wrong(f"`gather({i})` was called while layer {i} was gathered already: once is enough, what travels "
                        "ahead must not be asked for again")
        row = torch.zeros(self.layout.padded)
        own = self.layout.slice(self.comm.rank)
        full = torch.zeros_like(row)
        full[:WIDTH * WIDTH] = weight(i).flatten()
        row[own] = full[own]
        self.rows[i] = row, self.comm.all_gather(row, self.layout, f"layer {i}")
        self.log.append(("gather", i, len(self.rows)))

    def wait(self, i: int) -> torch.Tensor:
        if i not in self.rows:
            raise Wrong(f"`wait({i})` was called, and layer {i} was never gathered, or freed already: gather comes "
                        "first")
        row, handle = self.rows[i]
        handle.wait()
        self.log.append(("wait", i, len(self.rows)))
        return row[:WIDTH * WIDTH].view(WIDTH, WIDTH)

    def free(self, i: int) -> None:
        if i not in self.rows:
            raise Wrong(f"`free({i})` was called, and layer {i} is not gathered")
        self.rows.pop(i)[0].fill_(math.nan)  # who uses it later shall see
        self.log.append(("free", i, len(self.rows)))


def weight(i: int) -> torch.Tensor:
    return torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(i)) / WIDTH


def run_ahead(answer, depth: int):
    """The answer's result and log, on data of this rank's own."""
    parameters = Parameters()

    def layer(i):
        def compute(x, w):
            parameters.log.append(("compute", i, len(parameters.rows)))
            return torch.tanh(x @ w) + x
        return compute

    x = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(100 + dist.get_rank()))
    result, want = answer(x.clone(), [layer(i) for i in range(SIZES)], parameters, depth), x
    for i in range(SIZES):
        want = torch.tanh(want @ weight(i)) + want
    return {"result": result, "want": want, "log": parameters.log}


def judge_ahead(lab: Lab, found, depth: int, case: str):
    log = found["log"]
    when = {(verb, i): number for number, (verb, i, _) in reversed(list(enumerate(log)))}
    computed = [i for verb, i, _ in log if verb == "compute"]
    if computed != list(range(SIZES)):
        lab.wrong(f"{case}: the layers computed in the order {computed}, and they are {list(range(SIZES))}.")
    for i in range(SIZES):
        for verb in ("gather", "wait"):
            if (verb, i) not in when:
                lab.wrong(f"{case}: layer {i} computed, and `{verb}({i})` was never called.")
    if not any(verb == "free" for verb, _, _ in log):
        lab.wrong(f"{case}: nothing was freed, so that at the end {log[-1][2]} layers are whole: free a layer as soon "
                  "as it has computed.")
    most = max(whole for _, _, whole in log)
    for i in range(SIZES):
        if when.get(("free", i), len(log)) < when["compute", i]:
            lab.wrong(f"{case}: layer {i} was freed before it computed.")
        if i and when["wait", i] < when["compute", i - 1]:
            lab.wrong(f"{case}: it waited for layer {i} before layer {i - 1} computed. A wait right after the gather "
                      "looks asynchronous, and nothing overlaps: wait for a layer when it is its turn.")
    if most > min(depth + 1, SIZES):
        worst = next(entry for entry in log if entry[2] == most)
        before = [verb for verb, _, _ in log[:log.index(worst)]]
        done, freed = before.count("compute"), before.count("free")
        why = "All gathers left at once." if most == SIZES and not done else \
            "A layer has to be freed before the next gather begins." if most == depth + 2 and freed_late(log) else \
            f"Until then {done} layers had computed, and {f'only {freed} were' if freed else 'nothing was'} freed: " \
            "free a layer as soon as it has computed." if most - (done - freed) <= depth + 1 else \
            "It gathers farther ahead than `depth`."
        lab.wrong(f"{case}: {most} layers were whole at once, at `{worst[0]}({worst[1]})`, where "
                  f"{min(depth + 1, SIZES)} are allowed. {why}")
    for i in range(SIZES):
        late = [j for j in range(i, min(i + depth + 1, SIZES)) if when["gather", j] > when["compute", i]]
        if late:
            lab.wrong(f"{case}: when layer {i} computed, the gather of layer {late[0]} had not left: while a layer "
                      f"computes, the next {depth} should travel.")
    if log[-1][2]:
        lab.wrong(f"{case}: at the end {log[-1][2]} layers are still whole: free the last ones too.")
    lab.expect(found["result"], found["want"], f"{case}, the result", tolerance=1e-5)


def freed_late(log) -> bool:
    """Did the gather that was too much come between a layer's compute and its free?"""
    computed = set()
    for number, (verb, i, _) in enumerate(log):
        if verb == "compute":
            computed.add(i)
        elif verb == "free":
            computed.discard(i)
        elif verb == "gather" and computed:
            return any(entry[0] == "free" for entry in log[number:])
    return False
