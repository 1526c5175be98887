"""The checks of chapter 20, slow links.

    hybrid_cuts:     20.1, 20.2
    four_bits:       20.3
    node_copies:     20.4
    least_crossing:  20.5
    two_hops:        20.6
    cells_blocks:    20.w1
"""

from . import cells_blocks, four_bits, hybrid_cuts, least_crossing, node_copies, two_hops  # each registers its exercises
