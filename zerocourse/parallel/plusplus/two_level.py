"""Collectives in two hops. Between nodes a rank meets only its counterparts, those with its own number inside of a node.

Ranks count through a node before they come to the next, so rank (i, j), number j of node i, owns slice i·S + j of a buffer
of N = n·S equal slices, for n nodes of S ranks.

    gather    between nodes: the slices of its counterparts, n of N; then inside the node: what its neighbours got so
    reduce    inside the node: the sum of what its ranks have for the counterparts of each; then between nodes: the rest

A plain all-gather sends every slice to all N - S ranks of other nodes. Here it goes to n - 1 of them, so a node sends Ψ in
place of S·Ψ; its ranks pass on the rest among themselves.
"""

from collections.abc import Callable

from torch import Tensor

from ...comm import Comm, Handle
from ...layout.rankmap import Layout
from .blocks import Quantized, dequantize, empty, quantize


class TwoHops:
    """Under way: the first hop has begun, and `wait` makes the second when it is complete. second() returns its handles."""

    def __init__(self, first: list[Handle], second: Callable[[], list[Handle]], done: Callable[[], None]):
        self.first, self.second, self.done = first, second, done

    def wait(self) -> None:
        """A second call returns at once."""
        if self.done is None:
            return
        second, done, self.done = self.second, self.done, None
        for handle in self.first:
            handle.wait()
        for handle in second():
            handle.wait()
        done()


def gather_rows(rows: Tensor, comm: Comm, unit: str) -> Handle:
    """Row r of (N, ...) is this rank's; the others come."""
    return comm.all_gather(rows.view(-1), Layout.split(rows.numel(), comm.world_size), unit)


def gather(own: Tensor, full: Tensor, node: Comm, nodes: Comm, unit: str, bits: int | None = None) -> TwoHops:
    """Fill `full` (n·S·b,) with every rank's slice (b,). bits: 8, sent in so many; None: as they are.

    In bits all ranks, the owner too, get what was sent, because all must compute with the same weights.
    """
    n, S = nodes.world_size, node.world_size
    if bits is None:
        between = own.new_empty(n, len(own))
        between[nodes.rank] = own
        inside = own.new_empty(S, n, len(own))

        def second() -> list[Handle]:
            inside[node.rank] = between
            return [gather_rows(inside, node, unit)]

        def done() -> None:
            full.view(n, S, -1).copy_(inside.transpose(0, 1))

        return TwoHops([gather_rows(between, nodes, unit)], second, done)
    mine, between = quantize(own[None], bits), empty(n, len(own), bits, own.device)
    inside = Quantized(*(each.new_empty(S, *each.shape) for each in (between.payload, between.scales)))
    between.payload[nodes.rank], between.scales[nodes.rank] = mine.payload[0], mine.scales[0]

    def second_in_bits() -> list[Handle]:
        inside.payload[node.rank], inside.scales[node.rank] = between.payload, between.scales
        return [gather_rows(inside.payload, node, unit), gather_rows(inside.scales, node, f"scales of {unit}")]

    def done_in_bits() -> None:
        rows = Quantized(inside.payload.flatten(0, 1), inside.scales.flatten(0, 1))
        full.view(n, S, -1).copy_(dequantize(rows, len(own), bits).view(S, n, -1).transpose(0, 1))

    return TwoHops([gather_rows(between.payload, nodes, unit), gather_rows(between.scales, nodes, f"scales of {unit}")],
                   second_in_bits, done_in_bits)


def exchange(rows: Quantized, comm: Comm, unit: str, bits: int, numel: int) -> tuple[list[Handle], Quantized]:
    """Row r goes to rank r. Returns what is under way, and where the others' rows for this rank arrive."""
    arrived = empty(comm.world_size, numel, bits, rows.payload.device)
    return [comm.all_to_all(rows.payload, arrived.payload, unit),
            comm.all_to_all(rows.scales, arrived.scales, f"scales of {unit}")], arrived


def reduce(bucket: Tensor, node: Comm, nodes: Comm, unit: str, bits: int, done: Callable[[Tensor], None]) -> TwoHops:
    """The sum over all ranks of this rank's slice of `bucket` (n·S·b,), sent in bits; done(sum (b,), fp32).

    Each hop rounds what it sends, adds in fp32, and in the order of ranks. Sums are made inside the node first, so only
    one number in S goes between nodes.
    """
    n, S = nodes.world_size, node.world_size
    numel = len(bucket) // (n * S)
    by_neighbour = bucket.view(n, S, numel).transpose(0, 1).reshape(S, n * numel)
    handles, arrived = exchange(quantize(by_neighbour, bits), node, unit, bits, n * numel)
    state = {}

    def second() -> list[Handle]:
        in_node = dequantize(arrived, n * numel, bits).sum(0)
        under_way, state["arrived"] = exchange(quantize(in_node.view(n, numel), bits), nodes, unit, bits, numel)
        return under_way

    return TwoHops(handles, second, lambda: done(dequantize(state["arrived"], numel, bits).sum(0)))
