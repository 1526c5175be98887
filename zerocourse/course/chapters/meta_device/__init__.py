"""What only the chapter on the meta device uses; its exercises are in `checks`."""
