"""What only the chapter on one cluster, and long sequences uses; its exercises are in `checks`."""
