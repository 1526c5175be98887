"""Beyond data: one model over several ranks, cut by layers (`pipeline`) or by the tokens of a sequence (`context`)."""
