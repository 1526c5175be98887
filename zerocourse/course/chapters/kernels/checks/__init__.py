"""The checks of chapter 22, kernels.

    roofs:                 22.1
    code_reader:           22.2
    row_softmax:           22.3
    chunk_choice:          22.4
    even_slices:           22.5
    step_counters:         22.6
    norm_backward:         22.7
    query_blocks:          22.8
    cells_momentum:        22.w1
    cells_chunks:          22.w2
    cells_running:         22.w3
"""

from . import (  # each registers its exercises
    cells_chunks,
    cells_momentum,
    cells_running,
    chunk_choice,
    code_reader,
    even_slices,
    norm_backward,
    query_blocks,
    roofs,
    row_softmax,
    step_counters,
)
