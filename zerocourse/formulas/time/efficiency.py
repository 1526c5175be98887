"""How fast a tier must be for training to be efficient. Formulas: no torch. Bandwidths in bytes per second of one GPU.

Source: Rajbhandari et al. 2021, arXiv 2104.07857, section 4. Arithmetic intensity: floating-point operations of a step
for each byte that moves. A step computes 8 operations for each parameter and token (2 forward, 4 backward, 2 again
where activations are checkpointed). For each parameter it moves 8 bytes of parameters and gradients (three gathers and one
gradient of 2 bytes) or 32 of optimizer states (16 read and 16 written, with the gradients).
"""

from ...errors import BadInput


def intensity_of_parameters(tokens: int) -> float:
    """Operations for each byte of parameters and gradients. tokens: of a step on one GPU, sequence times batch."""
    return float(tokens)


def intensity_of_states(tokens: int) -> float:
    """Operations for each byte of optimizer states: a quarter of the former."""
    return tokens / 4


def intensity_of_activations(hidden: int, interval: int = 1) -> float:
    """Operations for each byte of activation checkpoints, one in every `interval` blocks of this width."""
    return 24.0 * hidden * interval


def efficiency(intensity: float, bandwidth: float, peak: float) -> float:
    """The share of `peak` (operations per second) that is reached where computing and moving do not overlap."""
    return intensity * bandwidth / (intensity * bandwidth + peak)


def bandwidth_needed(intensity: float, share: float, peak: float) -> float:
    """Bytes per second with which `efficiency` is `share`. Raises BadInput for a share that is not between 0 and 1."""
    if not 0 < share < 1:
        raise BadInput(f"the efficiency is {share}: it must be above 0 and below 1")
    return peak * share / ((1 - share) * intensity)
