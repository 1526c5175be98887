"""The check of 23.w1, which chapter 23 asks for itself: attention of one new token to the keys and values that are kept."""

import torch

from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.words import a

H, D, ROOM = 2, 4, 12


def attend_to_cache(q, k, v, keys, values, length):
    """Attention of one new token, whose key and value are written into the cache first.

    q, k, v: (H, D), of the new token; q is scaled already.   keys, values: (H, room, D).
    The first `length` places are those of the tokens before it, the rest may hold anything.
    Returns out (H, D).
    """
    keys[:, length], values[:, length] = k, v
    scores = keys[:, : length + 1] @ q[:, :, None]
    return (scores.softmax(1) * values[:, : length + 1]).sum(1)


def token_by_token(answer, tokens):
    """The output of each token, and whether the cache holds what it should."""
    source = torch.Generator().manual_seed(tokens)
    q, k, v = torch.randn(3, tokens, H, D, generator=source)
    keys, values = torch.full((2, H, ROOM, D), 50.0)  # what somebody has left there
    outs = []
    for place in range(tokens):
        out = answer(q[place].clone(), k[place].clone(), v[place].clone(), keys, values, place)
        if not torch.is_tensor(out) or out.shape != (H, D):
            raise Wrong(f"it returned {a(out)}: return a tensor, ({H}, {D})", MISUSED)
        outs.append(out)
    kept = torch.equal(keys[:, :tokens].transpose(0, 1), k) and torch.equal(values[:, :tokens].transpose(0, 1), v)
    return {"out": torch.stack(outs), "kept": kept, "behind": bool((keys[:, tokens:] == 50).all() and (values[:, tokens:] == 50).all())}


@exercise(
    "23.w1", "A key, a value, a place", minutes=10, difficulty=1, answer="attend_to_cache", own=attend_to_cache,
    replaces=("zerocourse.inference.cache:*",), trials=[Trial([(1,), (2,), (9,)], token_by_token, close=1e-5)],
    mistakes={
        "without itself": {"seen": lambda length: length},
        "everything": {"seen": lambda length: ROOM},
        "next place": {"place": lambda length: length + 1},
        "not written": ({"write": False}, {"both": False}),
        "over the heads": {"axis": 0},
        "values forgotten": {"weighed": lambda shares, keys, values: (shares * keys).sum(1)},
    })
def cached_attention(q, k, v, keys, values, length, *, seen=lambda length: length + 1, place=lambda length: length, write=True, both=True, axis=1,
                     weighed=lambda shares, keys, values: (shares * values).sum(1)):
    """(H, D)."""
    if write:
        keys[:, place(length)] = k
        if both:
            values[:, place(length)] = v
    until = seen(length)
    shares = (keys[:, :until] @ q[:, :, None]).softmax(axis)
    return weighed(shares, keys[:, :until], values[:, :until])
