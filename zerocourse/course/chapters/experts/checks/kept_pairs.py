"""The check of 21.3: which pairs an expert with a capacity takes."""

from ....checks import exercise

CASES = [([[0, 1], [0, 1], [0, 1]], 2), ([[0, 1], [1, 0], [1, 2], [2, 1]], 2), ([[0], [0], [1], [0]], 1), ([[0, 1], [1, 0], [1, 0]], 2),
         ([[2, 0], [0, 2], [1, 0]], 3), ([[0, 1], [0, 2]], 1), ([[0, 1, 2]], 1), ([[0, 1, 2], [0, 2, 1], [1, 0, 2]], 1),
         ([[0, 1], [1, 0], [2, 0], [0, 2], [1, 2]], 2), ([[0, 1], [1, 0]], 0)]


def first_choices(tokens, k):
    return [(token, choice) for choice in range(k) for token in range(tokens)]


@exercise(
    "21.3", "A capacity", minutes=20, difficulty=2, answer="kept_pairs", cases=CASES,
    mistakes={
        "token by token": {"in_turn": lambda tokens, k: [(token, choice) for token in range(tokens) for choice in range(k)]},
        "the last first": {"in_turn": lambda tokens, k: [(token, choice) for choice in range(k) for token in reversed(range(tokens))]},
        "second choices first": {"in_turn": lambda tokens, k: [(token, choice) for choice in reversed(range(k)) for token in range(tokens)]},
        "one more": {"room": lambda capacity: capacity + 1},
        "no limit": {"room": lambda capacity: capacity or 99},
        "for each choice": {"key": lambda expert, choice: (expert, choice)},
        "whole tokens": {"whole": True},
    })
def kept_in_turn(chosen, capacity, *, in_turn=first_choices, room=lambda capacity: capacity, key=lambda expert, choice: expert, whole=False):
    """A list of lists of bools."""
    tokens, k = len(chosen), len(chosen[0])
    kept, has = [[False] * k for _ in range(tokens)], {}
    for token, choice in in_turn(tokens, k):
        slot = key(chosen[token][choice], choice)
        kept[token][choice] = has.get(slot, 0) < room(capacity)
        has[slot] = has.get(slot, 0) + kept[token][choice]
    return [[all(row)] * k if whole else row for row in kept]
