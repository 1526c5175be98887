"""The checks of chapter 18, 3D parallelism.

    group_members:     18.1
    counted_axes:      18.2
    rows_of_replicas:  18.3
    one_measurement:   18.4
    joined_softmaxes:  18.5
    ring_of_blocks:    18.6
    fitting_mesh:      18.7
"""

from . import (
               counted_axes,
               fitting_mesh,
               group_members,
               joined_softmaxes,
               one_measurement,
               ring_of_blocks,
               rows_of_replicas,  # each registers its exercises
)
