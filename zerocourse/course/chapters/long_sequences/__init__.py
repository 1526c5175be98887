"""What only the chapter on long sequences uses; its exercises are in `checks`."""
