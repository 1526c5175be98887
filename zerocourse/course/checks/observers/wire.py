"""What an answer sends: while a `Wire` is on, every collective, send and receive of torch.distributed is noted, however
it was called, and no wait lasts for ever.

    with Wire(agree=True) as wire:
        answer(model)
    wire.sent("all_reduce")     # [300, 84]: elements, in the order of the calls

Ranks that disagree end with a sentence that says what each of them called, the same on every rank.
"""

import itertools
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from ....comm.torch_private import TorchDispatchMode, default_store
from ..verdict import STUCK, Wrong

SPACES = ("c10d", "_c10d_functional")
POINT_TO_POINT = {"send": "send", "recv": "recv", "recv_any_source": "recv"}
VERBS = {"allreduce": "all_reduce", "allreduce_coalesced": "all_reduce", "allgather": "all_gather",
         "allgather_base": "all_gather", "alltoall_base": "all_to_all", "alltoall": "all_to_all",
         "reduce_scatter_base": "reduce_scatter"}
OUTPUT_FIRST = ("allgather", "allgather_base", "alltoall", "alltoall_base", "gather", "reduce_scatter",
                "reduce_scatter_base")  # what these are given is their second argument
ROOT = {"broadcast": 2, "reduce": 3, "gather": 3, "scatter": 3}  # where the root is among the arguments
RULE = ("every rank must call the same collectives, in the same order: does one sit behind an `if` that is not true "
        "on every rank?")
SEND_FIRST = ("Every rank waits in a `send`, and a `send` ends only when its receiver is there, so nobody ever comes "
              "to receive: start it with `dist.isend`, receive, and then wait for it.")
PAIRS = "Each send needs one recv on the other side, and each recv one send; for a collective, every rank is needed."
_opened = itertools.count()  # the same number on every rank: a check opens its wires on all of them


