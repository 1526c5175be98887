"""What only the chapter on one cluster uses; its exercises are in `checks`."""
