"""The checks of chapter 09, what goes wrong.

    fingerprints:      9.1
    audited_digits:    9.2
    desync_reading:    9.3
    empty_means:       9.4
"""

from . import audited_digits, desync_reading, empty_means, fingerprints  # noqa: F401  (each registers its exercise)
