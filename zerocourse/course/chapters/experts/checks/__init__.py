"""The checks of chapter 21, experts.

    rows_to_ranks:        21.1
    mended_mixture:       21.2
    kept_pairs:           21.3
    expert_homes:         21.4
    moved_elements:       21.5
    expert_exchange:      21.6
    cells_choose:         21.w1
    cells_sorted:         21.w2
    cells_balance:        21.w3
"""

from . import (  # each registers its exercises
    cells_balance,
    cells_choose,
    cells_sorted,
    expert_exchange,
    expert_homes,
    kept_pairs,
    mended_mixture,
    moved_elements,
    rows_to_ranks,
)
