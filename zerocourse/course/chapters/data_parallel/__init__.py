"""What only the chapter on data parallelism uses; its exercises are in `checks`."""
