"""The checks of chapter 09, what goes wrong.

    fingerprints:      9.1
    audited_digits:    9.2
    desync_reading:    9.3
    empty_means:       9.4
    first_nan:         9.5
    cells_fingerprints: 09.w1, 09.w2
"""

from . import audited_digits, cells_fingerprints, desync_reading, empty_means, fingerprints, first_nan
