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


@wrong("17.3", "taken away")
def each_message_is_received_once(lists):
    left, sent, moved = [list(actions) for actions in lists], [], True
    while moved:
        moved = False
        for rank, actions in enumerate(left):
            if not actions:
                continue
            verb, peer, name = actions[0]
            if verb == "recv" and (peer, rank, name) not in sent:
                continue
            if verb == "recv":
                sent.remove((peer, rank, name))
            else:
                sent.append((rank, peer, name))
            actions.pop(0)
            moved = True
    return [rank for rank, actions in enumerate(left) if actions]


@wrong("17.5", "too many forwards")
def with_one_forward_more(ranks, micro_batches, rank):
    begin, todo, weights = min(micro_batches, ranks - rank), [], 0
    todo += [("F", k) for k in range(begin)]
    for k in range(micro_batches):
        if begin < micro_batches:
            todo.append(("F", begin))
            begin += 1
        todo.append(("I", k))
        if k - weights >= rank:
            todo.append(("W", weights))
            weights += 1
    return todo + [("W", k) for k in range(weights, micro_batches)]


@wrong("17.7", "rank 0 alone")
def more_for_the_first_rank(ranks, micro_batches, rank, forward, backward, transfer):
    ahead = ranks - 1 - rank
    if rank == 0:
        ahead += (ranks - 1) * -(-2 * transfer // (forward + backward))
    ahead = min(ahead, micro_batches)
    todo = [("F", k) for k in range(ahead)]
    for k in range(micro_batches - ahead):
        todo += [("F", ahead + k), ("B", k)]
    return todo + [("B", k) for k in range(micro_batches - ahead, micro_batches)]


# 17.w1 --------------------------------------------------------------------------------------------------------------

@wrong("17.w1", "one by one")
def at_once(ranks, micro_batches, rank):
    found = []
    for k in range(micro_batches):
        found += [("F", k), ("B", k)]
    return found


@wrong("17.w1", "last one first")
def as_a_stack(ranks, micro_batches, rank):
    forwards = [("F", k) for k in range(micro_batches)]
    return forwards + [("B", k) for _, k in forwards[::-1]]


@wrong("17.w1", "from 1")
def counts_as_people_do(ranks, micro_batches, rank):
    return [("F", k) for k in range(1, micro_batches + 1)] + [("B", k) for k in range(1, micro_batches + 1)]


@wrong("17.w1", "difference")
def staggered(ranks, micro_batches, rank):
    return [("F", k) for k in range(micro_batches)] + [("B", k) for k in range(rank, micro_batches)] + [("B", k) for k in range(min(rank, micro_batches))]


# 17.w2 --------------------------------------------------------------------------------------------------------------

def one_step(comm, stage, x, target, loss, onward=lambda x, out: out, weights=lambda gradient: gradient, back=lambda x, gradient: x.grad):
    gradient = None
    if comm.rank:
        comm.recv(x := x.clone(), comm.rank - 1, "x").wait()
        x = x.requires_grad_()
    out, error = stage(x), None
    if comm.rank + 1 < comm.world_size:
        comm.send(onward(x, out).detach().contiguous(), comm.rank + 1, "x").wait()
        comm.recv(gradient := torch.zeros_like(x), comm.rank + 1, "dx").wait()
        torch.autograd.backward(out, weights(gradient))
    else:
        error = loss(out, target)
        error.backward()
    if comm.rank:
        comm.send(back(x, gradient if gradient is not None else x.grad).contiguous(), comm.rank - 1, "dx").wait()
    return error


@wrong("17.w2", "a gradient of ones")
def backward_of_the_sum(comm, stage, x, target, loss):
    return one_step(comm, stage, x, target, loss, weights=torch.ones_like)


@wrong("17.w2", "own input")
def passes_on_what_it_got(comm, stage, x, target, loss):
    return one_step(comm, stage, x, target, loss, onward=lambda x, out: x)


@wrong("17.w2", "handed on")
def passes_back_what_it_got(comm, stage, x, target, loss):
    return one_step(comm, stage, x, target, loss, back=lambda x, gradient: gradient)


@wrong("17.w2", "weights cleared")
def begins_anew(comm, stage, x, target, loss):
    for param in stage.parameters():
        param.grad = None
    return one_step(comm, stage, x, target, loss)


@wrong("17.7", "one way")
def waits_for_activations_alone(ranks, micro_batches, rank, forward, backward, transfer):
    hops, pairs = ranks - 1 - rank, -(-transfer // (forward + backward))
    ahead = min(hops + pairs * hops, micro_batches)
    actions = [("F", k) for k in range(ahead)]
    for k in range(ahead, micro_batches):
        actions += [("F", k), ("B", k - ahead)]
    return actions + [("B", k) for k in range(micro_batches - ahead, micro_batches)]
