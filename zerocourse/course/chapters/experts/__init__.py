"""What only the chapter on experts uses; its exercises are in `checks`."""
