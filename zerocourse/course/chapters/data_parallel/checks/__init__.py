"""The checks of chapter 04, data parallel.

    cuts_and_replays:  4.1, 4.4
    averages:          4.2, 4.3
    buckets:           4.7
    rings:             4.5, 4.6
    uneven:            4.8
    cells_ring:      04.w1, 04.w2
"""

from . import averages, buckets, cells_ring, cuts_and_replays, rings, uneven  # each registers its exercises
