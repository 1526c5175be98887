"""The check of 22.4: how many tokens of logits at a time, so that they fit and as little as possible is moved."""

from ....checks import Board, Trial, Wrong, exercise

FP32 = 4
MODELS = [(1024, 768, 50_257, 10**9), (1024, 768, 50_257, 60 * 10**6), (16_384, 4096, 32_000, 10**9), (16_384, 4096, 128_000, 10**9),
          (5000, 1024, 50_000, 200 * 10**6), (8192, 4096, 128_000, 10**5), (900, 512, 8192, 10 * 10**6)]


def moved(tokens, width, vocabulary, chunk):
    """Bytes: W is read twice and dW read and written for each chunk; three times all logits besides."""
    return FP32 * (4 * width * vocabulary * -(-tokens // chunk) + 3 * tokens * vocabulary)


def fitting(vocabulary, room):
    return room // (FP32 * vocabulary)


def chosen_chunk(answer, tokens, width, vocabulary, room):
    """What comes of the chunk that it chooses."""
    chunk, most = answer(tokens, width, vocabulary, room), min(tokens, fitting(vocabulary, room))
    if chunk is None or not most:
        return {"none": chunk is None, "_chunk": chunk, "_most": most, "_room": room, "_needs": 0}
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
        raise Wrong(f"it returned {chunk!r}: a number of tokens is wanted, or None")
    needs = FP32 * vocabulary * min(chunk, tokens)
    return {"none": False, "fits": needs <= room, "moved": moved(tokens, width, vocabulary, chunk), "_chunk": chunk, "_most": most, "_room": room,
            "_needs": needs}


def by_ratio(tokens, width, vocabulary, room):
    """As many as make a chunk of logits about as large as the input, rounded up to a power of two."""
    rows = -(-tokens // -(-vocabulary // width))
    return 1 << (rows - 1).bit_length()


BOUND = sum(moved(tokens, width, vocabulary, min(tokens, fitting(vocabulary, room))) for tokens, width, vocabulary, room in MODELS
            if fitting(vocabulary, room)) / 1e9


@exercise(
    "22.4", "Beat this number: how many tokens?", minutes=25, difficulty=2, trials=[Trial(MODELS, chosen_chunk)],
    board=(Board("GB moved in all cases", lambda seen: sum(case.get("moved", 0) for case in seen[0][0]) / 1e9, BOUND, BOUND,
                 "every number of chunks that fits was tried", ("moved",)),),
    mistakes={
        "as large as the input": {"choose": by_ratio},
        "the width": {"choose": lambda tokens, width, vocabulary, room: min(width, tokens)},
        "all at once": {"choose": lambda tokens, width, vocabulary, room: tokens},
        "a power of two": {"choose": lambda tokens, width, vocabulary, room: min(tokens, 1 << (max(fitting(vocabulary, room), 1).bit_length() - 1))},
        "divides": {"choose": lambda tokens, width, vocabulary, room: next(
            chunk for chunk in range(min(tokens, fitting(vocabulary, room)), 0, -1) if tokens % chunk == 0)},
        "their gradients besides": {"choose": lambda tokens, width, vocabulary, room: min(tokens, max(fitting(vocabulary, room) // 2, 1))},
        "half precision": {"choose": lambda tokens, width, vocabulary, room: min(tokens, 2 * fitting(vocabulary, room))},
        "one": {"choose": lambda tokens, width, vocabulary, room: 1},
        "no answer": {"none": 1},
    })
def best_chunk(tokens, width, vocabulary, room, *, choose=None, none=None):
    """The most tokens whose logits fit."""
    if not fitting(vocabulary, room):
        return none
    return choose(tokens, width, vocabulary, room) if choose else min(tokens, fitting(vocabulary, room))
