"""All-reduce from nothing but send and receive, in two shapes. Each function returns the elements that this rank sent.

A row of n elements, N ranks. The star sends everything through rank 0: (N-1)n for rank 0, n for the others. The ring
(Patarasuk and Yuan 2009) sends 2n(N-1)/N on every rank, however many there are.
"""

import torch
import torch.distributed as dist


def star_all_reduce(row: torch.Tensor) -> int:
    """Everyone sends its row to rank 0, which adds them up and sends the sum back. In place."""
    if dist.get_rank() != 0:
        dist.send(row, 0)
        dist.recv(row, 0)
        return row.numel()
    others = range(1, dist.get_world_size())
    for peer in others:
        received = torch.empty_like(row)
        dist.recv(received, peer)
        row += received
    for peer in others:
        dist.send(row, peer)
    return row.numel() * len(others)


def ring_reduce_scatter(row: torch.Tensor) -> int:
    """N-1 rounds to the right; afterwards part r of the row is summed on rank r, the rest is scratch. In place."""
    rank, world_size, parts, sent = dist.get_rank(), dist.get_world_size(), _parts(row), 0
    for turn in range(1, world_size):
        sent += _pass_on(parts[(rank - turn) % world_size], parts[(rank - turn - 1) % world_size], add=True)
    return sent


def ring_all_gather(row: torch.Tensor) -> int:
    """N-1 rounds to the right; part r of the row, which is right on rank r, comes to all. In place."""
    rank, world_size, parts, sent = dist.get_rank(), dist.get_world_size(), _parts(row), 0
    for turn in range(world_size - 1):
        sent += _pass_on(parts[(rank - turn) % world_size], parts[(rank - turn - 1) % world_size], add=False)
    return sent


def ring_all_reduce(row: torch.Tensor) -> int:
    """The sum on every rank: one after the other. In place."""
    return ring_reduce_scatter(row) + ring_all_gather(row)


def _parts(row: torch.Tensor) -> list[torch.Tensor]:
    """The row in N parts, views of it, as even as can be."""
    return list(row.tensor_split(dist.get_world_size()))


def _pass_on(mine: torch.Tensor, incoming: torch.Tensor, add: bool) -> int:
    """Send one part to the right neighbour while another comes from the left; all ranks at once."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(incoming)
    sending = dist.isend(mine.contiguous(), (rank + 1) % world_size)  # not send: all would wait for each other
    dist.recv(received, (rank - 1) % world_size)
    sending.wait()
    incoming.add_(received) if add else incoming.copy_(received)
    return mine.numel()
