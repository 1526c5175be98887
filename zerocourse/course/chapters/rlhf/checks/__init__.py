"""The checks of chapter 24, RLHF.

    model_bytes:          24.1
    learned_places:       24.2
    length_means:         24.3
    sample_counts:        24.4
    pulled_policies:      24.5
    policy_tables:        24.6
    cells_likely:         24.w1
    cells_better:         24.w2
    cells_clipped:        24.w3
"""

from . import (  # each registers its exercises
    cells_better,
    cells_clipped,
    cells_likely,
    learned_places,
    length_means,
    model_bytes,
    policy_tables,
    pulled_policies,
    sample_counts,
)
