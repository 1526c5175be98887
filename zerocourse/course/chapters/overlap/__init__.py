"""What only the chapter on overlap uses; its exercises are in `checks`."""
