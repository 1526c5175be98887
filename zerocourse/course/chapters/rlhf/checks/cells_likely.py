"""The check of 24.w1, which chapter 24 asks for itself: how likely a model finds the tokens of a text."""

import torch

from ....checks import Trial, exercise


def likely(logits, tokens):
    """The log-probability of each token but the first, under the model.

    logits: (T, V), what the model says for each of T tokens: row t is about what comes
    *behind* token t.   tokens: (T,), int64.
    Returns (T - 1,).
    """
    chances = logits[:-1].log_softmax(-1)
    return chances.gather(1, tokens[1:, None])[:, 0]


def scored(answer, length, words):
    draw = torch.Generator().manual_seed(length)
    return {"log-probabilities": answer(torch.randn(length, words, generator=draw) * 2, torch.randint(words, (length,), generator=draw))}


@exercise(
    "24.w1", "How likely was that?", minutes=8, difficulty=1, answer="likely", own=likely, replaces=("zerocourse.rl.policy_loss:*",),
    trials=[Trial([(2, 3), (5, 4), (9, 20)], scored, close=1e-5)],
    mistakes={
        "of itself": {"rows": lambda logits: logits[1:]},
        "probabilities": {"chances": lambda logits: logits.softmax(-1)},
        "logits": {"chances": lambda logits: logits},
        "added up": {"of_text": lambda chances: chances.sum()},
        "over the places": {"chances": lambda logits: logits.log_softmax(0)},
        "the likeliest": {"which": lambda logits, tokens: logits[:-1].argmax(-1)},
    })
def log_probs_of(logits, tokens, *, rows=lambda logits: logits[:-1], chances=lambda logits: logits.log_softmax(-1), of_text=lambda chances: chances,
                 which=lambda logits, tokens: tokens[1:]):
    """(T - 1,)."""
    return of_text(chances(rows(logits)).gather(1, which(logits, tokens)[:, None])[:, 0])
