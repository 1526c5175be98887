"""The check of 23.5: which rows the next step has, under a budget."""

from ....checks import exercise

# (computed, tokens) of each running request, in the order in which they came; a budget of rows.
CASES = [([(9, 10), (4, 5)], 8), ([(0, 20), (9, 10)], 8), ([(9, 10), (0, 20), (3, 4), (0, 3)], 8), ([(0, 3), (0, 3), (0, 30)], 8),
         ([(7, 8)] * 5, 3), ([(5, 20)], 8), ([(0, 8)], 8), ([(12, 13), (2, 40), (0, 1)], 4), ([], 8),
         ([(0, 20), (5, 20)], 8)]


@exercise(
    "23.5", "Who is next?", minutes=20, difficulty=2, cases=CASES,
    mistakes={
        "in their order": {"first": lambda computed, tokens: 0},
        "whole prompts": {"pieces": False},
        "prompts first": {"first": lambda computed, tokens: tokens - computed == 1},
        "one prompt": {"prompts": 1},
        "shortest first": {"first": lambda computed, tokens: tokens - computed},
        "no budget": {"limit": False},
        "from the start": {"begin": lambda computed: 0},
    })
def next_rows(requests, budget, *, first=lambda computed, tokens: tokens - computed > 1, pieces=True, prompts=10**9, limit=True,
              begin=lambda computed: computed):
    """[(number, start, end)] in the order in which they were chosen."""
    left, chosen, taken = budget, [], 0
    for number in sorted(range(len(requests)), key=lambda number: first(*requests[number])):
        computed, tokens = requests[number]
        is_prompt = tokens - computed > 1
        end = min(tokens, computed + left) if limit else tokens
        if end <= computed or (is_prompt and taken == prompts) or (end < tokens and not pieces):
            continue
        taken += is_prompt
        chosen.append((number, begin(computed), end))
        left -= end - computed
    return chosen