class Wire(TorchDispatchMode):
    """`log`: what happened, in order, each a dictionary with at least `verb`.

    Calls have `elements` and `bytes` of what they were given (of a scatter, what a rank gets), `peer` (None in a
    collective) and `root` (None where all ranks are alike); `note` adds entries of the check's own; `wait` has no more.
    agree: before each collective the ranks compare what they call. timeout: seconds of any wait.
    keep: each call also has `values`, a copy of what it was given, as one row.
    """

    def __init__(self, agree: bool = False, timeout: float = 2.0, keep: bool = False):
        super().__init__()
        self.agree, self.timeout, self.keep, self.log = agree, timeout, keep, []
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.store = dist.PrefixStore(f"wire {next(_opened)}", default_store())
        self.collectives = 0

    # -- what happened -------------------------------------------------------------------------------------------------

    def note(self, verb: str, **about) -> None:
        self.log.append({"verb": verb, **about})

    @property
    def calls(self) -> list[tuple[str, int]]:
        """Verb and elements of each call, without waits and notes."""
        return [(entry["verb"], entry["elements"]) for entry in self.log if "elements" in entry]

    def sent(self, verb: str) -> list[int]:
        """Elements of each call of that verb."""
        return [elements for called, elements in self.calls if called == verb]

    @property
    def verbs(self) -> list[str]:
        """The kinds of calls, each once."""
        return sorted({verb for verb, _ in self.calls})

    # -- taking part ---------------------------------------------------------------------------------------------------

    def __enter__(self):
        self.real_wait = dist.Work.wait
        dist.Work.wait = lambda work, *limit: self._wait(work, *limit)
        return super().__enter__()

    def __exit__(self, kind, error, trace):
        result = super().__exit__(kind, error, trace)
        dist.Work.wait = self.real_wait
        if kind is None:
            self.store.set(f"done {self.rank}", str(self.collectives))
        return result

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace in SPACES:
            self._called(func.__name__.partition(".")[0].strip("_"), args)
        return func(*args, **(kwargs or {}))

    def _called(self, op: str, args) -> None:
        if op.startswith("wait_tensor"):
            return self.note("wait")
        given = args[1:2] if op in OUTPUT_FIRST else args[:1]
        tensors = [value for value in _flat(given) if isinstance(value, torch.Tensor)]
        elements = sum(tensor.numel() for tensor in tensors)
        peer = args[2] if op in ("send", "recv") else None
        root = args[ROOT[op]] if op in ROOT else None
        entry = {"verb": POINT_TO_POINT.get(op) or VERBS.get(op, op), "elements": elements,
                 "bytes": sum(tensor.nbytes for tensor in tensors), "peer": peer, "root": root}
        if self.keep:
            entry["values"] = torch.cat([tensor.detach().flatten().float() for tensor in tensors] or [torch.zeros(0)])
        self.log.append(entry)
        if self.agree and op not in POINT_TO_POINT:
            where = "" if root is None else f" {'from' if op in ('broadcast', 'scatter') else 'to'} rank {root}"
            self.meet(f"{entry['verb']}{where} of {elements:_} elements")

    def meet(self, call: str) -> None:
        """Wait for the other ranks; end with a sentence unless they call the same."""
        self.collectives += 1
        number, until = self.collectives, time.monotonic() + self.timeout
        self.store.set(f"call {number} {self.rank}", call)
        here = f"the ranks disagree on their collective number {number}: rank {self.rank} calls {call}, and rank"
        for peer in range(self.world_size):
            while not self.store.check([f"call {number} {peer}"]):
                if self.store.check([f"done {peer}"]) and not self.store.check([f"call {number} {peer}"]):  # in between
                    raise Wrong(f"{here} {peer} has come to its end and calls none; {RULE}", STUCK)
                if time.monotonic() > until:
                    raise Wrong(f"{here} {peer} did not call any for {self.timeout:g} s; {RULE}", STUCK)
                time.sleep(0.001)
        calls = [self.store.get(f"call {number} {peer}").decode() for peer in range(self.world_size)]
        if len(set(calls)) > 1:
            told = ", ".join(f"rank {rank} calls {what}" for rank, what in enumerate(calls))
            raise Wrong(f"the ranks disagree on their collective number {number}: {told}; every rank must call the "
                        "same collectives, in the same order", STUCK)

    def _wait(self, work, *limit):
        self.note("wait")
        try:
            return self.real_wait(work, *(limit or [timedelta(seconds=self.timeout)]))
        except RuntimeError as error:
            if limit or not ("imed out" in str(error) or self._others_are_stuck()):
                raise
        raise Wrong(self._stuck(), STUCK)

    def _others_are_stuck(self) -> bool:
        """Does another rank give up now? Its connections close then, and this rank may notice that first."""
        until, keys = time.monotonic() + 0.5, [f"stuck {peer}" for peer in range(self.world_size)]
        while not (came := any(self.store.check([key]) for key in keys)) and time.monotonic() < until:
            time.sleep(0.01)
        return came

    def _stuck(self) -> str:
        """Every rank's last call, after a wait that did not end."""
        last = next((entry for entry in reversed(self.log) if "elements" in entry), {"verb": "wait", "peer": None})
        to = "" if last["peer"] is None else f" {'to' if last['verb'] == 'send' else 'from'} rank {last['peer']}"
        self.store.set(f"stuck {self.rank}", f"{last['verb']}{to}")
        until, said = time.monotonic() + 2, {}
        while len(said) < self.world_size and time.monotonic() < until:
            said |= {peer: self.store.get(f"stuck {peer}").decode() for peer in range(self.world_size)
                     if self.store.check([f"stuck {peer}"])}
            said |= {peer: "" for peer in range(self.world_size) if self.store.check([f"done {peer}"])}
            time.sleep(0.01)
        told = "; ".join(f"rank {rank} {f'waits in {said[rank]}' if said.get(rank) else 'had come to its end'}"
                         for rank in range(self.world_size) if rank in said)
        why = SEND_FIRST if all(call.startswith("send") for call in said.values()) else PAIRS
        return f"nothing moved for {self.timeout:g} s: {told}. {why}"


def sorted_values(log: list[dict]) -> torch.Tensor:
    """All numbers that the calls of a log were given, sorted, so that neither order nor grouping matters."""
    return torch.cat([entry["values"] for entry in log if "values" in entry] or [torch.zeros(0)]).sort().values


def _flat(values):
    """Tensors in lists in lists, one after the other."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(value)
        else:
            yield value
