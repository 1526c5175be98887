"""Attentions that the loop of `kernels.flash` becomes with a few lines more."""
