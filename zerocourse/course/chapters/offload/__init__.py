"""What only the chapter on offload uses; its exercises are in `checks`."""
