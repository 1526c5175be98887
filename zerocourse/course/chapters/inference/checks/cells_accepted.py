"""The check of 23.w3, which chapter 23 asks for itself: which tokens come out of a step whose rows are guesses."""

from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.words import a


def tokens_of_step(guesses, rows, choose):
    """The tokens that one forward gives, of a request whose next tokens were guessed.

    guesses: a list of tokens.   rows: the logits of its last token and of each guess, in
    order: row 0 says what the next token is, row 1 what comes behind the first guess, and
    so on.   choose(row) returns the model's own token for a row; ask it for none that does
    not count.
    Returns a list of at least one token.
    """
    tokens = []
    for guess, row in zip([*guesses, None], rows):
        tokens.append(choose(row))
        if tokens[-1] != guess:
            break
    return tokens


CASES = {"all right": ([4, 5, 6], [4, 5, 6, 7]), "the second is wrong": ([4, 9, 6], [4, 5, 6, 7]), "the first is wrong": ([9, 5, 6], [4, 5, 6, 7]),
         "the last is wrong": ([4, 5, 9], [4, 5, 6, 7]), "none": ([], [4]), "right again behind a wrong one": ([9, 5], [4, 5, 8]),
         "one right": ([4], [4, 5])}


def stepped(answer, name):
    """What comes out, and for which rows it chose."""
    guesses, right = CASES[name]
    asked = []

    def choose(row):
        asked.append(row)
        return right[row]

    tokens = answer(list(guesses), list(range(len(right))), choose)
    if not isinstance(tokens, (list, tuple)):
        raise Wrong(f"it returned {a(tokens)}: return a list of tokens", MISUSED)
    return {"tokens": list(tokens), "asked": asked, "_guesses": guesses}


@exercise(
    "23.w3", "What one step gives", minutes=10, difficulty=2, answer="tokens_of_step", own=tokens_of_step,
    replaces=("zerocourse.inference.server:Server.tokens_of",), trials=[Trial([(name,) for name in CASES], stepped)],
    mistakes={
        "right ones alone": {"keep_wrong": False},
        "no extra one": {"extra": False},
        "one token": {"stop": lambda token, guess: True},
        "all of them": {"stop": lambda token, guess: False},
        "the guess": {"take": lambda token, guess: token if guess is None else guess},
        "asked for all": {"ask_all": True},
    })
def tokens_of_a_step(guesses, rows, choose, *, keep_wrong=True, extra=True, stop=lambda token, guess: token != guess, take=lambda token, guess: token,
                     ask_all=False):
    """A list of tokens."""
    tokens = []
    chosen = list(map(choose, rows)) if ask_all else None
    for number, guess in enumerate([*guesses, None]):
        if guess is None and tokens and not extra:
            break
        token = chosen[number] if chosen else choose(rows[number])
        if token == guess or keep_wrong or guess is None:
            tokens.append(take(token, guess))
        if stop(token, guess):
            break
    return tokens
