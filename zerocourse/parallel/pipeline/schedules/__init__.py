"""A schedule is one list of actions for each rank: written here, drawn, proved free of deadlock, and timed."""
