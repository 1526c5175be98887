"""Bugs by what goes wrong: a file has a family of them."""
