"""What draws itself in a notebook: pictures of what was measured, as images with words."""
