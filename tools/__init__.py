"""What keeps the course in order: not part of the package, and not needed to read or run it."""
