"""The commands that predict a training before it runs, and that lay what was measured beside it."""
