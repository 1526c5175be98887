"""What comes of a learner's record: `verdicts` puts answers into it, `summary` counts, and `calibration` draws predictions."""
