"""The check of 21.1: how many rows go from each rank to each."""

from ....checks import exercise

CASES = [([[[0, 3], [1, 2]], [[3, 2], [0, 1]]], 4), ([[[0], [0], [1]], [[1], [1], [0]]], 2),
         ([[[5, 0], [4, 5]], [[1, 0], [3, 2]], [[4, 1], [5, 3]]], 6),
         ([[[0, 1], [1, 0]], [[0, 1]], [[1, 0]], [[0, 1]]], 8)]


@exercise(
    "21.1", "How many rows to whom?", minutes=15, difficulty=1, answer="rows_to_ranks", cases=CASES,
    mistakes={
        "tokens": {"of_token": set},
        "every Nth": {"home": lambda expert, experts, ranks: expert % ranks},
        "chosen ones alone": {"all_there": False},
        "turned": {"turn": True},
        "own left out": {"keep_own": False},
        "first choice": {"of_token": lambda ranks: ranks[:1]},
        "expert as rank": {"home": lambda expert, experts, ranks: expert % experts},
    })
def rows_between_ranks(chosen, experts, *, home=lambda expert, experts, ranks: expert // (experts // ranks), of_token=list, turn=False,
                       keep_own=True, all_there=True):
    """A table, from rank → to rank → rows."""
    ranks = len(chosen)
    if not all_there:  # the experts are counted by the highest one that was chosen
        experts = -(-(1 + max(expert for tokens in chosen for token in tokens for expert in token)) // ranks) * ranks
    table = [[0] * max(ranks, experts) for _ in range(max(ranks, experts))]
    for rank, tokens in enumerate(chosen):
        for token in tokens:
            for other in of_token([home(expert, experts, ranks) for expert in token]):
                table[rank][other] += keep_own or rank != other
    if turn:
        table = [list(column) for column in zip(*table, strict=True)]
    return [row[:ranks] for row in table[:ranks]]
