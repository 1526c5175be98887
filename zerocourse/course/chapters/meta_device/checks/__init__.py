"""The checks of chapter 02, the meta device.

    meta_names:        2.1, 2.2, 2.3
    meta_slices:       2.5
    meta_values:       2.4
    cells_meta:        02.w1, 02.w2
"""

from . import cells_meta, meta_names, meta_slices, meta_values  # each registers its exercises
