"""All-reduce built from nothing but send and receive, in two ways. Each function works in place on a flat buffer of
n elements and returns the number of elements that this rank sent.

With N ranks, the star sends everything through rank 0, so that rank 0 sends (N-1)n elements and every other rank n.
In the ring (Patarasuk and Yuan 2009) every rank sends 2n(N-1)/N elements, which is less than 2n for any N.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist


def star_all_reduce(buffer: torch.Tensor) -> int:
    """Every rank sends its buffer to rank 0, which adds them all up and sends the sum back."""
    if dist.get_rank() != 0:
        dist.send(buffer, 0)
        dist.recv(buffer, 0)
        return buffer.numel()
    others = range(1, dist.get_world_size())
    for peer in others:
        received = torch.empty_like(buffer)
        dist.recv(received, peer)
        buffer += received
    for peer in others:
        dist.send(buffer, peer)
    return buffer.numel() * len(others)


def ring_reduce_scatter(buffer: torch.Tensor) -> int:
    """N-1 rounds, each to the right neighbour. Afterwards rank r has the sum of part r; its other parts are scratch."""
    rank, world_size, parts, sent = dist.get_rank(), dist.get_world_size(), _parts(buffer), 0
    for turn in range(1, world_size):
        sent += _pass_on(parts[(rank - turn) % world_size], parts[(rank - turn - 1) % world_size], add=True)
    return sent


def ring_all_gather(buffer: torch.Tensor) -> int:
    """N-1 rounds, each to the right neighbour. Before, rank r has the sum of part r; afterwards every rank has all."""
    rank, world_size, parts, sent = dist.get_rank(), dist.get_world_size(), _parts(buffer), 0
    for turn in range(world_size - 1):
        sent += _pass_on(parts[(rank - turn) % world_size], parts[(rank - turn - 1) % world_size], add=False)
    return sent


def turn_the_ring(parts, rank, pass_on):
    """Add up a buffer over all ranks, by turns of a ring. Afterwards every part on every
    rank is the whole sum.

    parts: the buffer, cut into as many views as there are ranks.
    rank: this rank.
    pass_on(leaving, arriving, add): one turn, which all ranks make at the same time.
    Sends `parts[leaving]` to the right neighbour, and what the left neighbour sends is
    added to `parts[arriving]`, or, with add=False, replaces it.
    """
    ranks = len(parts)
    for turn in range(1, ranks):  # afterwards part r is summed on rank r
        pass_on((rank - turn) % ranks, (rank - turn - 1) % ranks, add=True)
    for turn in range(ranks - 1):  # and the sums travel on
        pass_on((rank - turn) % ranks, (rank - turn - 1) % ranks, add=False)


def ring_all_reduce(buffer: torch.Tensor, turns: Callable[..., None] = turn_the_ring) -> int:
    """The sum on every rank: a reduce-scatter, and then an all-gather.   turns: others, called as `turn_the_ring` is."""
    parts, sent = _parts(buffer), []

    def pass_on(leaving: int, arriving: int, add: bool) -> None:
        sent.append(_pass_on(parts[leaving], parts[arriving], add))

    turns(parts, dist.get_rank(), pass_on)
    return sum(sent)


def _parts(buffer: torch.Tensor) -> list[torch.Tensor]:
    """The buffer as N parts, which are views of it and differ in length by one element at most."""
    return list(buffer.tensor_split(dist.get_world_size()))


def _pass_on(mine: torch.Tensor, incoming: torch.Tensor, add: bool) -> int:
    """Send one part to the right neighbour while another comes from the left. All ranks do this at the same time."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(incoming)
    sending = dist.isend(mine.contiguous(), (rank + 1) % world_size)  # with send, all ranks would wait for each other
    dist.recv(received, (rank - 1) % world_size)
    sending.wait()
    incoming.add_(received) if add else incoming.copy_(received)
    return mine.numel()
