"""The checks of chapter 13, activations.

    batch_and_spacing:  13.1, 13.2
    packing_hooks:      13.3
    arena_places:       13.4
    tiled_losses:       13.5
    memory_rows:        13.6
    kept_outputs:       13.7
    cells_recompute:    13.w1, 13.w2
"""

from . import arena_places, batch_and_spacing, cells_recompute, kept_outputs, memory_rows, packing_hooks, tiled_losses
