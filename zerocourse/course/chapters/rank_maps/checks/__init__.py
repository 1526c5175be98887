"""The checks of chapter 03, rank maps.

    fair_maps:         3.1, 3.2, 3.3
    moving_house:      3.6
    row_slices:        3.4, 3.5
    cells_maps:        03.w1, 03.w2
"""

from . import cells_maps, fair_maps, moving_house, row_slices  # each registers its exercises
