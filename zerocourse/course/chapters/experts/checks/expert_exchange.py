"""The check of 21.6: a mixture whose experts live on several ranks."""

import torch

from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.observers.stage_runs import WatchedComm
from ....checks.words import a

RUNS = {"even": (6, 4, 2, False), "one expert a token": (5, 8, 1, False), "nobody for the last rank": (4, 4, 1, True), "many": (40, 8, 2, False)}


def exchanged_mixture(answer, run):
    """Experts are linear functions of their number in the whole, so a row tells where it was."""
    tokens, experts, k, idle = RUNS[run]
    comm = WatchedComm(timeout=5)
    draw = torch.Generator().manual_seed(comm.rank)
    x, logits = torch.randn(tokens, 3, generator=draw), torch.randn(tokens, experts, generator=draw)
    here = experts // comm.world_size
    if idle:
        logits[:, -here:] = -1e9
    weights, chosen = logits.softmax(-1).topk(k, -1)
    seen, empty, padded, plain = [], 0, 0, (comm.exchange, comm.all_to_all)

    def exchange(sends, receives, name):
        nonlocal empty
        empty += sum(not each.numel() for each in (*sends.values(), *receives.values()))
        return plain[0](sends, receives, name)

    def all_to_all(sent, received, name):
        nonlocal padded
        padded += sent.is_floating_point() * (sent.numel() - sent[0].numel())
        return plain[1](sent, received, name)

    comm.exchange, comm.all_to_all = exchange, all_to_all

    def apply(rows, expert):
        if not isinstance(expert, int) or not 0 <= expert < here:
            raise Wrong(f"apply was called for expert {expert!r}: this rank's experts have the numbers 0 to {here - 1}", MISUSED)
        seen.append(len(rows))
        number = comm.rank * here + expert
        return rows * (number + 1) + 10 * number

    returned = answer(x.clone(), chosen, weights, experts, apply, comm)
    if not torch.is_tensor(returned):
        raise Wrong(f"it returned {a(returned)}: return a tensor", MISUSED)
    return {"out": returned, "calls": len(seen), "rows": sum(seen), "padded": padded, "empty": empty,
            "sent": comm.elements["send"]}


def expert_major(arrived, counts):
    """Rows that came rank after rank, in the order of this rank's experts. counts: (ranks, experts here)."""
    which = torch.arange(counts.shape[1]).repeat(counts.shape[0]).repeat_interleave(counts.flatten())
    order = which.argsort(stable=True)
    return arrived[order], order


@exercise(
    "21.6", "A mixture on several ranks", minutes=60, difficulty=3, timeout=20, answer="exchange_experts",
    replaces=("zerocourse.parallel.experts.routing:*", "zerocourse.parallel.experts.token_exchange:*"),
    trials=[Trial([(run,) for run in RUNS], exchanged_mixture, worlds=(2, 4), close=1e-5)],
    mistakes={
        "as they came": {"arrange": lambda arrived, counts: (arrived, torch.arange(len(arrived)))},
        "not put back": {"undo": lambda made, order: made},
        "home in the wrong order": {"home": lambda made, order: made},
        "home by the order": {"home": lambda made, order: made[order]},
        "not weighed": {"weigh": lambda weights: torch.full_like(weights, 1 / weights.shape[1])},
        "turned counts": {"sent_rows": lambda counts: counts.flip(0)},
        "its own experts alone": {"travels": False},
        "empty messages": {"travels": "all"},
    })
def mixture_on_ranks(x, chosen, weights, experts, apply, comm, *, arrange=expert_major,
                     undo=lambda made, order: torch.empty_like(made).index_copy(0, order, made),
                     home=lambda made, order: torch.empty_like(made).index_copy(0, order, made), weigh=lambda weights: weights,
                     sent_rows=lambda counts: counts, travels=True):
    """(N, C)."""
    k, flat = chosen.shape[1], chosen.flatten()
    order, counts = flat.argsort(stable=True), torch.bincount(flat, minlength=experts).view(comm.world_size, -1)
    coming = torch.empty_like(counts)
    comm.all_to_all(sent_rows(counts).contiguous(), coming, "counts").wait()
    there = moved(x[order // k], counts.sum(1).tolist(), coming.sum(1).tolist(), comm, travels)
    rows, by_expert = arrange(there, coming) if travels else (there, torch.arange(len(there)))
    sizes = coming.sum(0).tolist() if travels else [len(rows)] + [0] * (coming.shape[1] - 1)
    made = torch.cat([apply(part, number) for number, part in enumerate(rows.split(sizes))])
    back = moved(undo(made, by_expert), coming.sum(1).tolist(), counts.sum(1).tolist(), comm, travels)
    return (home(back, order).view(len(x), k, -1) * weigh(weights)[..., None]).sum(1)


def moved(rows, sent, received, comm, travels=True):
    """Rows that come from each rank, in the order of the ranks."""
    if not travels:
        return rows
    out = rows.new_empty(sum(received), rows.shape[1])
    parts, places = rows.split(sent), out.split(received)
    places[comm.rank].copy_(parts[comm.rank])
    sends = {peer: parts[peer].contiguous() for peer in comm.peers if sent[peer] or travels == "all"}
    receives = {peer: places[peer] for peer in comm.peers if received[peer] or travels == "all"}
    if sends or receives:
        comm.exchange(sends, receives, "rows").wait()
    return out
