"""Wrong answers of chapter 17."""

import torch

from wrong_answers import wrong


@wrong("17.1", "of the ideal time")
def compares_with_the_work(ranks, percent, chunks):
    m = ranks if chunks > 1 else 1
    while 100 * (ranks - 1) > percent * chunks * m:
        m += ranks if chunks > 1 else 1
    return m


@wrong("17.2", "GPipe")
def forwards_first(ranks, micro_batches, rank):
    return [("F", k) for k in range(micro_batches)] + [("B", k) for k in range(micro_batches)]


@wrong("17.2", "mirrored")
def from_the_wrong_end(ranks, micro_batches, rank):
    todo, done = list(range(micro_batches)), []
    for _ in range(min(rank, micro_batches)):
        done.append(("F", todo.pop(0)))
    back = 0
    while todo:
        done += [("F", todo.pop(0)), ("B", back)]
        back += 1
    return done + [("B", k) for k in range(back, micro_batches)]


@wrong("17.3", "one round")
def looks_once(lists):
    sent, stuck = set(), []
    for rank, actions in enumerate(lists):
        for verb, peer, name in actions:
            if verb == "send":
                sent.add((rank, peer, name))
            elif (peer, rank, name) not in sent:
                stuck.append(rank)
                break
    return stuck


@wrong("17.4", "means of means")
def every_micro_batch_alike(stages, inputs, targets, loss):
    total = 0.0
    for x, target in zip(inputs, targets):
        kept = []
        for stage in stages:
            x = x.detach().requires_grad_()
            kept.append(x)
            x = stage(x)
            kept.append(x)
        error = loss(x, target) / len(inputs)
        error.backward()
        total = total + error.item()
        while len(kept) > 2:
            leaf = kept[-2]
            del kept[-2:]
            kept[-1].backward(leaf.grad)
    return torch.tensor(total)


@wrong("17.5", "W at the end")
def pays_last(ranks, micro_batches, rank):
    actions, ahead = [], ranks - 1 - rank
    actions += [("F", k) for k in range(ahead)]
    for k in range(micro_batches):
        actions += [("F", k + ahead)] if k + ahead < micro_batches else []
        actions += [("I", k)]
    return actions + [("W", k) for k in range(micro_batches)]


@wrong("17.6", "no transfers")
def without_a_network(lists, forward, backward, transfer):
    over, free, work = {}, [0] * len(lists), [0] * len(lists)
    todo = [list(actions) for actions in lists]
    last = len(lists) - 1
    while any(todo):
        ready = [rank for rank, actions in enumerate(todo) if actions and (
            (actions[0][0] == "F" and (rank == 0 or ("F", rank - 1, actions[0][1]) in over))
            or (actions[0][0] == "B" and ("F" if rank == last else "B", min(rank + 1, last), actions[0][1]) in over))]
        if not ready:
            return None
        rank = ready[0]
        kind, k = todo[rank].pop(0)
        before = over.get((kind, rank - 1 if kind == "F" else rank + 1, k), 0)
        seconds = {"F": forward, "B": backward}[kind]
        free[rank] = over[kind, rank, k] = max(free[rank], before) + seconds
        work[rank] += seconds
    held = []
    for actions in lists:
        now = [sum(1 if kind == "F" else -1 for kind, _ in actions[:at + 1]) for at in range(len(actions))]
        held.append(max(now, default=0))
    return {"end": max(free), "idle": [max(free) - each for each in work], "kept": held}
