"""Trying what may fail: every rank reports what came of it, and a test says what would have been right.

A habit that a sharded model cannot serve may be refused, but only in one sentence that names what to do. So each
*attempt* ends in one of three ways on a rank: a value, a refusal, or a failure (any other exception, a collective that
waited in vain included), and `judge` compares the ways of all ranks with what is promised. All ranks that got a value
must have issued the same collectives in the same order.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import zip_longest

import torch
import torch.distributed as dist
import worlds
from torch import nn
from worlds import STAGES, Case, Run, Stack

from zerocourse import shard, state_dict
from zerocourse.comm import Comm

A_PARAMETER = r"\b(first|last|blocks\.\d\.(up|down))\.(weight|bias)\b"  # of a Stack
SECONDS = 1.0  # that a collective may wait: what hangs fails after this time, and a few more until ranks compared notes


def attempt(work: Callable, *args, timeout: float = SECONDS) -> dict:
    """`work(comm, *args)` on this rank, with a group of its own, so that a failure spoils nothing for the next attempt.

    Returns the `value` or the `error` (its class and its sentence), and the `order` of this rank's all-gathers and
    reduce-scatters: (verb, unit) in the order in which they were issued.
    """
    group = dist.new_group()
    comm = Comm(group, timeout=timeout)
    comm.recorder.keep = 1_000_000
    found = {"value": None, "error": None}
    try:
        found["value"] = work(comm, *args)
    except Exception as error:
        found["error"] = type(error).__name__, str(error)
    finally:
        dist.barrier()  # a rank that is done early is in no collective of ours, and its connections stay open
        dist.destroy_process_group(group)
    issued = sorted((event for event in comm.recorder.events if event.verb in ("all_gather", "reduce_scatter")),
                    key=lambda event: event.start)
    return found | {"order": [(event.verb, event.unit) for event in issued]}


def one_after_the_other(work: Callable, inputs: list[tuple], timeout: float) -> list[dict]:
    return [attempt(work, *args, timeout=timeout) for args in inputs]


def attempts(pool, work: Callable, inputs: list[tuple], world_size: int = 2,
             timeout: float = SECONDS) -> list[tuple[dict, ...]]:
    """`work(comm, *args)` for each of the inputs, on ranks: for each input, what came of it on every rank."""
    return list(zip(*pool(world_size).run(one_after_the_other, work, inputs, timeout), strict=True))


def judge(what: str, ranks: Iterable[dict], check: Callable[[int, object], None] | None, refusal: str | None,
          kinds: tuple[str, ...] = ("BadInput",)) -> str:
    """What is wrong with an attempt, in words; nothing when it came out right.

    check(rank, value): raises AssertionError when the value of a rank is not the promised one; None: no value will do.
    refusal: what a sentence that refuses it must match; None: it may not be refused. kinds: the errors that may do so.
    """
    ranks = list(ranks)
    if all(found["error"] is None for found in ranks):
        if check is None:
            return f"{what}: nothing was said"
        try:
            for rank, found in enumerate(ranks):
                check(rank, found["value"])
        except AssertionError as error:
            return f"{what}: wrong, and nothing was said: {str(error).partition(chr(10))[0] or 'an assertion failed'}"
        for index, calls in enumerate(zip_longest(*(found["order"] for found in ranks))):
            if len(set(calls)) > 1:
                return f"{what}: the ranks issued their collectives in different orders: number {index} is {calls}"
        return ""
    faults = []
    for rank, found in enumerate(ranks):
        kind, said = found["error"] or ("nothing", "it was not refused there")
        if kind not in kinds or refusal is None or "\n" in said or not re.search(refusal, said):
            faults.append(f"rank {rank}: {kind}: {' '.join(said.split())[:300]}")
    return f"{what}: {'; '.join(faults)}" + (f" [to be refused with /{refusal}/]" if refusal else "") if faults else ""


def report(complaints: Iterable[str]) -> None:
    """Fail with all complaints at once."""
    complaints = list(filter(None, complaints))
    assert not complaints, "\n  ".join(["", *complaints])


def by_stage(pool, work: Callable, check: Callable[[int, object], None] | None, refusal: str | None = None, *,
             args: tuple = (), stages: Iterable[int] = STAGES, world_size: int = 2, timeout: float = SECONDS,
             kinds: tuple[str, ...] = ("BadInput",)) -> None:
    """`work(comm, stage, *args)` at each stage gives what `check` wants on every rank, or is refused."""
    found = attempts(pool, work, [(stage, *args) for stage in stages], world_size, timeout)
    report(judge(f"stage {stage}", ranks, check, refusal, kinds) for stage, ranks in zip(stages, found, strict=True))


# -- cases: training as the unsharded model does ---------------------------------------------------------------------

def train(comm: Comm, case: Case) -> Run:
    return worlds.train(case, comm)


def check_run(case: Case, rank: int, run: Run, tolerance: float | None) -> None:
    """It equals the unsharded run: bit for bit, or within the tolerance."""
    oracle = worlds.exact(case)[rank]
    if tolerance is None:
        worlds.check_bitwise(run, oracle, f"rank {rank}")
    else:
        worlds.check_near(run, oracle, f"rank {rank}", tolerance)


def check_cases(pool, cases: list[Case], tolerance: float | None = None, refusal: str | None = None,
                kinds: tuple[str, ...] = ("BadInput",)) -> None:
    """Each case (all of one world size) trains as the unsharded model does; or, if `refusal` is given, is refused."""
    found = attempts(pool, train, [(case,) for case in cases], cases[0].world_size)
    report(judge(str(case), ranks, lambda rank, run, case=case: check_run(case, rank, run, tolerance), refusal, kinds)
           for case, ranks in zip(cases, found, strict=True))


def of_stack(make: Callable = worlds.Stack, stages: Iterable[int] = STAGES, **fields) -> list[Case]:
    """A case a stage of a model that takes rows."""
    case = Case(**{"make": make, "loss": worlds.squares, "steps": 2} | fields)
    return [replace(case, stage=stage) for stage in stages]


def gathered_units(model) -> list[str]:
    """The units, other than the root, whose parameters are held whole on this rank."""
    return [unit.name for unit in model.zero.units[1:] if any(flat.gathered for flat in unit.flats)]


# -- other work: a function of (comm, stage, *args) that is also its own oracle, when the stage is None ----------------

def plain_sgd(params) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1)


def prepared(comm: Comm | None, stage: int | None, make: Callable = Stack, optimizer_of: Callable = plain_sgd,
             **options) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer, sharded (with the options of `shard`) unless the stage is None."""
    model = make()
    optimizer = optimizer_of(model.parameters())
    return (model, optimizer) if stage is None else shard(model, optimizer, stage, comm=comm, **options)


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """The whole state of a model, sharded or not."""
    state = state_dict(model) if hasattr(model, "zero") else model.state_dict()
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def is_state(expected: dict[str, torch.Tensor], tolerance: float | None = 1e-6) -> Callable[[int, object], None]:
    """A check: each rank's state is this one, bit for bit (None) or up to a part of the largest element."""

    def check(rank: int, state: dict[str, torch.Tensor]) -> None:
        assert state.keys() == expected.keys(), f"rank {rank} has {list(state)}, not {list(expected)}"
        if tolerance is None:
            worlds.check_same_state(state, expected, f"rank {rank}")
        else:
            worlds.check_near(Run([], state, []), Run([], expected, []), f"rank {rank}", tolerance)

    return check


def unsharded(work: Callable, *args) -> Callable[[int, object], None]:
    """A check: each rank's state is what `work` leaves without sharding, on the rows that all ranks have."""
    return is_state(work(None, None, *args))


def pieces_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """What the optimizer steps."""
    return [param for group in optimizer.param_groups for param in group["params"]]
