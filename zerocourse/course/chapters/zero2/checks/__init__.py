"""The checks of chapter 06, ZeRO-2.

    zero2_buckets:     6.1, 6.2
    zero2_bug:         6.7
    zero2_gradients:   6.6
    zero2_hook:        6.3
    zero2_ops:         6.4, 6.5
    cells_buckets:     06.w1, 06.w2
"""

from . import cells_buckets, zero2_buckets, zero2_bug, zero2_gradients, zero2_hook, zero2_ops  # each registers its exercises
