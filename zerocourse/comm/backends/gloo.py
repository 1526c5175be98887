"""Collectives over gloo: direct exchanges, in which each rank sends each peer exactly the slice that the peer needs.

gloo's own reduce_scatter is an all_reduce inside and sends twice what the formula says. Here a slice travels in pieces
that are small enough to keep both directions of a link busy at the same time.

Every message carries a tag made from the call and its layout, so that the messages of ranks that disagree about the
next collective never match by accident. Such ranks wait until the time limit, and the error says where each rank was
(see `desync`).
"""

import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from ...layout.rankmap import Layout

PIECE_BYTES = 1 << 20  # one large send and receive run half-duplex; pieces of this size reach 96 % of a link
MOST_PIECES = 16
# Works for which nobody has waited yet, by their list's id. A gloo message that is dropped before it has arrived, as by a backward that
# ended in an exception and is never tried again, breaks the connection of its two ranks: so it is not dropped.
unwaited: dict[int, list] = {}
NEVER_SENT = 0x7FFFFFFF  # a tag that no message has: those of `exchange` end in their piece's number, below 16


class Transfer(NamedTuple):
    """A collective that has started. When all `works` are complete, `finish()` writes the result.

    For a reduce-scatter, finish() returns this rank's slice of the sum.
    """

    works: list
    finish: Callable[[], torch.Tensor | None]


