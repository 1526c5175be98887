"""The check of 17.3: which ranks wait for ever."""

from ....checks import exercise


def lists(*words):
    """One list for each rank, from words such as "send 1 a, recv 1 b"."""
    return [[(verb, int(peer), name) for verb, peer, name in (each.split() for each in text.split(", ") if each)]
            for text in words]


CASES = [lists("send 1 a, recv 1 b", "send 0 b, recv 0 a"), lists("recv 1 b, send 1 a", "recv 0 a, send 0 b"),
         lists("send 1 a, recv 1 b, send 1 c", "recv 0 a, send 0 b, recv 0 c"),
         lists("recv 2 z", "recv 0 a, send 2 b", "recv 1 b, send 0 z"),
         lists("send 1 a, recv 2 z", "recv 0 a, send 2 b", "recv 1 b, send 0 z"),
         lists("send 1 a", "recv 0 b"), lists("send 1 a", "recv 0 a, recv 0 a2", "recv 1 c"),
         lists("recv 1 y", "", "send 0 y"), lists("recv 1 x", "send 2 x", "recv 1 x, send 0 x"), lists("", "", ""),
         lists("recv 1 a", "recv 2 b, send 0 a", "recv 3 c, send 1 b", "send 2 c"),
         lists("recv 1 a, send 1 q", "recv 0 q, send 0 a", "send 3 m, recv 3 n", "recv 2 m, send 2 n", "recv 0 t"),
         lists("send 1 a, send 1 b", "recv 0 b, recv 0 a"), lists("send 1 a", "recv 0 a, recv 0 a"),
         lists("recv 1 a, send 1 b, recv 1 c, send 1 d, recv 1 e", "send 0 a, recv 0 b, send 0 c, recv 0 d, send 0 e")]


def on_circles(waits):
    """Those that wait for themselves in the end.   waits: by rank, for which one."""
    def comes_back(rank):
        at = waits[rank]
        for _ in waits:
            if at in (rank, None):
                break
            at = waits.get(at)
        return at == rank
    return [rank for rank in waits if comes_back(rank)]


@exercise(
    "17.3", "Who waits for ever?", minutes=30, difficulty=2, cases=[(each,) for each in CASES],
    mistakes={
        "sends wait": {"sends_wait": True},
        "one round": {"rounds": 1},
        "one action a round": {"rounds": 2, "far": False},
        "any message": {"same": lambda sent, rank, peer, name: any(each[:2] == (peer, rank) for each in sent)},
        "from anybody": {"same": lambda sent, rank, peer, name: any(each[2] == name for each in sent)},
        "to anybody": {"same": lambda sent, rank, peer, name: any(each[0] == peer and each[2] == name for each in sent)},
        "taken away": {"stays": False},
        "in order": {"stays": False, "same": lambda sent, rank, peer, name: next((each for each in sent if each[:2] == (peer, rank)), None)
                     == (peer, rank, name)},
        "the first alone": {"among": lambda waits: [*waits][:1]},
        "circles alone": {"among": on_circles},
        "the others": {"among": None},
    })
def stuck_ranks(lists, *, sends_wait=False, rounds=10**6, far=True, among=list, stays=True,
                same=lambda sent, rank, peer, name: (peer, rank, name) in sent):
    """Each rank goes on while it can, until none can."""
    at, sent = [0] * len(lists), {}
    moved = True
    while moved and rounds:
        moved, rounds = False, rounds - 1
        for rank, actions in enumerate(lists):
            while at[rank] < len(actions):
                verb, peer, name = actions[at[rank]]
                if verb == "recv" and not same(sent, rank, peer, name):
                    break
                if verb == "send":
                    waiting = lists[peer][at[peer]] if at[peer] < len(lists[peer]) else None
                    if sends_wait and waiting != ("recv", rank, name):
                        break
                    sent[rank, peer, name] = None
                elif not stays:
                    sent.pop((peer, rank, name), None)
                at[rank] += 1
                moved = True
                if not far:
                    break
    ended = [rank for rank, actions in enumerate(lists) if at[rank] == len(actions)]
    return ended if among is None else among({
        rank: lists[rank][at[rank]][1] for rank in range(len(lists)) if rank not in ended})
