"""The checks of chapter 14, offload to the host.

    placed_graph:   14.1, 14.6
    link_lanes:     14.2
    small_device:   14.5
    late_steps:     14.3
    host_gradient:  14.4
    idle_device:    14.7
    cells_host:     14.w1, 14.w2
"""

from . import cells_host, host_gradient, idle_device, late_steps, link_lanes, placed_graph, small_device  # each registers its exercises
