"""What only the chapter on the disk uses; its exercises are in `checks`."""
