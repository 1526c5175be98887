"""What only the chapter on scale uses; its exercises are in `checks`."""
