"""Real text, and which rank reads which part of it."""
