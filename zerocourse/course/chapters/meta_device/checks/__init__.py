"""The checks of chapter 02, the meta device.

    meta_names:        2.1, 2.2, 2.3
    meta_slices:       2.5
    meta_values:       2.4
"""

from . import meta_names, meta_slices, meta_values  # each registers its exercises
