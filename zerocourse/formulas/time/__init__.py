"""Seconds by formula: of a step, of what a link brings while a kernel computes, of work that failures cost. No torch."""
