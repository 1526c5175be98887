"""What only the chapter on checkpoints and restarts uses; its exercises are in `checks`."""
