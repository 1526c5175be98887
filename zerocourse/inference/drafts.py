"""Guesses of the next tokens, which one forward of the model then checks: as many as were right come out of one step.

To decode, a step reads all weights for one token of a request. The rows of five tokens cost hardly more. So somebody cheap proposes the next
tokens, and the model computes all of their rows at once: row i says what comes behind the i-th of them. While the model would have chosen
what was proposed, the next row counts as well; the first row that says something else gives the right token instead. Nothing is lost but the
rows behind it, and the tokens are those without guesses, whoever proposes, and however the next token is chosen from its logits.
Source: Leviathan, Kalman and Matias 2023 (arXiv 2211.17192).
"""

from collections.abc import Callable, Sequence

from .server import Server

Draft = Callable[[Sequence[int], int], list[int]]
"""draft(tokens, most) -> at most so many tokens that may come next; [] for none."""


def repeated(longest: int = 3, most: int = 4) -> Draft:
    """What followed the last tokens when they stood there before: for texts that repeat themselves, such as code. It costs no model.

    longest: of the last tokens that are looked for; shorter ends are tried after it.   most: tokens to propose.
    """
    def draft(tokens: Sequence[int], room: int) -> list[int]:
        tokens = list(tokens)
        for length in range(min(longest, len(tokens) - 1), 0, -1):
            end = tokens[-length:]
            for start in range(len(tokens) - length - 1, -1, -1):
                if tokens[start : start + length] == end:
                    return tokens[start + length : start + length + min(most, room)]
        return []

    return draft


def by_model(server: Server, most: int = 4) -> Draft:
    """What a smaller model with the same words generates. Its server should share and `keep` what it has computed, so that a proposal
    computes no more than the last block of the tokens again."""
    def draft(tokens: Sequence[int], room: int) -> list[int]:
        if len(tokens) + min(most, room) > server.served.positions:
            return []  # too long for it, and perhaps not for the model
        request = server.add(tokens, min(most, room))
        server.run()
        return request.generated

    return draft
