"""The checks of chapter 23, inference.

    token_rates:        23.1
    shared_blocks:      23.2
    drawn_guesses:      23.3
    guess_counts:       23.4
    step_plans:         23.5
    served_prompts:     23.6
    cells_cache:        23.w1
    cells_slots:        23.w2
    cells_accepted:     23.w3
"""

from . import (  # each registers its exercises
    cells_accepted,
    cells_cache,
    cells_slots,
    drawn_guesses,
    guess_counts,
    served_prompts,
    shared_blocks,
    step_plans,
    token_rates,
)
