"""The checks of chapter 21, scale.

    many_slices:     21.1, 21.2
    waiting_steps:   21.3
    hybrid_cuts:     21.4, 21.5
    fake_weights:    21.6
    rank_simulator:  21.7
"""

from . import fake_weights, hybrid_cuts, many_slices, rank_simulator, waiting_steps  # noqa: F401  (each registers its exercises)
