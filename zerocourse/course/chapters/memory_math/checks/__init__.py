"""The checks of chapter 01, memory math.

    memory_math:       1.2, 1.3, 1.4
    gpt2_count:        1.1
    moments:           1.5
    cells_memory:      01.w1, 01.w2
"""

from . import cells_memory, gpt2_count, memory_math, moments  # each registers its exercises
