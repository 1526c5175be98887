"""The checks of chapter 17, pipelines.

    bubble_share:    17.1
    written_lists:   17.2, 17.5
    waiting_ranks:   17.3
    boundary_scale:  17.4
    list_clock:      17.6
    eager_lists:     17.7
    cells_pipeline:  17.w1, 17.w2
"""

from . import boundary_scale, bubble_share, cells_pipeline, eager_lists, list_clock, waiting_ranks, written_lists  # each registers its exercises
