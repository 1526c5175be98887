"""The check of 20.6: gradients of real ranks, summed in two hops and in 8 bits."""

import torch

from .....comm import Comm
from .....comm.duplicates import new_group
from ....checks import MISUSED, Trial, When, Wrong, exercise
from ....checks.words import a

BLOCK = 4


def reduced(answer, per_node, size, scale):
    """A rank's sum, over the size of the numbers, and what it sent over either kind of link."""
    everybody = Comm(timeout=4)
    rank, nodes = everybody.rank, everybody.world_size // per_node
    groups = [[at * per_node + other for other in range(per_node)] for at in range(nodes)], [
        [other * per_node + at for other in range(nodes)] for at in range(per_node)]
    comms = [Comm(new_group(ranks), timeout=4) for ranks in groups]
    sent, magnitudes = {"inside": 0, "between": 0}, []

    def told(tensor):
        return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}" if torch.is_tensor(tensor) else a(tensor)

    def exchange(kind, comm, whole, scales):
        rows = comm.world_size
        if not (torch.is_tensor(whole) and torch.is_tensor(scales) and whole.dtype == torch.int8 and len(whole) == len(scales) == rows):
            raise Wrong(f"it handed {told(whole)} and {told(scales)} to `{kind}`: int8 and fp32 tensors with {rows} row{'s' * (rows > 1)} "
                        "are wanted", MISUSED)
        if kind == "inside":
            magnitudes.append(127 * scales.sum().item())
        sent[kind] += (whole[0].nbytes + scales[0].nbytes) * (rows - 1)
        arrived = [torch.empty_like(each.contiguous()) for each in (whole, scales)]
        for each, into in zip((whole, scales), arrived, strict=True):
            comm.all_to_all(each.contiguous(), into, kind).wait()
        return tuple(arrived)

    inside, between = (lambda whole, scales, at=at, kind=kind: exchange(kind, comms[at], whole, scales) for at, kind in enumerate(sent))
    sizes = torch.where(torch.arange(everybody.world_size * size) // BLOCK % 2 == 1, scale, 1.0)  # of a block: its neighbours' may be others
    bucket = sizes * torch.randn(everybody.world_size * size, generator=torch.Generator().manual_seed(rank))
    if not scale:  # on every rank numbers that are 127, 11, 5 and -6 scales
        sizes, bucket = torch.ones_like(sizes), torch.tensor([127, 10.75, 5.25, -5.75]).repeat(len(bucket) // BLOCK)
    out = answer(bucket, nodes, per_node, inside, between)
    if not torch.is_tensor(out) or out.shape != (size,):
        raise Wrong(f"it returned {a(out)}: return the sum of this rank's slice, {[size]}", MISUSED)
    seen = {"finite": bool(out.isfinite().all())}
    seen |= {"output": out.detach().double() / sizes[rank * size:(rank + 1) * size], "inside": sent["inside"], "between": sent["between"],
                   "dtype": str(out.dtype), "scales": sum(magnitudes) / bucket.view(-1, BLOCK).abs().amax(1).sum().item()} if seen["finite"] else {}
    return seen if scale else seen | {"whole": out.detach().double()}


def quantized(rows, block, nearest=torch.round, levels=127, largest=127, magnitude=torch.abs, least=float("-inf"), per_row=False):
    """(whole (R, n) int8, scales (R, blocks))."""
    blocks = rows.reshape(len(rows), -1, block)
    scales = (magnitude(blocks).amax(2) / levels).clamp(min=least)
    scales = scales.amax(1, keepdim=True).expand_as(scales) if per_row else scales
    whole = nearest(blocks / scales.where(scales != 0, 1)[..., None])
    return whole.clamp(-largest, largest).to(torch.int16).to(torch.int8).flatten(1), scales  # above 127 it turns round


def restored(whole, scales):
    return (whole.float().unflatten(1, (scales.shape[1], -1)) * scales[..., None]).flatten(1)


def by_neighbour(bucket, nodes, per_node, size):
    """Row j: what belongs to the ranks of number j, of all nodes."""
    return bucket.view(nodes, per_node, size).transpose(0, 1).reshape(per_node, nodes * size)


def between_first(bucket, nodes, per_node, inside, between):
    """The two hops in the other order."""
    in_number = restored(*between(*quantized(bucket.view(nodes, -1), BLOCK))).sum(0)
    return restored(*inside(*quantized(in_number.view(per_node, -1), BLOCK))).sum(0)


def exact_own_row(bucket, nodes, per_node, inside, between):
    """The row that stays is added as it was."""
    def hop(rows, exchange):
        sent = quantized(rows, BLOCK)
        came = exchange(*sent)
        return torch.where((came[0] == sent[0]).all(1)[:, None], rows, restored(*came)).sum(0)

    in_node = hop(by_neighbour(bucket, nodes, per_node, len(bucket) // (nodes * per_node)), inside)
    return hop(in_node.view(nodes, -1), between)


@exercise(
    "20.6", "A reduction in two hops", minutes=50, difficulty=3, timeout=20,
    replaces=("zerocourse.parallel.plusplus.two_level:*", "zerocourse.parallel.plusplus.blocks:*"),
    trials=[Trial([(2, 8, 1.0), (2, 12, 1e-9), (2, 4, 0.0)], reduced, worlds=(2, 4), close={"output": 0.05, "scales": 1e-3, "whole": 1e-5})],
    mistakes={
        "rows of nodes": {"rows": lambda bucket, nodes, per_node, size: bucket.view(per_node, nodes * size)},
        "pieces of nodes": {"of_nodes": lambda in_node, nodes: in_node.view(-1, nodes).T},
        "cut off": ({"nearest": torch.trunc}, {"nearest": torch.floor}),
        "a mean": {"summed": lambda whole, scales: restored(whole, scales).mean(0)},
        "added in int8": tuple({hop: added} for hop in ("summed", "last") for added in (
            lambda whole, scales: restored(whole.sum(0, dtype=torch.int8)[None], scales.mean(0)[None])[0],
            lambda whole, scales: restored(whole.sum(0)[None], scales.mean(0)[None])[0],
            lambda whole, scales: restored(whole.sum(0)[None], scales.amax(0)[None])[0])),
        "own alone": {"summed": lambda whole, scales: restored(whole, scales)[0]},
        "everything between": {"all_between": True},
        "inside alone": {"second": False},
        "over 127": ({"levels": 128}, {"levels": 126}, {"levels": 127.5}, {"levels": 7}, {"levels": 128, "largest": 999}),
        "without signs": {"magnitude": lambda blocks: blocks, "largest": 999},
        "between first": between_first,
        "one scale": ({"block": lambda numel: numel}, {"per_row": True}),
        "small ones are zeros": {"least": 1e-8},
        "own row": (exact_own_row, When("whole")),
        "not rounded again": {"again": True},
    })
def reduce(bucket, nodes, per_node, inside, between, *, rows=by_neighbour, summed=lambda whole, scales: restored(whole, scales).sum(0),
           all_between=False, second=True, block=lambda numel: BLOCK, again=False,
           last=None, of_nodes=lambda in_node, nodes: in_node.view(nodes, -1), **how):
    """Inside of the node for the ranks of each number, then between the nodes."""
    size = len(bucket) // (nodes * per_node)
    of_neighbours = rows(bucket, nodes, per_node, size)
    in_node = summed(*inside(*quantized(of_neighbours, block(nodes * size), **how)))
    if all_between:
        every = torch.cat([in_node.view(nodes, size)] * per_node, 1)
        whole, scales = between(*quantized(every, BLOCK))
        return restored(whole, scales).sum(0)[:size]
    if not second:
        return in_node.view(nodes, size)[0]
    total = (last or summed)(*between(*quantized(of_nodes(in_node, nodes), block(size), **how)))
    return total.to(torch.bfloat16).float().half() if again else total
