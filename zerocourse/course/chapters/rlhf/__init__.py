"""What only the chapter on RLHF uses; its exercises are in `checks`."""
