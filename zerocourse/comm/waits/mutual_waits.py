"""The proof that two ranks wait for each other for ever, so that nobody needs to wait for a time limit.

    this rank waits in a call that the peer has not issued, and the peer waits in one that this rank has not issued

A rank that waits issues nothing, so neither call can complete, whatever the other ranks do. Slowness never looks like this:
a rank that computes waits in nothing, and of two ranks that keep one order the one ahead has issued what the other waits in.

A rank whose wait has lasted `PROVE_SECONDS` writes that wait into the store. Where it reads that a peer waits in a call which
it has not issued itself, it writes that it lacks that call. Two such notes, each about the same two waits, are the proof,
although they are of different moments: the first of the two ranks to go on would have needed the other to go on before it.
"""

import json

from .progress import known

PROVE_SECONDS = 0.5  # of a wait, until others are asked for their part of a proof
LATER_SECONDS = 5.0  # of a wait, after which it is asked for at the watcher's slower pace
MOST_PEERS = 8  # of a larger group only the two neighbours are looked at: where calls differ, they do between neighbours, too


def comm_of_peer(wait, thread: int) -> str | None:
    """The name of the Comm in which a peer waits for this rank, which waits for it; None: nothing is proved.

    thread: the one that waits, the only one of this rank that does.
    """
    progress, store, own = wait.report.progress, wait.report.questions, wait.report.rank
    ranks, me = progress.ranks, progress.ranks[own]
    near = [ranks[own - 1], ranks[(own + 1) % len(ranks)]] if len(ranks) > MOST_PEERS + 1 else ranks
    store.set(f"wait of {me}", json.dumps([wait.since, progress.name, wait.call]))
    for peer in near:
        if peer == me or not store.check([f"wait of {peer}"]):
            continue
        since, name, call = json.loads(store.get(f"wait of {peer}"))
        theirs = known.get(name)
        if theirs is None or theirs.has_issued(call):
            continue
        if theirs is not progress and theirs.threads != {thread}:  # another thread might still issue it
            continue
        store.set(f"{me} lacks {peer}", json.dumps([wait.since, since]))
        if store.check([f"{peer} lacks {me}"]) and json.loads(store.get(f"{peer} lacks {me}")) == [since, wait.since]:
            return name
    return None
