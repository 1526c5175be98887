"""The check of 23.1: how many requests a card has room for, and how many tokens a second it can generate at most."""

from ....checks import exercise

CASES = [(16 * 10**9, 131_072, 8192, 24 * 2**30, 300e9), (16 * 10**9, 131_072, 1024, 80 * 10**9, 3.35e12),
         (250 * 10**6, 36_864, 1024, 16 * 2**30, 320e9),
         (14 * 10**9, 524_288, 4096, 16 * 10**9, 320e9), (14 * 10**9, 524_288, 4096, 17 * 10**9, 320e9), (10, 1, 1, 13, 2.0), (10, 2, 1, 5, 2.0),
         (10, 1, 1, 100_010, 2.0)]


@exercise(
    "23.1", "How many tokens a second?", minutes=15, difficulty=1, cases=CASES,
    mistakes={
        "no weights on the card": {"room": lambda card, weights: card},
        "weights for each": {"read": lambda weights, requests, kept: requests * (weights + kept)},
        "weights alone": {"read": lambda weights, requests, kept: weights},
        "cache alone": {"read": lambda weights, requests, kept: requests * kept},
        "one token's": {"of_request": lambda token, tokens: token},
        "rounded up": {"whole": lambda number: -int(-number // 1)},
        "of each": {"times": lambda requests: 1},
        "steps": {"times": lambda requests: 1 / max(requests, 1)},
    })
def token_rate(weights, token, tokens, card, bandwidth, *, room=lambda card, weights: card - weights,
               read=lambda weights, requests, kept: weights + requests * kept, of_request=lambda token, tokens: token * tokens,
               whole=lambda number: int(number // 1), times=lambda requests: requests):
    """(requests that fit, tokens a second of all of them)."""
    kept = of_request(token, tokens)
    requests = max(0, whole(room(card, weights) / kept))
    return requests, times(requests) * bandwidth / read(weights, requests, kept) if requests else 0.0
