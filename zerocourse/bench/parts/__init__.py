"""Parts of a step, timed alone."""
