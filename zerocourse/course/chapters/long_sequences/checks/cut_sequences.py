"""The check of 19.3: find the bugs in what cuts a sequence among the ranks of a ring."""

from ....checks import exercise

NO_LABEL = -100
CASES = [(list(range(10, 26)), 0, 2), (list(range(10, 26)), 1, 2), (list(range(50, 74)), 2, 3), (list(range(30, 43)), 0, 2),
         (list(range(30, 43)), 1, 2), (list(range(7)), 0, 1), (list(range(90, 100)), 3, 4), (list(range(90, 100)), 0, 4),
         ([5, 0, 6, 7], 0, 1), ([5, 6, 7], 0, 2), ([5, 0, 6, 0, 7, 8, 0], 1, 2)]  # 0 is a token like others, too


def parts_of(rank, ranks):
    return rank, 2 * ranks - 1 - rank


@exercise(
    "19.3", "Find the bugs: a cut sequence", minutes=25, difficulty=2, cases=CASES,
    replaces=("zerocourse.parallel.context.token_cut:*",),
    mistakes={
        "label of the cut": ({"shift": "after the cut"}, {"shift": "between the parts"}),
        "no label at the cut": {"shift": "in each part"},
        "own positions": {"count": "its own"},
        "positions of parts": {"count": "each part"},
        "positions go on": {"count": "the front"},
        "padding has labels": {"padding": 0},
        "label of padding": {"first_padding": 0},
        "filled first": {"filled_first": True},
        "zeros are padding": {"of_zero": NO_LABEL},
        "no shift": {"shift": "none"},
        "padding at 0": {"count": "0 for padding"},
        "dropped": {"pad": lambda length, parts: 0},
        "filled too far": {"pad": lambda length, parts: parts - length % parts},
        "rest at the end": {"equal": False},
        "contiguous": {"parts": lambda rank, ranks: (2 * rank, 2 * rank + 1)},
        "back first": {"parts": lambda rank, ranks: parts_of(rank, ranks)[::-1]},
    })
def cut(tokens, rank, ranks, *, shift="before the cut", count="the sequence", padding=NO_LABEL, first_padding=NO_LABEL,
        pad=lambda length, parts: -length % parts, parts=parts_of, filled_first=False, of_zero=0, equal=True):
    """Labels are shifted and padding is put on before anything is cut, and positions go with their tokens."""
    last = first_padding if len(tokens) % (2 * ranks) else NO_LABEL
    labels, length = [*tokens] if shift == "none" else [*tokens[1:], last], len(tokens)
    missing = pad(length, 2 * ranks)
    tokens, labels = [*tokens, *[0] * missing], [*labels, *[padding] * missing]
    labels = [*tokens[1:], NO_LABEL] if filled_first else [label or of_zero for label in labels]
    size = (len(tokens) if equal else length) // (2 * ranks)
    pieces = [range(size * part, size * (part + 1) if equal or part < 2 * ranks - 1 else len(tokens)) for part in parts(rank, ranks)]
    mine = [at for piece in pieces for at in piece]
    targets = [labels[at] for at in mine]
    if shift == "after the cut":
        targets = [*(tokens[at] for at in mine[1:]), NO_LABEL]
    if shift == "between the parts":
        after = [*(tokens[at] for at in mine[1:]), *targets[-1:]]
        targets = [NO_LABEL if labels[at] == NO_LABEL else token for at, token in zip(mine, after, strict=True)]
    if shift == "in each part":
        targets = [label for piece in pieces for label in [*(labels[at] for at in piece[:-1]), *[NO_LABEL] * bool(piece)]]
    first = size * parts(rank, ranks)[0]
    positions = {"the sequence": mine, "the front": list(range(first, first + len(mine))), "its own": list(range(len(mine))),
                 "each part": [*range(size)] * 2, "0 for padding": [at * (at < length) for at in mine]}[count]
    return [tokens[at] for at in mine], targets, positions
