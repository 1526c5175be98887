"""The checks of chapter 07, ZeRO-3.

    zero3_counts:      7.1, 7.2, 7.3
    zero3_budget:      7.8
    zero3_hooks:       7.6
    zero3_memory:      7.4
    zero3_ops:         7.5
    zero3_stack:       7.7
    cells_units:       07.w1, 07.w2
"""

from . import cells_units, zero3_budget, zero3_counts, zero3_hooks, zero3_memory, zero3_ops, zero3_stack  # each registers its exercises
