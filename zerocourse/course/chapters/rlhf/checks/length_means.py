"""The check of 24.3: three ways to average over answers of different lengths, and what a token counts in each."""

from ....checks import Trial, exercise

CASES = [([4, 1], 4), ([10, 10, 10], 10), ([1, 2, 3, 6], 8), ([5], 20), ([2, 8], 16)]


@exercise(
    "24.3", "What does a token count?", minutes=20, difficulty=2, answer="token_weights", trials=[Trial(CASES, close=1e-6)],
    mistakes={
        "the same": {"by_sample": lambda length, lengths, most: 1 / sum(lengths)},
        "not of the samples": {"by_sample": lambda length, lengths, most: 1 / length},
        "longest one": {"constant": lambda length, lengths, most: 1 / (len(lengths) * max(lengths))},
        "not of all samples": {"constant": lambda length, lengths, most: 1 / most},
        "own length": {"by_token": lambda length, lengths, most: 1 / length},
        "turned round": {"turn": True},
    })
def weights_of_tokens(lengths, most, *, by_token=lambda length, lengths, most: 1 / sum(lengths),
                      by_sample=lambda length, lengths, most: 1 / (len(lengths) * length),
                      constant=lambda length, lengths, most: 1 / (len(lengths) * most), turn=False):
    """{way: weights}."""
    table = {"tokens": [by_token(length, lengths, most) for length in lengths], "samples": [by_sample(length, lengths, most) for length in lengths],
             "constant": [constant(length, lengths, most) for length in lengths]}
    return {"tokens": table["samples"], "samples": table["tokens"], "constant": table["constant"]} if turn else table
