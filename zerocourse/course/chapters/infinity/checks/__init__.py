"""The checks of chapter 15, ZeRO-Infinity.

    tier_choice:    15.1, 15.2
    io_results:     15.3, 15.5
    io_schedule:    15.4
    instruments:    15.7
    linear_tiles:   15.6
    cells_schedule: 15.w1
"""

from . import cells_schedule, instruments, io_results, io_schedule, linear_tiles, tier_choice  # each registers its exercises
