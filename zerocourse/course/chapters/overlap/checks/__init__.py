"""The checks of chapter 08, overlap.

    prefetching:       8.1, 8.2
    exposure:          8.4
    lanes:             8.6
    reading:           8.3
    run_ahead:         8.5
    cells_program:     08.w1, 08.w2
"""

from . import cells_program, exposure, lanes, prefetching, reading, run_ahead  # each registers its exercises
