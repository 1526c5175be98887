"""When a collective takes long or fails: who waits where since when, who left, and why none can end."""
