"""The checks of chapter 25, scale.

    many_slices:     25.1, 25.2
    waiting_steps:   25.3
    fake_weights:    25.4
    rank_simulator:  25.5
    cells_ring_time: 25.w1
"""

from . import cells_ring_time, fake_weights, many_slices, rank_simulator, waiting_steps  # each registers its exercises
