"""What only the chapter on activations uses; its exercises are in `checks`."""
