"""The check of 14.2: the bytes of a link's two lanes."""

from ....checks import Trial, exercise

# 14.2 ---------------------------------------------------------------------------------------------------------------

CASES = [(1000, 1, 1, False, False), (1000, 2, 1, False, False), (1000, 2, 4, False, False), (1000, 2, 1, True, False),
         (1200, 4, 1, False, True), (1200, 4, 3, False, True), (1200, 4, 3, True, True)]


@exercise(
    "14.2", "Bytes down, bytes up", minutes=10, difficulty=1,
    trials=[Trial(list(CASES))],
    mistakes={
        "turned over": lambda *case: link_bytes(*case)[::-1],
        "whole": {"share": lambda params, ranks: params},
        "each micro-batch": {"sent": lambda micro: micro},
        "fp32 up": {"up": lambda wide: 4 if wide else 2},
        "always fp32": {"down": lambda wide: 4},
        "never fp32": {"down": lambda wide: 2},
        "one gather": {"gathers": lambda micro: micro},
        "gathers a step": {"gathers": lambda micro: 2},
        "result too": {"gathers": lambda micro: 2 * micro + 1},
    })
def link_bytes(params, ranks, micro_batches, fp32_gradients, parameters, *, share=lambda params, ranks: params // ranks,
               sent=lambda micro: 1, up=lambda wide: 2, down=lambda wide: 4 if wide else 2, gathers=lambda micro: 2 * micro):
    """(down, up) of one rank in a step."""
    own = share(params, ranks)
    return (down(fp32_gradients) * sent(micro_batches) * own,
            (2 * gathers(micro_batches) if parameters else up(fp32_gradients)) * own)
