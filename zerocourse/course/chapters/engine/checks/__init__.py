"""The checks of chapter 11, the engine.

    sizes_and_rates:   11.1, 11.2
    borrowed_loop:     11.3
    broken_config:     11.4
    small_engine:      11.5
    choosing:          11.6
    cells_loop:        11.w1, 11.w2
"""

from . import borrowed_loop, broken_config, cells_loop, choosing, sizes_and_rates, small_engine  # each registers its exercises
