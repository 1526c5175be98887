"""The checks of chapter 16, tensor parallelism.

    cut_layers:      16.1
    qkv_rows:        16.2
    cut_losses:      16.3
    counting_ranks:  16.4
    less_traffic:    16.5
    drifting_norms:  16.6
"""

from . import counting_ranks, cut_layers, cut_losses, drifting_norms, less_traffic, qkv_rows
