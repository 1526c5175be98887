"""The check of 23.6: a whole server, on a model whose next token depends on all that lies in the slots which it is told to read."""

from ....checks import MISUSED, Trial, Wrong, exercise

# prompts, new, blocks, size, budget
RUNS = {"one": ([5], 3, 4, 2, 8), "two": ([3, 6], 4, 8, 2, 8), "one after the other": ([6, 6], 4, 5, 2, 8),
        "short and long": ([1, 9, 2, 4], 3, 9, 2, 4),
        "a budget of one": ([4, 3], 2, 8, 2, 1), "blocks of one": ([2, 3], 3, 12, 1, 6),
        "in their order": ([8, 5, 4, 6], 3, 8, 2, 4), "those that decode first": ([9, 4, 6], 2, 16, 1, 4),
        "a prompt of one token": ([2, 5, 1], 3, 15, 1, 2),
        "more that decode than rows": ([1, 2, 3], 4, 20, 4, 2), "whatever blocks are free": ([2, 4, 6, 13], 3, 6, 4, 8)}


def prompts_of(lengths):
    return [[(7 * number + 3 * place) % 50 for place in range(length)] for number, length in enumerate(lengths)]


def following(tokens):
    """The token behind these."""
    return sum((place + 1) * token for place, token in enumerate(tokens)) % 50


def generated(prompt, new):
    tokens = list(prompt)
    for _ in range(new):
        tokens.append(following(tokens))
    return tokens


def served(answer, run):
    """What each request got, and how steps and slots were used."""
    lengths, new, blocks, size, budget = RUNS[run]
    memory, seen, prompts = {}, {"steps": 0, "rows": 0, "slots": set()}, prompts_of(lengths)

    def step(pieces):
        seen["steps"] += 1
        if seen["steps"] > 500:
            raise Wrong("it made more than 500 steps, and nothing came to an end")
        seen["rows"] = max(seen["rows"], sum(len(tokens) for tokens, _, _ in pieces))
        for tokens, start, slots in pieces:
            if len(slots) != start + len(tokens):
                raise Wrong(f"a piece of {len(tokens)} tokens from place {start} came with {len(slots)} slots: those of all tokens up to its last "
                            "are wanted", MISUSED)
            for place, token in enumerate(tokens, start):
                memory[slots[place]] = place, token
            seen["slots"] |= set(slots)
        return [following([memory.get(slot, (0, 0))[1] for slot in slots]) for _, _, slots in pieces]

    given = [list(each) for each in prompts]
    made = answer(step, given, new, blocks, size, budget)
    if not isinstance(made, list) or not all(isinstance(each, list) for each in made):
        raise Wrong("return a list of lists: each prompt with its new tokens", MISUSED)
    inside = all(isinstance(slot, int) and 0 <= slot < blocks * size for slot in seen["slots"])
    return {"changed": given != prompts, "inside": inside, "budget": seen["rows"] <= budget, "tokens": made,
            "steps": seen["steps"], "_rows": seen["rows"], "_budget": budget}


@exercise(
    "23.6", "A server", minutes=60, difficulty=3, trials=[Trial([(run,) for run in RUNS], served)],
    mistakes={
        "one at a time": {"together": 1},
        "blocks are kept": {"give": False},
        "not enough blocks": {"needed": lambda prompt, new, size: -(-prompt // size)},
        "one block too many": {"needed": lambda prompt, new, size: (prompt + new) // size + 1},
        "slots in order": {"slot": lambda table, place, size: table[0] * size + place},
        "no pieces": {"budgeted": False},
        "one token too few": {"last": 1},
    })
def serve(step, prompts, new, blocks, size, budget, *, together=10**9, give=True, needed=lambda prompt, new, size: -(-(prompt + new - 1) // size),
          slot=lambda table, place, size: table[place // size % len(table)] * size + place % size, budgeted=True, last=0):
    """Each prompt with `new` tokens more."""
    free, waiting, running = list(range(blocks)), list(range(len(prompts))), []
    tokens, tables, computed = [list(each) for each in prompts], {}, [0] * len(prompts)
    while waiting or running:
        while waiting and len(running) < together and needed(len(prompts[waiting[0]]), new, size) <= len(free):
            number = waiting.pop(0)
            tables[number] = [free.pop(0) for _ in range(needed(len(prompts[number]), new, size))]
            running.append(number)
        left, chosen = budget, []
        for number in sorted(running, key=lambda number: len(tokens[number]) - computed[number] > 1):
            end = min(len(tokens[number]), computed[number] + left) if budgeted else len(tokens[number])
            if end > computed[number]:
                chosen.append((number, computed[number], end))
                left -= end - computed[number]
        said = step([(tokens[number][start:end], start, [slot(tables[number], place, size) for place in range(end)])
                     for number, start, end in chosen])
        for (number, _, end), token in zip(chosen, said, strict=True):
            computed[number] = end
            if end == len(tokens[number]):
                tokens[number].append(token)
                if len(tokens[number]) == len(prompts[number]) + new - last:
                    running.remove(number)
                    free += tables.pop(number) if give else []
        if not (give or running or not waiting or needed(len(prompts[waiting[0]]), new, size) <= len(free)):
            return tokens
    return tokens
