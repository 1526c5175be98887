"""What only the chapter on inference uses; its exercises are in `checks`."""
