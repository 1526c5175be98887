"""The checks of chapter 10, mixed precision.

    cells_halves:      10.w1, 10.w2
    half_bytes:        10.1, 10.7
    number_gaps:       10.2
    scaler_rules:      10.3
    joint_skips:       10.4
    master_weights:    10.5
    fp16_bugs:         10.6
    fp16_training:     10.8
"""

from . import cells_halves, fp16_bugs, fp16_training, half_bytes, joint_skips, master_weights, number_gaps, scaler_rules
