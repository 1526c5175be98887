"""Whole parameters out of slices, and slices out of whole parameters: what a training step never needs, and its user does."""
