"""What only the chapter on the engine uses; its exercises are in `checks`."""
