"""The check of 21.5: what is sent for a layer of experts, if the experts stay, and if ZeRO-3 gathers them."""

from ....checks import exercise

CASES = [(1000, 64, 128, 2, 8, 2, 4), (4096, 4096, 14_336, 3, 8, 2, 8), (200_000, 4096, 14_336, 3, 8, 2, 8),
         (512, 2048, 768, 3, 128, 8, 16), (100, 32, 32, 2, 4, 1, 1),
         (300, 16, 48, 2, 6, 3, 2), (10, 4, 8, 2, 4, 1, 4)]


@exercise(
    "21.5", "Who travels, tokens or experts?", minutes=20, difficulty=2, answer="moved_elements", cases=CASES,
    mistakes={
        "there and back": {"trips": 2},
        "gathered once": {"passes": 2},
        "gathered alone": {"passes": 1},
        "experts in use": {"gathered": lambda experts, k: k},
        "one a token": {"pairs": lambda tokens, k: tokens},
        "all pairs": {"share": lambda ranks: 1.0},
        "one matrix": {"matrices_of": lambda matrices: 1},
        "per expert": {"gathered": lambda experts, k: 1},
    })
def elements_of_both(tokens, width, inner, matrices, experts, k, ranks, *, trips=4, passes=3, gathered=lambda experts, k: experts,
                     pairs=lambda tokens, k: tokens * k, share=lambda ranks: (ranks - 1) / ranks, matrices_of=lambda matrices: matrices):
    """(elements if tokens travel, elements if experts do)."""
    return (trips * pairs(tokens, k) * width * share(ranks),
            passes * matrices_of(matrices) * width * inner * gathered(experts, k) * share(ranks))
