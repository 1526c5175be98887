"""Beyond data: one model over several ranks, cut inside of its layers (`tensor`) or between them (`pipeline`)."""
