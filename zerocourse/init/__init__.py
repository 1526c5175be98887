"""Deferred initialization: models without memory, and the values that each rank draws for its own part."""
