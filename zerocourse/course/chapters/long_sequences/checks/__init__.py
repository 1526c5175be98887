"""The checks of chapter 19, long sequences.

    ring_of_blocks:  19.1
    few_heads:       19.2
    cut_sequences:   19.3
    cheaper_way:     19.4
    weighed_losses:  19.5
    cells_join:      19.w1
    cells_turn:      19.w2
"""

from . import cells_join, cells_turn, cheaper_way, cut_sequences, few_heads, ring_of_blocks, weighed_losses  # each registers its exercises
