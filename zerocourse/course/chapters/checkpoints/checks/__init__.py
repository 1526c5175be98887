"""The checks of chapter 12, checkpoints and elastic restarts.

    restart_log:       12.1, 12.2
    saved_chunks:      12.3, 12.5, 12.7
    crashing_disk:     12.4
    memory_snapshot:   12.6
    cells_resume:      12.w1
    cells_commit:      12.w2
"""

from . import cells_commit, cells_resume, crashing_disk, memory_snapshot, restart_log, saved_chunks  # each registers its exercises
