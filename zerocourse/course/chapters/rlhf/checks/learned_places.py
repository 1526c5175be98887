"""The check of 24.2: find the bugs in a mask that says which places are learned."""

from ....checks import exercise

CASES = [([[1, 2, 3, 9, 5, 0], [1, 2, 4, 5, 0, 0]], [3, 2], 5), ([[7, 8, 5]], [1], 5), ([[1, 4, 4, 4], [2, 5, 0, 0]], [1, 1], 5),
         ([[5, 1, 2, 3], [1, 5, 2, 0]], [2, 2], 5),
         ([[1, 2, 0, 3, 5]], [2], 5), ([[3, 1, 5, 0, 0, 0], [3, 1, 2, 2, 2, 2]], [2, 2], 5),
         ([[5, 1, 2, 5]], [2], 5), ([[7, 8, 4, 0, 0]], [2], 0)]


@exercise(
    "24.2", "Find the bugs: what is learned?", minutes=20, difficulty=2, answer="learned_places", cases=CASES,
    mistakes={
        "the prompt too": {"begin": lambda length: 0},
        "one late": {"begin": lambda length: length},
        "one early": {"begin": lambda length: max(0, length - 2)},
        "padding": {"stops": False},
        "without the end": {"with_end": False},
        "zeros as padding": {"ends": lambda token, end: token in (end, 0)},
        "the first end": {"search": lambda length: 0},
    })
def places_of_answers(tokens, prompts, end, *, begin=lambda length: length - 1, stops=True, with_end=True, ends=lambda token, end: token == end,
                      search=lambda length: length):
    """A list of lists of bools."""
    masks = []
    for row, length in zip(tokens, prompts, strict=True):
        found = [place for place in range(search(length), len(row)) if ends(row[place], end)]
        last = found[0] if found and stops else len(row) - (1 if with_end or not found else 0)
        last -= bool(found and stops and not with_end)
        masks.append([begin(length) <= place < last for place in range(len(row) - 1)])
    return masks
