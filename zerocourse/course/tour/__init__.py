"""The tour: the stages side by side on real ranks, and what their numbers must be."""
