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
from .blocks import Quantized, dequantize, dequantized_sum, empty, quantize


def gather_rows(rows: Tensor, comm: Comm, unit: str) -> Handle:
    """Row r of (N, ...) is this rank's; the others come."""
    return comm.all_gather(rows.view(-1), Layout.split(rows.numel(), comm.world_size), unit)


def gather_quantized(rows: Quantized, comm: Comm, unit: str) -> Handle:
    """The same for rows in bits and their scales."""
    payload, scales = gather_rows(rows.payload, comm, unit), gather_rows(rows.scales, comm, f"scales of {unit}")
    return payload.then(lambda: scales)


def gather(own: Tensor, full: Tensor, node: Comm, nodes: Comm, unit: str, bits: int | None = None) -> Handle:
    """Fill `full` (n·S·b,) with every rank's slice (b,). bits: 8, sent in so many; None: as they are.

    In bits all ranks, the owner too, get what was sent, because all must compute with the same weights.
    """
    n, S = nodes.world_size, node.world_size
    if bits is None:
        between = own.new_empty(n, len(own))
        between[nodes.rank] = own
        inside = own.new_empty(S, n, len(own))

        def second() -> Handle:
            inside[node.rank] = between
            return gather_rows(inside, node, unit)

        def done() -> None:
            full.view(n, S, -1).copy_(inside.transpose(0, 1))

        return gather_rows(between, nodes, unit).then(second).then(done)
    mine, between = quantize(own[None], bits), empty(n, len(own), bits, own.device)
    inside = Quantized(*(each.new_empty(S, *each.shape) for each in (between.payload, between.scales)))
    between.payload[nodes.rank], between.scales[nodes.rank] = mine.payload[0], mine.scales[0]

    def second_in_bits() -> Handle:
        inside.payload[node.rank], inside.scales[node.rank] = between.payload, between.scales
        return gather_quantized(inside, node, unit)

    def done_in_bits() -> None:
        rows = Quantized(inside.payload.flatten(0, 1), inside.scales.flatten(0, 1))
        full.view(n, S, -1).copy_(dequantize(rows, len(own), bits).view(S, n, -1).transpose(0, 1))

    return gather_quantized(between, nodes, unit).then(second_in_bits).then(done_in_bits)


def exchange(rows: Quantized, comm: Comm, unit: str, bits: int, numel: int) -> tuple[Handle, Quantized]:
    """Row r goes to rank r. Returns what is under way, and where the others' rows for this rank arrive."""
    arrived = empty(comm.world_size, numel, bits, rows.payload.device)
    payload = comm.all_to_all(rows.payload, arrived.payload, unit)
    scales = comm.all_to_all(rows.scales, arrived.scales, f"scales of {unit}")
    return payload.then(lambda: scales), arrived


def reduce(bucket: Tensor, node: Comm, nodes: Comm, unit: str, bits: int, done: Callable[[Tensor], None]) -> Handle:
    """The sum over all ranks of this rank's slice of `bucket` (n·S·b,), sent in bits; done(sum (b,), fp32).

    Each hop rounds what it sends, adds in fp32, and in the order of ranks. Sums are made inside the node first, so only
    one number in S goes between nodes.
    """
    n, S = nodes.world_size, node.world_size
    numel = len(bucket) // (n * S)
    by_neighbour = bucket.view(n, S, numel).transpose(0, 1).reshape(S, n * numel)
    inside, of_node = exchange(quantize(by_neighbour, bits), node, unit, bits, n * numel)

    def second() -> Handle:
        in_node = dequantized_sum(of_node, n * numel, bits)
        between, arrived = exchange(quantize(in_node.view(n, numel), bits), nodes, unit, bits, numel)
        return between.then(lambda: done(dequantized_sum(arrived, numel, bits)))

    return inside.then(second)
