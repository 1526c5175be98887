"""The checks of chapter 05, ZeRO-1.

    zero1_slices:      5.1, 5.2, 5.3
    zero1_ops:         5.4, 5.5
    zero1_optimizer:   5.6
    cells_slices:      05.w1, 05.w2
"""

from . import cells_slices, zero1_ops, zero1_optimizer, zero1_slices  # each registers its exercises
