"""The checks of chapter 18, one cluster.

    group_members:     18.1
    counted_axes:      18.2
    rows_of_replicas:  18.3
    one_measurement:   18.4
    fitting_mesh:      18.5
    cells_places:      18.w1
"""

from . import cells_places, counted_axes, fitting_mesh, group_members, one_measurement, rows_of_replicas  # each registers its exercises
