"""The checks of chapter 25, scale.

    many_slices:     25.1, 25.2
    waiting_steps:   25.3
    hybrid_cuts:     25.4, 25.5
    fake_weights:    25.6
    rank_simulator:  25.7
"""

from . import fake_weights, hybrid_cuts, many_slices, rank_simulator, waiting_steps  # each registers its exercises
