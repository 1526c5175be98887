"""The models that the course trains."""
