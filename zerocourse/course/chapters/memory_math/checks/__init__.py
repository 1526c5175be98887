"""The checks of chapter 01, memory math.

    memory_math:       1.2, 1.3, 1.4
    gpt2_count:        1.1
    moments:           1.5
"""

from . import gpt2_count, memory_math, moments  # each registers its exercises
