"""The checks of chapter 16, tensor parallelism.

    cut_layers:      16.1
    qkv_rows:        16.2
    cut_losses:      16.3
    counting_ranks:  16.4
    less_traffic:    16.5
    seconds:         16.6
    cells_borders:   16.w1
    cells_tokens:    16.w2
"""

from . import cells_borders, cells_tokens, counting_ranks, cut_layers, cut_losses, less_traffic, qkv_rows, seconds
