"""Beyond data: one model over several ranks, cut inside of its layers (`tensor`), between them (`pipeline`), or both (`three_d`)."""
