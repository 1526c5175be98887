"""What only the chapter on what goes wrong uses; its exercises are in `checks`."""
