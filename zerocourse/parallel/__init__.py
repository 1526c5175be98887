"""Beyond data: one model over several ranks, cut by layers (`pipeline`)."""