class Gloo:
    """Collectives of one group (None: the default group). `name` keeps the messages of two Comms of a group apart."""

    def __init__(self, group: dist.ProcessGroup | None, rank: int, world_size: int, name: str):
        self.group, self.rank, self.world_size, self.name = group, rank, world_size, name
        self.peers = [peer for peer in range(world_size) if peer != rank]

    def all_gather(self, tensor: torch.Tensor, layout: Layout, call: str) -> Transfer:
        """Fill `tensor` (n,) with the slices of all ranks. This rank's own slice is already there."""
        mine = tensor[layout.slice(self.rank)]
        others = {peer: tensor[layout.slice(peer)] for peer in self.peers}
        return self.exchange(f"{call} {layout.bounds}", dict.fromkeys(self.peers, mine), others)

    def reduce_scatter(self, tensor: torch.Tensor, layout: Layout, into: torch.Tensor | None, call: str) -> Transfer:
        """Add up every rank's slice r on rank r, into `into` or into new memory."""
        mine = tensor[layout.slice(self.rank)]
        received = {peer: torch.empty_like(mine) for peer in self.peers}
        sends = {peer: tensor[layout.slice(peer)] for peer in self.peers}
        works, arrived = self.exchange(f"{call} {layout.bounds}", sends, received)

        def add() -> torch.Tensor:
            arrived()
            terms = [received.get(rank, mine) for rank in range(self.world_size)]
            spare = next((term for term in terms if term is not mine), None)
            received.clear()  # the caller may start its next collective before this function is freed
            return add_in_order(terms, spare if into is None else into)

        return Transfer(works, add)

    def all_to_all(self, rows: torch.Tensor, into: torch.Tensor, call: str) -> Transfer:
        """Send row r of `rows` (N, n) to rank r, and fill row r of `into` (N, n) with what rank r sends."""
        into[self.rank].copy_(rows[self.rank])
        return self.exchange(call, {peer: rows[peer] for peer in self.peers}, {peer: into[peer] for peer in self.peers})

    def received_bytes(self, tensor: torch.Tensor, layout: Layout) -> int:
        """Bytes that a reduce-scatter of `tensor` (n,) takes beside it, until it is complete."""
        return len(self.peers) * tensor[layout.slice(self.rank)].nbytes

    def all_reduce(self, flat: torch.Tensor, op: str, call: str) -> Transfer:
        """The element-wise "sum" or "max" over the ranks, in place. Every rank sends everything to every other."""
        received = {peer: torch.empty_like(flat) for peer in self.peers}
        works, arrived = self.exchange(call, dict.fromkeys(self.peers, flat), received)

        def reduce() -> None:
            arrived()
            terms = [received.get(rank, flat) for rank in range(self.world_size)]
            if op == "sum":
                add_in_order(terms, flat)
            else:
                torch.amax(torch.stack(terms), dim=0, out=flat)

        return Transfer(works, reduce)

    def broadcast(self, flat: torch.Tensor, call: str) -> Transfer:
        """Rank 0's values on every rank, in place."""
        return self.exchange(call, {} if self.rank else dict.fromkeys(self.peers, flat), {0: flat} if self.rank else {})

    def wait(self, works: list, timeout: timedelta) -> None:
        """Block until all works are complete. Raises RuntimeError after `timeout`, or if a peer is gone."""
        for work in works:
            work.wait(timeout)
        unwaited.pop(id(works), None)

    def disconnect(self) -> None:
        """Close this rank's connections of the group, so that a peer that waits at one of them notices at once.

        gloo closes all of them when a wait at one has run out of time, but none when that one is closed already. To destroy
        the group would not do: its connections stay as long as anything refers to it, and a traceback does.
        """
        never_sent = torch.empty(1)
        for peer in self.peers:
            with suppress(RuntimeError):  # the time is up
                dist.irecv(never_sent, group=self.group, group_src=peer, tag=NEVER_SENT).wait(timedelta(milliseconds=1))

    # -- how it is done -----------------------------------------------------------------------------------------------

    def exchange(self, call: str, sends: dict[int, torch.Tensor], receives: dict[int, torch.Tensor],
                 names: dict[tuple[int, int], str] | None = None) -> Transfer:
        """Start all sends and receives, which are given by peer. Where a layout cuts the tensor, `call` contains it:
        otherwise a message of another size could be taken for the right one, or end the process.

        names: by (source, to), what its two ends call a message, where they alone know of it; None: all of them are `call`.
        """
        messages = []
        for step in range(1, self.world_size):  # rank r begins with peer r + 1, so that not all begin with the same
            to, source = (self.rank + step) % self.world_size, (self.rank - step) % self.world_size
            for verb, peer, tensor, way in ((dist.irecv, source, receives.get(source), (source, self.rank)),
                                            (dist.isend, to, sends.get(to), (self.rank, to))):
                if tensor is not None and tensor.numel():
                    tag = zlib.crc32(f"{self.name} {call if names is None else names[way]}".encode()) & 0x7FFFFF00
                    pieces = tensor.tensor_split(max(1, min(MOST_PIECES, tensor.nbytes // PIECE_BYTES)))
                    messages += [(verb, piece, peer, tag | index) for index, piece in enumerate(pieces)]

        def arrived(alive=sends) -> None:
            """The default argument `alive` keeps what is sent from being freed before it was sent."""

        return Transfer(self.post(messages), arrived)

    def post(self, messages: list[tuple[Callable, torch.Tensor, int, int]]) -> list:
        """Start each message, given as (isend or irecv, tensor, peer, tag), and return the works."""
        side = {dist.isend: "group_dst", dist.irecv: "group_src"}
        works = [verb(piece, group=self.group, tag=tag, **{side[verb]: peer}) for verb, piece, peer, tag in messages]
        if works:
            unwaited[id(works)] = works
        return works


def add_in_order(terms: list[torch.Tensor], into: torch.Tensor | None = None) -> torch.Tensor:
    """terms[0] + terms[1] + ..., left to right, into `into` (which may be one of the terms) or a new tensor.

    The other terms may be overwritten. Terms in half precision are added in fp32, and the sum is rounded once.
    """
    into = torch.empty_like(terms[0]) if into is None else into
    if len(terms) == 1:
        return into if into is terms[0] else into.copy_(terms[0])
    if terms[0].element_size() < 4 and terms[0].is_floating_point():
        terms = [terms[0].float(), *terms[1:]]
    total = terms[0]
    for term in terms[1:-1]:
        total.add_(term)
    return torch.add(total, terms[-1], out=into) if total.dtype == into.dtype else into.copy_(total.add_(terms[-1]))
