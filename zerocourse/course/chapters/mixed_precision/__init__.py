"""What only the chapter on mixed precision uses; its exercises are in `checks`."""
