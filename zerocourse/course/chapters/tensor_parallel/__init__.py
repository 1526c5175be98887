"""What only the chapter on tensor parallelism uses; its exercises are in `checks`."""
